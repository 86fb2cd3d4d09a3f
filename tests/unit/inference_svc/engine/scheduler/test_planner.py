"""The decode calls of a step, the events of each, and changes between two of them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.constraint import Constraint
from inference_svc.engine.events import Delta, Event, Finished, Started
from inference_svc.engine.request import AppliedAdapter
from inference_svc.engine.sequence import Sequence
from tests.support.fake_backend import VOCABULARY_SIZE, FakeBackend
from tests.support.sequences import EngineBench, expected_tokens, make_request


def _bench() -> EngineBench:
    return EngineBench(FakeBackend(NativeLimits(256, 4, 4, 512, VOCABULARY_SIZE)), chunk_cap=256)


def _start_decoding(bench: EngineBench, *, max_tokens: int = 50) -> None:
    bench.submit(make_request(0, max_tokens=max_tokens))
    bench.step()


def _emitting_ids(events: list[Event]) -> list[int]:
    return [event.sequence_id for event in events if isinstance(event, Delta)]


def _slots(bench: EngineBench, start: int) -> list[set[int]]:
    return [set(batch.slots.tolist()) for batch in bench.backend.batches[start:]]


def test_decoded_tokens_are_emitted_before_prompts_are_computed() -> None:
    """A finished sequence also frees its slot before that."""
    bench = _bench()
    _start_decoding(bench, max_tokens=2)
    bench.submit(make_request(1, range(60, 100)))
    num_before = len(bench.backend.batches)

    events = bench.call()
    assert _emitting_ids(events) == [0]
    assert any(isinstance(event, Finished) for event in events)
    assert len(bench.backend.batches) == num_before + 1
    assert _emitting_ids(bench.call()) == [1]
    assert len(bench.backend.batches) == num_before + 2


def test_a_prompt_that_arrives_during_a_decode_call_is_computed_in_the_step() -> None:
    """It does not wait for the next decode call."""
    bench = _bench()
    _start_decoding(bench)
    bench.call()
    bench.submit(make_request(1, range(60, 100)))

    events = bench.call()
    assert [event.sequence_id for event in events if isinstance(event, Started)] == [1]
    assert _emitting_ids(events) == [1]
    bench.run()
    assert bench.tokens(1) == expected_tokens(range(60, 100), 8)


def test_a_first_token_is_emitted_before_unfinished_prompts_are_computed() -> None:
    """Unfinished prompts have a separate decode call."""
    bench = _bench()
    bench.submit(
        make_request(0, range(60, 100)), make_request(1, [200 + i % 40 for i in range(300)])
    )
    num_before = len(bench.backend.batches)

    assert _emitting_ids(bench.call()) == [0]
    bench.call()
    assert _slots(bench, num_before) == [{0}, {1}]


def test_a_sequence_cancelled_between_prefill_calls_is_not_computed() -> None:
    """Its slot may belong to another sequence by then."""
    bench = _bench()
    bench.submit(
        make_request(0, range(60, 100)), make_request(1, [200 + i % 40 for i in range(300)])
    )
    num_before = len(bench.backend.batches)
    bench.call()
    bench.engine.cancel(1, arrived_in_step=1, step=2)
    bench.engine.flush(1)

    bench.run()
    assert all(slots == {0} for slots in _slots(bench, num_before))
    assert bench.tokens(0) == expected_tokens(range(60, 100), 8)


def test_a_sequence_paused_during_a_decode_call_is_not_prefilled() -> None:
    """Although it was ready when the step started."""
    bench = _bench()
    _start_decoding(bench)
    bench.submit(make_request(1, range(60, 100)))
    bench.call()
    bench.engine.pause(1, paused=True)
    num_before = len(bench.backend.batches)

    bench.step()
    assert _slots(bench, num_before) == []
    bench.engine.pause(1, paused=False)
    bench.run()
    assert bench.tokens(1) == expected_tokens(range(60, 100), 8)


def test_an_adapter_reloaded_during_a_step_is_applied_again() -> None:
    """Although its digest is the same."""
    stack = (AppliedAdapter("a", 1.0),)
    bench = _bench()
    bench.engine.adapters.load("a", Path("a"))
    bench.submit(make_request(0, adapters=stack, max_tokens=50))
    bench.step()
    bench.call()
    bench.engine.cancel(0, arrived_in_step=1, step=2)
    bench.engine.adapters.unload("a")
    bench.engine.adapters.load("a", Path("a"))
    bench.submit(make_request(1, range(60, 100), adapters=stack))
    num_before = len(bench.backend.stacks)

    bench.run()
    assert set(bench.backend.stacks[num_before:]) == {stack}


@pytest.mark.parametrize("expires", [True, False])
def test_a_state_can_be_read_while_a_copy_of_it_is_queued(*, expires: bool) -> None:
    """The copy stays queued, because its target waits for a grammar."""
    limits = NativeLimits(256, 4, 4, 512, VOCABULARY_SIZE)
    bench = EngineBench(FakeBackend(limits, builds_after=20), chunk_cap=256, saved_bytes=10**6)
    prompt = range(60, 120)
    kept = make_request(0, prompt, max_tokens=99, keep=True, request_id="r", deadline=100.0)
    bench.submit(kept)
    bench.step()
    bench.call()
    bench.submit(make_request(1, prompt, constraint=Constraint("abc", "constraint")))
    bench.step()  # the remaining decode calls
    assert any(isinstance(e, Started) and e.sequence_id == 1 for e in bench.events)
    if expires:
        bench.clock.now = 101.0
        bench.call()

    assert bench.engine.snapshot("r", 0) is not None


def test_the_queue_is_scanned_again_in_a_step_only_if_a_request_arrives() -> None:
    """One scan in a step without arrivals, two in a step with one."""
    bench = _bench()
    _start_decoding(bench)
    scans: list[int] = []
    admit = bench.engine._runner.admission.admit

    def count_and_admit(prepare: Callable[[Sequence], bool]) -> None:
        scans.append(1)
        admit(prepare)

    bench.engine._runner.admission.admit = count_and_admit  # type: ignore[method-assign]
    bench.step()
    assert len(scans) == 1
    bench.call()
    bench.submit(make_request(1, range(60, 100)))
    bench.step()
    assert len(scans) == 3
