"""Drafts in the engine: verified in the step that computes them; rejected tokens are removed."""

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
from inference_svc.engine.request import SequenceRequest
from tests.support.fake_backend import REPEATED_DRAWS, VOCABULARY_SIZE, FakeBackend
from tests.support.sequences import EngineBench, make_request

SPARE = 16
LENGTH = 3 * REPEATED_DRAWS
EXPENSIVE = {n: float(n) for n in (1, 2, 4, 8, 16)}  # each draft token takes as long as a step


def _bench(
    slots: int = 1, *, spare: int = SPARE, cells: int | None = None, **options: Any
) -> EngineBench:
    backend_names = ("end_after", "can_trim", "fails")
    backend_options = {name: options.pop(name) for name in backend_names if name in options}
    limits = NativeLimits(64, slots + spare, slots, 160, VOCABULARY_SIZE, cells=cells)
    return EngineBench(FakeBackend(limits, repeats=True, **backend_options), **options)


def _request(i: int = 0, **changes: Any) -> SequenceRequest:
    return make_request(i, **{"max_tokens": LENGTH, "ignore_eos": True, **changes})


def _run(*requests: SequenceRequest, **options: Any) -> EngineBench:
    bench = _bench(**options)
    bench.submit(*requests)
    bench.run()
    return bench


def _run_plain(request: SequenceRequest) -> EngineBench:
    return _run(request, spare=0)


def _expensive_bench(seconds: Callable[[int], float], slots: int = 1) -> EngineBench:
    """An engine that expects no gain of drafts; a step of n tokens takes `seconds(n)`."""

    def advance_clock(batch: TokenBatch) -> int:
        bench.clock.now += seconds(len(batch.tokens))
        return 0

    bench = _bench(slots, measured={1: 1.0}, token_times=EXPENSIVE, fails=advance_clock)
    return bench


def _logprobs(bench: EngineBench) -> list[ChosenLogprob]:
    return [logprob for delta in bench.deltas(0) for logprob in delta.logprobs]


def test_drafts_save_steps_and_change_no_token() -> None:
    """Repetitive text takes less than half of the steps."""
    bench = _run(_request())
    plain = _run_plain(_request())

    assert bench.tokens(0) == plain.tokens(0)
    assert bench.engine.num_steps < plain.engine.num_steps / 2
    finished = bench.finished(0)
    assert 0 < finished.num_accepted < finished.num_drafted
    assert bench.engine.num_steps == 1 + (LENGTH - 1) - finished.num_accepted


def test_a_prediction_is_drafted_from_its_first_token() -> None:
    """A wrong part of the prediction does not end its use."""
    prompt, limits = list(range(65, 90)), NativeLimits(64, 1 + SPARE, 1, 160, VOCABULARY_SIZE)
    request = make_request(prompt=prompt, max_tokens=LENGTH, ignore_eos=True)
    plain = EngineBench(FakeBackend(limits))
    plain.submit(request)
    plain.run()
    expected = plain.tokens(0)
    predicted = array("i", [*expected[:20], 1, 2, 3, *expected[24:]])
    bench = EngineBench(FakeBackend(limits))
    bench.submit(replace(request, predicted=predicted))
    bench.run()

    assert bench.tokens(0) == expected
    assert bench.finished(0).num_accepted > LENGTH / 2
    assert bench.engine.num_steps < plain.engine.num_steps / 2


def test_accepted_tokens_of_a_step_are_one_event() -> None:
    """They count as one unread event of the reader."""
    bench = _run(_request())

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
    ids=["stop", "logprobs", "end", "max_tokens", "full slot", "constraint", "forced", "resumed"],
)
def test_options_have_the_same_result_with_drafts(changes: dict[str, Any]) -> None:
    """Tokens, text, log probabilities and finish reason are equal."""
    request = _request(**changes)
    bench, plain = _run(request), _run_plain(request)

    assert bench.tokens(0) == plain.tokens(0)
    assert bench.text(0) == plain.text(0)
    assert _logprobs(bench) == _logprobs(plain)
    assert bench.finished(0)[1:5] == plain.finished(0)[1:5]


def test_a_stop_text_inside_a_draft_ends_the_output() -> None:
    """Draft tokens after it are not emitted."""
    text = _run_plain(_request()).text(0)
    stop = text[40:44]
    request = _request(stop=(stop,))
    bench, plain = _run(request), _run_plain(request)

    assert bench.text(0) == plain.text(0) == text[: text.index(stop)]
    assert bench.finished(0).stop_text == stop


def test_a_slot_with_a_rejected_draft_is_reused() -> None:
    """The next request reuses exactly the emitted tokens."""
    bench = _run(_request())
    prompt = [65, 66, 67, *bench.tokens(0)[:40]]
    bench.submit(_request(1, prompt=prompt, max_tokens=20))
    bench.run()

    assert bench.tokens(1) == _run_plain(_request(1, prompt=prompt, max_tokens=20)).tokens(1)


def test_several_sequences_draft_rows_of_one_length() -> None:
    """Streams compute rows of different lengths in separate passes."""
    bench = _run(_request(0), _request(1, prompt=[70, 71], seed=5), slots=2)

    for i, request in enumerate([_request(0), _request(1, prompt=[70, 71], seed=5)]):
        assert bench.tokens(i) == _run_plain(request).tokens(i)
    drafted = [batch for batch in bench.backend.batches if batch.outputs.sum() > 2]
    assert drafted
    for batch in drafted:
        rows = [int((batch.slots == slot).sum()) for slot in set(batch.slots.tolist())]
        assert len(set(rows)) == 1


def test_max_draft_0_disables_drafts_of_one_sequence() -> None:
    """The other sequence of the batch still drafts."""
    bench = _run(_request(0, max_draft=0), _request(1, prompt=[70, 71], seed=5), slots=2)

    assert bench.finished(0).num_drafted == 0
    assert {len(delta.tokens) for delta in bench.deltas(0)} == {1}
    assert bench.finished(1).num_accepted > 0
    assert bench.tokens(0) == _run_plain(_request(0)).tokens(0)


def test_a_request_may_limit_its_drafts() -> None:
    """`max_draft` limits the tokens of a step."""
    bench = _run(_request(max_draft=2))

    assert 2 < max(len(delta.tokens) for delta in bench.deltas(0)) <= 4
    assert bench.tokens(0) == _run_plain(_request()).tokens(0)


def test_steps_with_prompts_have_no_drafts() -> None:
    """Each row of such a step has at most one output."""
    bench = _bench(2, chunk_cap=4)
    bench.submit(_request(0))
    for _ in range(12):
        bench.step()
    bench.submit(_request(1, prompt=[90 + i % 7 for i in range(30)], max_tokens=1))
    num_before = len(bench.backend.batches)
    bench.run()

    mixed = bench.backend.batches[num_before : num_before + 7]
    assert all(int(batch.outputs.sum()) <= 2 for batch in mixed)


@pytest.mark.parametrize("options", [{"spare": 0}, {"can_trim": False}])
def test_nothing_is_drafted_without_spare_rows_or_trim(options: dict[str, Any]) -> None:
    """Rejected tokens could not be computed or removed; there are no trials either."""
    bench = _run(_request(), measured={1: 1.0}, token_times=EXPENSIVE, **options)

    assert bench.finished(0).num_drafted == 0
    assert bench.tokens(0) == _run_plain(_request()).tokens(0)


def test_nothing_is_drafted_if_tokens_cost_as_much_as_steps() -> None:
    """A row of two tokens takes twice as long, so a draft cannot gain."""
    bench = _run(_request(max_tokens=TRIAL_INTERVAL - 1), measured={1: 1.0}, token_times=EXPENSIVE)

    assert bench.finished(0).num_drafted == 0


def test_trials_correct_a_cost_that_was_measured_too_high() -> None:
    """Trials measure each draft length again, and longer drafts are used afterwards."""
    bench = _expensive_bench(lambda tokens: 1.0 + 0.01 * tokens)
    for i in range(40):
        bench.submit(_request(i))
        bench.run()
    plain = _run_plain(_request())

    assert {len(delta.tokens) for delta in bench.deltas(0)[:TRIAL_INTERVAL]} == {1}
    assert bench.finished(39).num_accepted > LENGTH / 2
    assert max(len(delta.tokens) for delta in bench.deltas(39)) == SPARE
    assert bench.tokens(39) == plain.tokens(0)


def test_trials_of_expensive_drafts_are_rare() -> None:
    """Fewer than one draft token per trial interval, if it costs as much as a step."""
    bench = _expensive_bench(float)
    for i in range(40):
        bench.submit(_request(i))
        bench.run()

    num_drafted_total = sum(bench.finished(i).num_drafted for i in range(40))
    assert 0 < num_drafted_total < 40 * LENGTH / TRIAL_INTERVAL


def test_max_draft_0_disables_trials() -> None:
    """Even after the interval between trials."""
    bench = _expensive_bench(float)
    bench.submit(_request(max_draft=0))
    bench.run()

    assert bench.engine.num_steps > TRIAL_INTERVAL
    assert {len(batch.tokens) for batch in bench.backend.batches[1:]} == {1}


def test_there_are_no_trials_while_several_sequences_run() -> None:
    """Sequences of a batch wait for each other's rows."""
    bench = _expensive_bench(float, slots=2)
    for i in range(0, 8, 2):
        bench.submit(_request(i), _request(i + 1))
        bench.run()

    assert all(bench.finished(i).num_drafted == 0 for i in range(8))


def test_a_busy_batch_drafts_nothing() -> None:
    """A row of eight tokens costs as much as one token alone, but not beside others."""
    flat_then_steep = {1: 1.0, 8: 1.0, 16: 4.0, 32: 9.0}
    rows = {1: 1.0, 8: 1.0}
    alone = _run(_request(), slots=8, measured=rows, token_times=flat_then_steep)
    busy = _bench(8, measured=rows, token_times=flat_then_steep)
    busy.submit(*(_request(i, seed=i) for i in range(8)))
    while not any(isinstance(event, Finished) for event in busy.events):
        busy.step()

    assert max(len(delta.tokens) for delta in alone.deltas(0)) == 8
    assert {len(delta.tokens) for i in range(8) for delta in busy.deltas(i)} == {1}


def test_deterministic_sequences_do_not_draft_while_others_wait() -> None:
    """Deterministic sequences have separate steps that delay the others."""
    token_times = {1: 1.0, 2: 1.7, 16: 1.8, 32: 1.9}
    alone = _run(_request(deterministic=True), slots=2, measured={1: 1.0}, token_times=token_times)
    busy = _run(
        _request(deterministic=True),
        _request(1, prompt=[70, 71], max_draft=0),
        slots=2,
        measured={1: 1.0},
        token_times=token_times,
    )

    assert alone.finished(0).num_accepted > 0
    assert busy.finished(0).num_drafted == 0


def test_a_draft_fits_into_one_pass() -> None:
    """A second pass could overwrite cells outside a sliding window, which may be needed again."""
    limits = NativeLimits(64, 1 + SPARE, 1, 160, VOCABULARY_SIZE, ubatch_tokens=4)
    bench = EngineBench(FakeBackend(limits, repeats=True))
    bench.submit(_request(prompt=[65, 66, 67, 68]))
    bench.run()

    assert bench.finished(0).num_accepted > 0
    assert max(len(batch.tokens) for batch in bench.backend.batches) == 4


@pytest.mark.parametrize(("cells", "drafts"), [(None, False), (480, True)])
def test_streams_with_a_hole_between_them_draft_nothing(cells: int | None, drafts: bool) -> None:
    """Each run of streams would be a separate pass. The unified layout has no holes."""
    bench = _run(
        *(_request(i, seed=i, max_tokens=2 if i == 1 else LENGTH) for i in range(3)),
        slots=3,
        cells=cells,
    )

    assert all(bool(bench.finished(i).num_drafted) is drafts for i in (0, 2))


@pytest.mark.parametrize("cells", range(160, 240, 7))
def test_drafts_fit_into_the_cells_that_slots_share(
    cells: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Although sequences are preempted, no decode call fails for lack of them."""
    requests = [_request(i, prompt=[70 + i, 71, 72], max_tokens=90 + 5 * i) for i in range(5)]
    bench = _run(*requests, slots=4, spare=32, cells=cells, saved_bytes=10**6, measured={1: 1.0})

    assert not caplog.records
    assert sum(bench.finished(i).num_drafted for i in range(5)) > 0
    assert [bench.finished(i).num_output_tokens for i in range(5)] == [90, 95, 100, 105, 110]


def test_rejected_drafts_end_drafting() -> None:
    """At most 32 tokens are drafted if none is accepted."""
    limits = NativeLimits(64, 1 + SPARE, 1, 160, VOCABULARY_SIZE)
    prompt = [65 + i % 4 for i in range(60)]  # every three tokens of it occurred earlier
    bench = EngineBench(
        FakeBackend(limits), measured={1: 1.0}, token_times={1: 1.0, 2: 1.2, 32: 1.5}
    )
    bench.submit(_request(prompt=prompt, max_tokens=60))
    bench.run()

    assert bench.finished(0).num_accepted == 0
    assert bench.finished(0).num_drafted <= 32


def test_a_cancellation_between_two_drafts_frees_the_slot() -> None:
    """The next request has the same output as without drafts."""
    bench = _bench()
    bench.submit(_request())
    for _ in range(12):
        bench.step()
    bench.engine.cancel(0, arrived_in_step=12, step=13)
    bench.submit(_request(1, prompt=[70, 71]))
    bench.run()

    assert bench.tokens(1) == _run_plain(_request(1, prompt=[70, 71])).tokens(1)


def test_a_step_that_fails_with_drafts_is_retried_without() -> None:
    """The memory may not suffice for the logits of all drafts, for example."""
    bench = _run(_request(), fails=lambda batch: -2 if batch.outputs.sum() > 1 else 0)

    assert bench.failures() == {}
    assert bench.tokens(0) == _run_plain(_request()).tokens(0)


def test_a_failed_batch_with_drafts_is_retried_in_halves() -> None:
    """Both sequences have the same output as without drafts."""
    calls = iter(range(1000))
    bench = _bench(
        2,
        fails=lambda batch: -2 if next(calls) > 9 and len(set(batch.slots.tolist())) > 1 else 0,
    )
    bench.submit(_request(0), _request(1, prompt=[70, 71], seed=5))
    bench.run()

    assert bench.failures() == {}
    for i, request in enumerate([_request(0), _request(1, prompt=[70, 71], seed=5)]):
        assert bench.tokens(i) == _run_plain(request).tokens(i)


def test_the_load_has_totals_of_drafted_and_accepted_tokens() -> None:
    """Totals never decrease, and include sequences that have ended."""
    bench = _run(_request())
    loads = [event for event in bench.events if isinstance(event, ModelLoad)]
    finished = bench.finished(0)

    assert loads[-1].draft_tokens == finished.num_drafted
    assert loads[-1].accepted_draft_tokens == finished.num_accepted
    assert all(first.draft_tokens <= second.draft_tokens for first, second in pairwise(loads))
