"""Decode calls of deterministic sequences: separate, with shapes that do not depend on others."""

from array import array
from typing import Any

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.constraint import Constraint
from inference_svc.engine.events import Finished
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.scheduler.queue import AGING_S, select_deterministic
from inference_svc.engine.sequence import Sequence
from tests.support.fake_backend import VOCABULARY_SIZE, FakeBackend
from tests.support.sequences import EngineBench, make_request

EXPENSIVE_HOLES = {1: 9.0, 2: 9.1, 3: 9.2, 4: 9.3}


def _deterministic(sequence_id: int, **changes: Any) -> SequenceRequest:
    return make_request(
        sequence_id,
        range(65, 85),
        deterministic=True,
        reuse=False,
        max_tokens=5,
        ignore_eos=True,
        **changes,
    )


def _shapes(bench: EngineBench, sequence_id: int) -> list[list[int]]:
    """Run a sequence to its end; return the positions in each of its decode calls.

    Checks that its slot has only filler tokens in the calls of other sequences.
    """
    num_before = len(bench.backend.batches)
    while not any(
        isinstance(event, Finished) and event.sequence_id == sequence_id for event in bench.events
    ):
        bench.step()
    slot = bench.started(sequence_id).slot
    batches = [batch for batch in bench.backend.batches[num_before:] if slot in batch.slots]
    separate = [batch for batch in batches if set(batch.slots.tolist()) == {slot}]
    shared = [batch for batch in batches if len(set(batch.slots.tolist())) > 1]
    assert all(batch.tokens[batch.slots == slot].tolist() == [0] for batch in shared)
    return [batch.positions.tolist() for batch in separate]


def test_calls_have_the_same_shapes_in_an_idle_and_a_busy_engine() -> None:
    """Other sequences and fillers change neither prompt chunks nor rows."""
    idle = EngineBench(step_times=EXPENSIVE_HOLES, chunk_cap=8)
    idle.submit(_deterministic(0))
    expected = _shapes(idle, 0)
    busy = EngineBench(step_times=EXPENSIVE_HOLES, chunk_cap=8)
    busy.submit(*(make_request(i, range(60, 90), max_tokens=30) for i in (1, 2)))
    busy.step()
    busy.submit(_deterministic(0), make_request(3, range(60, 100)))

    assert [len(positions) for positions in expected] == [8, 8, 4, 1, 1, 1, 1]
    assert _shapes(busy, 0) == expected
    assert busy.tokens(0) == idle.tokens(0)


def test_one_deterministic_prompt_computes_a_chunk_per_step() -> None:
    """Several deterministic prompts take turns, which limits the step time."""
    backend = FakeBackend(NativeLimits(64, 4, 4, 128, VOCABULARY_SIZE))
    bench = EngineBench(backend, chunk_cap=8)
    bench.submit(*(_deterministic(i) for i in range(4)))
    bench.step()

    assert [len(batch.tokens) for batch in backend.batches] == [8]
    bench.run()
    assert all(len(bench.tokens(i)) == 5 for i in range(4))


def test_waiting_raises_the_priority_of_deterministic_sequences() -> None:
    """In one class, the sequence with the highest response ratio is next."""
    now = 2 * AGING_S
    aged = Sequence(_deterministic(0, priority=1, deadline=9000.0), arrived_at=0.0)
    urgent = Sequence(_deterministic(1, priority=3, deadline=100.0), arrived_at=now - 1)

    assert select_deterministic([aged, urgent], now - 0.5) == [urgent]
    assert select_deterministic([urgent, aged], now) == [aged]


def test_resumed_tokens_are_computed_one_by_one() -> None:
    """The calls have the shapes they had when the tokens were sampled."""
    bench = EngineBench(chunk_cap=8)
    bench.submit(_deterministic(0))
    bench.run()
    tokens = bench.tokens(0)
    resumed = EngineBench(chunk_cap=8)
    resumed.submit(_deterministic(0, resumed=array("i", tokens[:3])))

    assert [len(positions) for positions in _shapes(resumed, 0)] == [8, 8, 4, 1, 1, 1, 1]
    assert resumed.tokens(0) == tokens[3:]


def test_a_late_grammar_does_not_change_the_chunks_of_a_prompt() -> None:
    """The prompt waits for its grammar."""
    shapes = []
    for builds_after in (0, 3):
        bench = EngineBench(FakeBackend(builds_after=builds_after), chunk_cap=8)
        bench.submit(_deterministic(0, constraint=Constraint("a*", "response_format")))
        shapes.append(_shapes(bench, 0))

    assert shapes[0] == shapes[1]
