"""Drafts of a model of its own: computed from a KV cache that follows the sequences."""

from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from inference_svc.engine.batch import NativeLimits, TokenBatch
from inference_svc.engine.cost_model.step_time import TRIAL_INTERVAL
from inference_svc.engine.events import DraftTokens, ModelLoad
from inference_svc.engine.request import SequenceRequest
from tests.support.fake_backend import END_TOKEN, VOCABULARY_SIZE, FakeBackend
from tests.support.fake_draft_model import FakeDraftBackend, guess_of, make_draft_model
from tests.support.media_prompts import media_request, write_fake_chunk
from tests.support.sequences import EngineBench, make_request

SPARE = 16
CONTEXT = 160
LENGTH = 40


def _request(i: int = 0, **changes: Any) -> SequenceRequest:
    options = {"prompt": [70 + i, 71, 72], "max_tokens": LENGTH, "ignore_eos": True, **changes}
    return make_request(i, **options)


class _Pair:
    """An engine with a draft model on fake backends."""

    def __init__(
        self,
        requests: Sequence[SequenceRequest],
        slots: int = 1,
        *,
        cells: int | None = None,
        is_wrong: Callable[[int], bool] = lambda _: False,
        fails: Callable[[TokenBatch], int] = lambda _: 0,
        window: int | None = None,
        draft_s: dict[int, float] | None = None,
        draft_vocabulary: int = VOCABULARY_SIZE,
        draft_batch: int = 24,
        **options: Any,
    ) -> None:
        context = min(CONTEXT, cells or CONTEXT)
        limits = NativeLimits(64, slots + SPARE, slots, context, VOCABULARY_SIZE, cells=cells)
        draft_limits = NativeLimits(
            draft_batch, slots, slots, context, draft_vocabulary, cells=cells
        )
        self.draft = FakeDraftBackend(
            draft_limits, guess_of(requests, is_wrong=is_wrong), fails, window
        )
        can_trim = options.pop("can_trim", True)
        self.engine = EngineBench(
            FakeBackend(limits, can_trim=can_trim),
            draft_model=make_draft_model(self.draft, draft_s, VOCABULARY_SIZE),
            **options,
        )

    @property
    def num_drafted_rows(self) -> int:
        """The tokens that the draft model has computed."""
        return sum(len(batch.tokens) for batch in self.draft.batches)

    def run(self, *requests: SequenceRequest) -> None:
        self.engine.submit(*requests)
        self.engine.run()


def _run(*requests: SequenceRequest, **options: Any) -> _Pair:
    pair = _Pair(requests, **options)
    pair.run(*requests)
    return pair


def _plain_tokens(request: SequenceRequest) -> list[int]:
    limits = NativeLimits(64, 1, 1, CONTEXT, VOCABULARY_SIZE)
    bench = EngineBench(FakeBackend(limits))
    bench.submit(request)
    bench.run()
    return bench.tokens(request.sequence_id)


def test_a_text_without_repetitions_is_drafted_by_the_model() -> None:
    """Prompt lookup finds nothing in it. What the model is wrong about is rejected."""
    request = _request()
    pair = _run(request, is_wrong=lambda length: length % 7 == 0)

    finished = pair.engine.finished(0)
    assert pair.engine.tokens(0) == _plain_tokens(request)
    assert finished.by_draft_model == (finished.num_drafted, finished.num_accepted)
    assert 0 < finished.num_accepted < finished.num_drafted
    assert pair.engine.engine.num_steps == 1 + (LENGTH - 1) - finished.num_accepted


def test_each_draft_computes_only_what_the_last_one_left() -> None:
    """After a draft that was accepted as a whole two tokens, else one; the prompt once."""
    pair = _run(_request())

    finished = pair.engine.finished(0)
    steps = pair.engine.engine.num_steps - 1
    assert finished.num_accepted == finished.num_drafted
    assert pair.num_drafted_rows == 3 + LENGTH - 1 - 1
    assert sum(len(batch.tokens) > 1 for batch in pair.draft.batches) == steps


def test_drafts_of_both_methods_are_counted() -> None:
    """A prediction is drafted by prompt lookup, what follows it by the model."""
    request = _request(max_tokens=60)
    expected = _plain_tokens(request)
    request = _request(max_tokens=60, predicted=array("i", expected[:30]))
    pair = _run(request)

    finished = pair.engine.finished(0)
    by_model = finished.by_draft_model
    loads = [event for event in pair.engine.events if isinstance(event, ModelLoad)]
    assert pair.engine.tokens(0) == expected
    assert 0 < by_model.accepted < finished.num_accepted
    assert loads[-1].by_draft_model == by_model
    assert loads[-1].draft_tokens == finished.num_drafted > by_model.drafted


def test_a_long_prompt_is_computed_in_chunks_beside_other_sequences() -> None:
    """Meanwhile there are no drafts for it, and its tokens come one by one."""
    long = _request(1, prompt=[80 + i % 40 for i in range(90)], max_tokens=60)
    short = _request(0, max_tokens=60)
    pair = _run(short, long, slots=2)

    sizes = [len(batch.tokens) for batch in pair.draft.batches]
    assert max(sizes) <= 24
    assert pair.engine.tokens(1) == _plain_tokens(long)
    assert pair.engine.tokens(0) == _plain_tokens(short)
    assert pair.engine.finished(1).by_draft_model.accepted > 0


def test_a_prompt_is_not_computed_for_few_tokens() -> None:
    """Its time is spread over as many steps as there are output tokens: 90 tokens that take nine
    steps in all pay after some tokens only."""
    long = _request(0, prompt=[80 + i % 40 for i in range(90)], max_tokens=60)
    times = {"measured": {1: 1.0}, "token_times": {1: 1.0, 16: 1.2}, "draft_s": {1: 0.1}}
    pair = _run(long, **times)

    first = next(i for i, d in enumerate(pair.engine.deltas(0)) if len(d.tokens) > 1)
    assert 5 < first < 40
    assert pair.engine.finished(0).by_draft_model.accepted > 0
    assert not _run(_request(0, prompt=long.prompt, max_tokens=5), **times).draft.batches


@pytest.mark.parametrize("draft_s", [0.1, 1.0])
def test_a_slow_model_does_not_draft(draft_s: float) -> None:
    """Each of its steps takes as long as one without drafts, or a tenth."""
    times = {"measured": {1: 1.0}, "token_times": {1: 1.0, 16: 1.2}}
    pair = _run(_request(max_tokens=TRIAL_INTERVAL), draft_s={1: draft_s}, **times)

    assert (pair.engine.finished(0).num_drafted > 0) is (draft_s < 1)


def test_a_model_that_is_wrong_is_not_asked_any_more() -> None:
    """Its acceptance rate falls with each of its drafts; one that runs alone tries it again."""
    request = _request(max_tokens=TRIAL_INTERVAL)
    pair = _run(
        request,
        is_wrong=lambda _: True,
        draft_s={1: 0.1},
        measured={1: 1.0},
        token_times={1: 1.0, 16: 1.2},
    )

    assert pair.engine.tokens(0) == _plain_tokens(request)
    assert pair.engine.finished(0).by_draft_model.accepted == 0
    assert 0 < pair.engine.finished(0).by_draft_model.drafted < TRIAL_INTERVAL / 2


def test_a_model_that_was_wrong_is_tried_again_by_a_sequence_alone() -> None:
    """Once in `TRIAL_INTERVAL` steps; what it says then may be right."""
    request = _request(max_tokens=150, prompt=[70, 71])
    pair = _run(
        request,
        slots=4,
        is_wrong=lambda length: length < 40,
        draft_s={1: 0.1, 4: 0.1},
        draft_batch=100,
        measured={1: 1.0},
        token_times={1: 1.0, 16: 1.2},
    )

    assert pair.engine.finished(0).by_draft_model.accepted > 20


def test_the_method_is_that_of_each_sequence() -> None:
    """Beside a text that its prediction drafts, the model computes another one only."""
    first = _request(0, max_tokens=60)
    first = _request(0, max_tokens=60, predicted=array("i", _plain_tokens(first)))
    second = _request(1, max_tokens=60)
    pair = _run(first, second, slots=2, is_wrong=lambda length: length % 4 == 0)

    by_model = [pair.engine.finished(i).by_draft_model for i in (0, 1)]
    assert by_model[0].drafted < by_model[1].drafted
    assert pair.engine.finished(0).num_accepted > 40


@pytest.mark.parametrize(("draft_s", "drafts"), [(0.1, True), (0.3, False)])
def test_a_step_for_which_others_wait_is_not_prolonged_much(draft_s: float, drafts: bool) -> None:
    """With 0.3 of a step for a token, and as much for the text before, a draft would pay."""
    requests = [_request(i, max_tokens=30) for i in (0, 1)]
    pair = _run(
        *requests,
        slots=2,
        draft_s={1: draft_s, 2: draft_s},
        measured={1: 1.0, 2: 1.0},
        token_times={1: 1.0, 16: 1.0},
    )

    assert any(pair.engine.finished(i).num_drafted for i in (0, 1)) is drafts


def test_a_prompt_takes_no_longer_than_half_a_step_for_which_others_wait() -> None:
    """16 tokens at least: a token takes a tenth of a step."""
    requests = [
        _request(i, prompt=[80 + i, *(81 + j % 40 for j in range(60))], max_tokens=60)
        for i in (0, 1)
    ]
    pair = _run(
        *requests,
        slots=2,
        draft_s={1: 0.1, 2: 0.1},
        measured={1: 1.0, 2: 1.0},
        token_times={1: 1.0, 16: 1.0},
    )

    assert max(len(batch.tokens) for batch in pair.draft.batches) == 16 + 2


def test_the_cells_of_another_slot_are_copied() -> None:
    """A second choice has the prompt of the first one, which its slot lacks."""
    prompt = [80 + i % 40 for i in range(60)]
    first, second = (_request(i, prompt=prompt, seed=3, choice=0) for i in range(2))
    pair = _Pair([first], slots=2, is_wrong=lambda length: length % 2 == 0)
    pair.engine.submit(first)
    while not pair.draft.batches:
        pair.engine.step()
    pair.engine.submit(second)
    pair.engine.run()

    assert pair.draft.num_copies == 1
    copied = [(batch.slots == 1) & (batch.positions < 60) for batch in pair.draft.batches]
    assert sum(int(each.sum()) for each in copied) < 30
    assert pair.engine.finished(1).by_draft_model.accepted > 0
    assert pair.engine.tokens(1) == _plain_tokens(second)


@pytest.mark.parametrize("together", [False, True])
def test_cells_of_another_cache_key_are_neither_copied_nor_kept(*, together: bool) -> None:
    """Else the time of a draft would tell a project what another one has sent."""
    prompt = [80 + i % 40 for i in range(60)]
    first, second = (
        _request(i, prompt=prompt, cache_key=key) for i, key in enumerate((b"a", b"b"))
    )
    pair = _Pair([first], slots=1 + together)
    if together:
        pair.run(first, second)
    else:
        pair.run(first)
        pair.run(second)

    assert pair.draft.num_copies == 0
    assert sum(int((batch.positions < 60).sum()) for batch in pair.draft.batches) == 2 * 60


def test_the_next_turn_keeps_the_cells_of_the_last_one() -> None:
    """Of a slot whose owner has ended, what the next sequence has too."""
    requests = [first := _request(0, prompt=[80 + i % 40 for i in range(60)])]
    pair = _Pair(requests)
    pair.run(first)
    computed = pair.num_drafted_rows
    answer = pair.engine.tokens(0)
    second = _request(1, prompt=[*first.prompt, *answer[:30]], max_tokens=20)
    requests.insert(0, second)
    pair.run(second)

    assert pair.engine.finished(1).by_draft_model.accepted > 0
    assert pair.num_drafted_rows - computed < 60


@pytest.mark.parametrize(
    "changes",
    [{"max_draft": 0}, {"max_tokens": 1}, {"max_tokens": 2}],
    ids=["disabled", "one", "two"],
)
def test_there_is_no_draft_without_use(changes: dict[str, Any]) -> None:
    """The request forbids it, or the last token needs no draft."""
    assert not _run(_request(**changes)).draft.batches


def test_a_backend_that_cannot_trim_has_no_drafts() -> None:
    """Rejected tokens could not be removed."""
    assert not _run(_request(), can_trim=False).draft.batches


def test_there_are_no_drafts_after_a_failed_decode() -> None:
    """The outputs are those without drafts, and the failure affects no sequence."""
    calls = []

    def fail_third(batch: TokenBatch) -> int:
        calls.append(batch)
        return -2 if len(calls) == 3 else 0

    requests = [_request(0), _request(1)]
    pair = _run(*requests, slots=2, fails=fail_third)

    assert [pair.engine.tokens(i) for i in (0, 1)] == [_plain_tokens(each) for each in requests]
    assert len(calls) == 3


def test_shared_cells_are_left_to_the_sequences_that_draft() -> None:
    """In the unified layout the cells of ended sequences are removed, before a decode call of the
    draft model fails for want of cells."""
    requests = [
        _request(i, prompt=[80 + 9 * i + j % 40 for j in range(40)], max_tokens=count)
        for i, count in enumerate((10, 115))
    ]
    pair = _Pair(requests, slots=2, cells=180)
    pair.run(*requests)

    assert {slot for batch in pair.draft.batches for slot in batch.slots.tolist()} == {0, 1}
    assert pair.engine.finished(1).num_accepted == pair.engine.finished(1).num_drafted
    assert len(pair.engine.deltas(1)) < 14


def test_a_draft_ends_with_the_end_of_the_text() -> None:
    """What would follow it is not drafted."""
    request = _request(max_tokens=60, ignore_eos=False)
    limits = NativeLimits(24, 1, 1, CONTEXT, VOCABULARY_SIZE)
    draft = FakeDraftBackend(limits, lambda _: END_TOKEN)
    bench = EngineBench(
        FakeBackend(NativeLimits(64, 1 + SPARE, 1, CONTEXT, VOCABULARY_SIZE)),
        draft_model=make_draft_model(draft),
    )
    bench.submit(request)
    bench.step()
    bench.step()

    assert len(draft.batches) == 1


def test_a_model_whose_window_has_moved_on_computes_the_text_again() -> None:
    """It cannot go back to where another sequence differs."""
    first = _request(0, prompt=[80 + i % 40 for i in range(60)])
    second = _request(1, prompt=[*first.prompt[:20], *range(80, 110)])
    pair = _Pair([first, second], window=8)
    pair.run(first)
    pair.run(second)

    assert pair.engine.tokens(1) == _plain_tokens(second)
    assert pair.engine.finished(1).by_draft_model.accepted > 0


def test_a_text_beside_pictures_is_not_drafted(tmp_path: Path) -> None:
    """The model cannot read them."""
    chunk = write_fake_chunk(tmp_path, "picture", 8)
    request = media_request(0, [[65], chunk, [66]], max_tokens=30, ignore_eos=True)
    limits = NativeLimits(64, 1 + SPARE, 1, CONTEXT, VOCABULARY_SIZE, vector_width=1)
    draft = FakeDraftBackend(NativeLimits(24, 1, 1, CONTEXT, VOCABULARY_SIZE), guess_of([]))
    bench = EngineBench(FakeBackend(limits), draft_model=make_draft_model(draft))
    bench.submit(request)
    bench.run()

    assert len(bench.tokens(0)) == 30
    assert not draft.batches


def test_a_flush_empties_the_draft_model() -> None:
    """What a project has sent is nowhere any more."""
    pair = _run(_request())
    assert pair.draft.used_cells > 0
    pair.engine.engine.flush(1)

    assert pair.draft.used_cells == 0
    assert pair.engine.finished(0).by_draft_model > DraftTokens()


@pytest.mark.parametrize("size", [VOCABULARY_SIZE // 2, VOCABULARY_SIZE + 8])
def test_a_draft_model_may_have_more_or_fewer_tokens(size: int) -> None:
    """It computes none that it does not have, and drafts none that the model does not have."""
    request = _request(prompt=[VOCABULARY_SIZE - 1, 71, 72])
    pair = _Pair([request], draft_vocabulary=size)
    pair.draft.guess = lambda tokens: size - 1 if len(tokens) % 3 else 70
    pair.run(request)

    assert pair.num_drafted_rows > LENGTH / 2
    assert all(batch.tokens.max() < size for batch in pair.draft.batches)
    assert pair.engine.tokens(0) == _plain_tokens(request)
