"""The decode calls of a step: what is told after each, and what may come between two."""

from inference_svc.engine.events import Delta, Event, Finished, Started
from inference_svc.engine.fake import VOCABULARY_SIZE, FakeBackend
from inference_svc.engine.token_batch import NativeLimits
from tests.support.sequences import Bench, a_request, said_alone


def _bench() -> Bench:
    return Bench(FakeBackend(NativeLimits(256, 4, 4, 512, VOCABULARY_SIZE)), chunk_cap=256)


def _speaking(bench: Bench, *, max_tokens: int = 50) -> None:
    """Have sequence 0 decode."""
    bench.submit(a_request(0, max_tokens=max_tokens))
    bench.step()


def _who(events: list[Event]) -> list[int]:
    return [event.sequence_id for event in events if isinstance(event, Delta)]


def _slots(bench: Bench, since: int) -> list[set[int]]:
    return [set(batch.slots.tolist()) for batch in bench.backend.batches[since:]]


def test_a_text_is_told_before_the_prompts_behind_it() -> None:
    """Its reader does not wait for them, nor does whoever comes when it has ended."""
    bench = _bench()
    _speaking(bench, max_tokens=2)
    bench.submit(a_request(1, range(60, 100)))
    known = len(bench.backend.batches)

    told = bench.call()
    assert _who(told) == [0]
    assert any(isinstance(event, Finished) for event in told)
    assert len(bench.backend.batches) == known + 1
    assert _who(bench.call()) == [1]
    assert len(bench.backend.batches) == known + 2


def test_a_prompt_that_comes_while_texts_are_computed_is_next() -> None:
    """It does not wait for their next token."""
    bench = _bench()
    _speaking(bench)
    bench.call()
    bench.submit(a_request(1, range(60, 100)))

    told = bench.call()
    assert [event.sequence_id for event in told if isinstance(event, Started)] == [1]
    assert _who(told) == [1]
    bench.run()
    assert bench.tokens(1) == said_alone(range(60, 100), 8)


def test_a_first_token_is_told_before_the_prompts_that_go_on() -> None:
    """They are computed in a call of their own."""
    bench = _bench()
    bench.submit(a_request(0, range(60, 100)), a_request(1, [200 + i % 40 for i in range(300)]))
    known = len(bench.backend.batches)

    assert _who(bench.call()) == [0]
    bench.call()
    assert _slots(bench, known) == [{0}, {1}]


def test_who_is_cancelled_between_two_calls_for_prompts_is_in_none() -> None:
    """Its slot has another owner by then, perhaps."""
    bench = _bench()
    bench.submit(a_request(0, range(60, 100)), a_request(1, [200 + i % 40 for i in range(300)]))
    known = len(bench.backend.batches)
    bench.call()
    bench.engine.cancel(1, arrived_in_step=1, step=2)
    bench.engine.flush(1)

    bench.run()
    assert all(slots == {0} for slots in _slots(bench, known))
    assert bench.tokens(0) == said_alone(range(60, 100), 8)


def test_who_is_paused_while_texts_are_computed_computes_no_prompt() -> None:
    """It was ready when the step began."""
    bench = _bench()
    _speaking(bench)
    bench.submit(a_request(1, range(60, 100)))
    bench.call()
    bench.engine.pause(1, paused=True)
    known = len(bench.backend.batches)

    bench.step()
    assert _slots(bench, known) == []
    bench.engine.pause(1, paused=False)
    bench.run()
    assert bench.tokens(1) == said_alone(range(60, 100), 8)
