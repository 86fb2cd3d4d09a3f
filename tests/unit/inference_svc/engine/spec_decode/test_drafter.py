"""Drafts in the engine: verified in the step that computes them, dropped where they are wrong."""

from array import array
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from inference_svc.engine.batch import NativeLimits, TokenBatch
from inference_svc.engine.constraint import Constraint
from inference_svc.engine.cost_model.step_time import TRIAL_INTERVAL
from inference_svc.engine.events import ChosenLogprob, Finished, ModelLoad
from inference_svc.engine.fake import REPEATED_DRAWS, VOCABULARY_SIZE, FakeBackend
from inference_svc.engine.request import SequenceRequest
from tests.support.sequences import EngineBench, make_request

SPARE = 16
LENGTH = 3 * REPEATED_DRAWS
DEAR = {n: float(n) for n in (1, 2, 4, 8, 16)}  # a draft takes as long as what it can give


def _bench(
    slots: int = 1, *, spare: int = SPARE, cells: int | None = None, **options: Any
) -> EngineBench:
    names = ("end_after", "can_trim", "fails")
    chosen = {name: options.pop(name) for name in names if name in options}
    limits = NativeLimits(64, slots + spare, slots, 160, VOCABULARY_SIZE, cells=cells)
    return EngineBench(FakeBackend(limits, repeats=True, **chosen), **options)


def _endless(i: int = 0, **changes: Any) -> SequenceRequest:
    return make_request(i, **{"max_tokens": LENGTH, "ignore_eos": True, **changes})


def _alone(request: SequenceRequest) -> EngineBench:
    """The same without drafts."""
    bench = _bench(spare=0)
    bench.submit(request)
    bench.run()
    return bench


def _timed(seconds: Callable[[int], float], slots: int = 1) -> EngineBench:
    """Drafts are believed to be dear, and steps take what they do by their tokens."""

    def take_time(batch: TokenBatch) -> int:
        bench.clock.now += seconds(len(batch.tokens))
        return 0

    bench = _bench(slots, measured={1: 1.0}, token_times=DEAR, fails=take_time)
    return bench


def _logprobs(bench: EngineBench) -> list[ChosenLogprob]:
    return [logprob for delta in bench.deltas(0) for logprob in delta.logprobs]


def test_drafts_save_steps_and_change_no_token() -> None:
    """A text that repeats itself takes a part of the steps; wrong guesses leave no cell behind."""
    bench = _bench()
    bench.submit(_endless())
    bench.run()
    plain = _alone(_endless())

    assert bench.tokens(0) == plain.tokens(0)
    assert bench.engine.num_steps < plain.engine.num_steps / 2
    finished = bench.finished(0)
    assert 0 < finished.num_accepted < finished.num_drafted
    assert bench.engine.num_steps == 1 + (LENGTH - 1) - finished.num_accepted


def test_a_prediction_is_drafted_from_its_first_token_on() -> None:
    """A text that repeats nothing of itself is said in a few steps where it was predicted, and goes
    on without it where the prediction was wrong."""
    prompt, limits = list(range(65, 90)), NativeLimits(64, 1 + SPARE, 1, 160, VOCABULARY_SIZE)
    request = make_request(prompt=prompt, max_tokens=LENGTH, ignore_eos=True)
    plain = EngineBench(FakeBackend(limits))
    plain.submit(request)
    plain.run()
    said = plain.tokens(0)
    predicted = array("i", [*said[:20], 1, 2, 3, *said[24:]])
    bench = EngineBench(FakeBackend(limits))
    bench.submit(replace(request, predicted=predicted))
    bench.run()

    assert bench.tokens(0) == said
    assert bench.finished(0).num_accepted > LENGTH / 2
    assert bench.engine.num_steps < plain.engine.num_steps / 2


def test_many_tokens_of_a_step_are_one_event() -> None:
    """They must not look like many unread ones to a reader's limit."""
    bench = _bench()
    bench.submit(_endless())
    bench.run()

    assert len(bench.deltas(0)) == bench.engine.num_steps
    assert max(len(delta.tokens) for delta in bench.deltas(0)) > 8


@pytest.mark.parametrize(
    "changes",
    [
        {"stop": ("\x00",)},
        {"top_logprobs": 2},
        {"ignore_eos": False},
        {"max_tokens": 5},
        {"prompt": [97 + i % 3 for i in range(100)]},
        {"constraint": Constraint("?" * 9 + "and so on" * 3 + "?" * 20 + "*", "c")},
        {"constraint": Constraint("abcabc" * 9 + "*", "c"), "top_logprobs": 0},
        {"resumed": array("i", [97, 98, 97, 98, 97, 98])},
    ],
    ids=["stop", "logprobs", "end", "few", "full", "constraint", "forced", "resumed"],
)
def test_every_option_means_the_same_with_drafts(changes: dict[str, Any]) -> None:
    """The same tokens, texts, log probabilities and end."""
    request = _endless(**changes)
    bench, plain = _bench(), _alone(request)
    bench.submit(request)
    bench.run()

    assert bench.tokens(0) == plain.tokens(0)
    assert bench.text(0) == plain.text(0)
    assert _logprobs(bench) == _logprobs(plain)
    assert bench.finished(0)[1:5] == plain.finished(0)[1:5]


def test_a_stop_text_inside_a_draft_ends_there() -> None:
    """What was guessed behind it is neither said nor kept in the slot."""
    whole = _alone(_endless()).text(0)
    stop = whole[40:44]
    request = _endless(stop=(stop,))
    bench, plain = _bench(), _alone(request)
    bench.submit(request)
    bench.run()

    assert bench.text(0) == plain.text(0) == whole[: whole.index(stop)]
    assert bench.finished(0).stop_text == stop


def test_a_slot_with_a_dropped_draft_is_reused() -> None:
    """The next request finds exactly what the one before has said."""
    bench = _bench()
    bench.submit(_endless())
    bench.run()
    prompt = [65, 66, 67, *bench.tokens(0)[:40]]
    bench.submit(_endless(1, prompt=prompt, max_tokens=20))
    bench.run()

    assert bench.tokens(1) == _alone(_endless(1, prompt=prompt, max_tokens=20)).tokens(1)


def test_several_sequences_draft_rows_of_one_length() -> None:
    """Streams compute rows of different lengths one after the other, so there are none."""
    bench = _bench(2)
    bench.submit(_endless(0), _endless(1, prompt=[70, 71], seed=5))
    bench.run()

    for i, request in enumerate([_endless(0), _endless(1, prompt=[70, 71], seed=5)]):
        assert bench.tokens(i) == _alone(request).tokens(i)
    drafted = [batch for batch in bench.backend.batches if batch.outputs.sum() > 2]
    assert drafted
    for batch in drafted:
        rows = [int((batch.slots == slot).sum()) for slot in set(batch.slots.tolist())]
        assert len(set(rows)) == 1


def test_who_forbids_drafts_is_never_drafted_for() -> None:
    """Its neighbour still is; the row beside is filled up and tells nothing."""
    bench = _bench(2)
    bench.submit(_endless(0, max_draft=0), _endless(1, prompt=[70, 71], seed=5))
    bench.run()

    assert bench.finished(0).num_drafted == 0
    assert {len(delta.tokens) for delta in bench.deltas(0)} == {1}
    assert bench.finished(1).num_accepted > 0
    assert bench.tokens(0) == _alone(_endless(0)).tokens(0)


def test_a_request_may_bound_its_drafts() -> None:
    """By tokens at once."""
    bench = _bench()
    bench.submit(_endless(max_draft=2))
    bench.run()

    assert 2 < max(len(delta.tokens) for delta in bench.deltas(0)) <= 4
    assert bench.tokens(0) == _alone(_endless()).tokens(0)


def test_prompts_are_not_mixed_with_drafts() -> None:
    """A step that computes a prompt is long enough."""
    bench = _bench(2, chunk_cap=4)
    bench.submit(_endless(0))
    for _ in range(12):
        bench.step()
    bench.submit(_endless(1, prompt=[90 + i % 7 for i in range(30)], max_tokens=1))
    before = len(bench.backend.batches)
    bench.run()

    mixed = bench.backend.batches[before : before + 7]
    assert all(int(batch.outputs.sum()) <= 2 for batch in mixed)


@pytest.mark.parametrize("options", [{"spare": 0}, {"can_trim": False}])
def test_nothing_is_drafted_where_that_is_off_or_cannot_be_undone(options: dict[str, Any]) -> None:
    """No memory for it, or a state that cannot be shortened; nor is it tried."""
    bench = _bench(measured={1: 1.0}, token_times=DEAR, **options)
    bench.submit(_endless())
    bench.run()

    assert bench.finished(0).num_drafted == 0
    assert bench.tokens(0) == _alone(_endless()).tokens(0)


def test_dear_steps_are_not_made_dearer() -> None:
    """Where a row of two tokens takes twice as long, a draft can only lose."""
    bench = _bench(measured={1: 1.0}, token_times=DEAR)
    bench.submit(_endless(max_tokens=TRIAL_INTERVAL - 1))
    bench.run()

    assert bench.finished(0).num_drafted == 0


def test_drafts_that_were_believed_too_dear_are_tried_and_then_made() -> None:
    """The machine was busy when they were measured; each length shows what it takes now."""
    bench = _timed(lambda tokens: 1.0 + 0.01 * tokens)
    for i in range(40):
        bench.submit(_endless(i))
        bench.run()
    plain = _alone(_endless())

    assert {len(delta.tokens) for delta in bench.deltas(0)[:TRIAL_INTERVAL]} == {1}
    assert bench.finished(39).num_accepted > LENGTH / 2
    assert max(len(delta.tokens) for delta in bench.deltas(39)) == SPARE
    assert bench.tokens(39) == plain.tokens(0)


def test_trials_of_dear_drafts_take_little_time() -> None:
    """Where the belief is right each of their tokens takes as long as a step."""
    bench = _timed(float)
    for i in range(40):
        bench.submit(_endless(i))
        bench.run()

    tried = sum(bench.finished(i).num_drafted for i in range(40))
    assert 0 < tried < 40 * LENGTH / TRIAL_INTERVAL


def test_who_forbids_drafts_tries_none() -> None:
    """Be it alone for as long as a trial takes to come."""
    bench = _timed(float)
    bench.submit(_endless(max_draft=0))
    bench.run()

    assert bench.engine.num_steps > TRIAL_INTERVAL
    assert {len(batch.tokens) for batch in bench.backend.batches[1:]} == {1}


def test_nothing_is_tried_at_the_cost_of_others() -> None:
    """Sequences that run together wait for each other's rows."""
    bench = _timed(float, slots=2)
    for i in range(0, 8, 2):
        bench.submit(_endless(i), _endless(i + 1))
        bench.run()

    assert all(bench.finished(i).num_drafted == 0 for i in range(8))


def test_a_busy_batch_drafts_less_and_then_nothing() -> None:
    """Alone a row of eight costs no more than one; beside others it delays them."""
    flat_then_steep = {1: 1.0, 8: 1.0, 16: 4.0, 32: 9.0}
    rows = {1: 1.0, 8: 1.0}
    alone = _bench(8, measured=rows, token_times=flat_then_steep)
    alone.submit(_endless())
    alone.run()
    busy = _bench(8, measured=rows, token_times=flat_then_steep)
    busy.submit(*(_endless(i, seed=i) for i in range(8)))
    while not any(isinstance(event, Finished) for event in busy.events):
        busy.step()

    assert max(len(delta.tokens) for delta in alone.deltas(0)) == 8
    assert {len(delta.tokens) for i in range(8) for delta in busy.deltas(i)} == {1}


def test_nobody_waits_for_long_drafts_of_another() -> None:
    """A deterministic sequence has steps of its own, and others wait for them."""
    dear = {1: 1.0, 2: 1.7, 16: 1.8, 32: 1.9}
    alone = _bench(2, measured={1: 1.0}, token_times=dear)
    alone.submit(_endless(deterministic=True))
    alone.run()
    beside = _bench(2, measured={1: 1.0}, token_times=dear)
    beside.submit(_endless(deterministic=True), _endless(1, prompt=[70, 71], max_draft=0))
    beside.run()

    assert alone.finished(0).num_accepted > 0
    assert beside.finished(0).num_drafted == 0


def test_a_draft_fits_into_one_pass() -> None:
    """A second one could overwrite what a sliding window has left behind."""
    limits = NativeLimits(64, 1 + SPARE, 1, 160, VOCABULARY_SIZE, ubatch_tokens=4)
    bench = EngineBench(FakeBackend(limits, repeats=True))
    bench.submit(_endless(prompt=[65, 66, 67, 68]))
    bench.run()

    assert bench.finished(0).num_accepted > 0
    assert max(len(batch.tokens) for batch in bench.backend.batches) == 4


@pytest.mark.parametrize(("cells", "drafts"), [(None, False), (480, True)])
def test_streams_with_a_hole_between_them_draft_nothing(cells: int | None, drafts: bool) -> None:
    """Each run of streams would be a pass of its own; shared cells know no holes."""
    bench = _bench(3, cells=cells)
    bench.submit(*(_endless(i, seed=i, max_tokens=2 if i == 1 else LENGTH) for i in range(3)))
    bench.run()

    assert all(bool(bench.finished(i).num_drafted) is drafts for i in (0, 2))


def test_guesses_that_fail_end_the_drafts_until_they_come_true() -> None:
    """At a moderate price a text that never repeats itself soon costs nothing more."""
    limits = NativeLimits(64, 1 + SPARE, 1, 160, VOCABULARY_SIZE)
    prompt = [65 + i % 4 for i in range(60)]  # every three tokens of it stood before
    bench = EngineBench(
        FakeBackend(limits), measured={1: 1.0}, token_times={1: 1.0, 2: 1.2, 32: 1.5}
    )
    bench.submit(_endless(prompt=prompt, max_tokens=60))
    bench.run()

    assert bench.finished(0).num_accepted == 0
    assert bench.finished(0).num_drafted <= 32


def test_a_cancel_between_two_drafts_frees_the_slot() -> None:
    """As without drafts."""
    bench = _bench()
    bench.submit(_endless())
    for _ in range(12):
        bench.step()
    bench.engine.cancel(0, arrived_in_step=12, step=13)
    bench.submit(_endless(1, prompt=[70, 71]))
    bench.run()

    assert bench.tokens(1) == _alone(_endless(1, prompt=[70, 71])).tokens(1)


def test_a_step_that_only_fails_with_drafts_fails_nobody() -> None:
    """It is computed without them; there may be no room for so many logits, say."""
    bench = _bench(fails=lambda batch: -2 if batch.outputs.sum() > 1 else 0)
    bench.submit(_endless())
    bench.run()

    assert bench.failures() == {}
    assert bench.tokens(0) == _alone(_endless()).tokens(0)


def test_a_drafting_batch_that_fails_is_retried_in_halves() -> None:
    """Each alone, without drafts; nobody notices."""
    calls = iter(range(1000))
    bench = _bench(
        2,
        fails=lambda batch: -2 if next(calls) > 9 and len(set(batch.slots.tolist())) > 1 else 0,
    )
    bench.submit(_endless(0), _endless(1, prompt=[70, 71], seed=5))
    bench.run()

    assert bench.failures() == {}
    for i, request in enumerate([_endless(0), _endless(1, prompt=[70, 71], seed=5)]):
        assert bench.tokens(i) == _alone(request).tokens(i)


def test_totals_grow_with_every_judged_draft() -> None:
    """Those of sequences that ended early too."""
    bench = _bench()
    bench.submit(_endless())
    bench.run()
    loads = [event for event in bench.events if isinstance(event, ModelLoad)]
    finished = bench.finished(0)

    assert loads[-1].draft_tokens == finished.num_drafted
    assert loads[-1].accepted_draft_tokens == finished.num_accepted
    assert all(one.draft_tokens <= other.draft_tokens for one, other in pairwise(loads))
