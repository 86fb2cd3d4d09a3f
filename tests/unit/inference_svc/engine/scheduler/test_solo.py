"""Deterministic sequences have decode calls of their own, of shapes that nothing else changes."""

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

DEAR_HOLES = {1: 9.0, 2: 9.1, 3: 9.2, 4: 9.3}


def _alone(sequence_id: int, **changes: Any) -> SequenceRequest:
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
    """The positions in each decode call of a sequence, from its start to its end. Beside others its
    slot may only be filled."""
    known = len(bench.backend.batches)
    while not any(isinstance(e, Finished) and e.sequence_id == sequence_id for e in bench.events):
        bench.step()
    slot = bench.started(sequence_id).slot
    batches = [batch for batch in bench.backend.batches[known:] if slot in batch.slots]
    alone = [batch for batch in batches if set(batch.slots.tolist()) == {slot}]
    filled = [batch for batch in batches if len(set(batch.slots.tolist())) > 1]
    assert all(batch.tokens[batch.slots == slot].tolist() == [0] for batch in filled)
    return [batch.positions.tolist() for batch in alone]


def test_calls_have_the_same_shape_as_alone() -> None:
    """Neighbours, fillers and budgets change neither prompt chunks nor rows."""
    quiet = EngineBench(step_times=DEAR_HOLES, chunk_cap=8)
    quiet.submit(_alone(0))
    expected = _shapes(quiet, 0)
    busy = EngineBench(step_times=DEAR_HOLES, chunk_cap=8)
    busy.submit(*(make_request(i, range(60, 90), max_tokens=30) for i in (1, 2)))
    busy.step()
    busy.submit(_alone(0), make_request(3, range(60, 100)))

    assert [len(positions) for positions in expected] == [8, 8, 4, 1, 1, 1, 1]
    assert _shapes(busy, 0) == expected
    assert busy.tokens(0) == quiet.tokens(0)


def test_one_deterministic_prompt_computes_a_chunk_per_step() -> None:
    """Several deterministic prompts take turns, so the step time is bounded."""
    backend = FakeBackend(NativeLimits(64, 4, 4, 128, VOCABULARY_SIZE))
    bench = EngineBench(backend, chunk_cap=8)
    bench.submit(*(_alone(i) for i in range(4)))
    bench.step()

    assert [len(batch.tokens) for batch in backend.batches] == [8]
    bench.run()
    assert all(len(bench.tokens(i)) == 5 for i in range(4))


def test_waiting_raises_the_priority_of_deterministic_sequences() -> None:
    """Among equals, the highest response ratio is next."""
    now = 2 * AGING_S
    old = Sequence(_alone(0, priority=1, deadline=9000.0), arrived_at=0.0)
    urgent = Sequence(_alone(1, priority=3, deadline=100.0), arrived_at=now - 1)

    assert select_deterministic([old, urgent], now - 0.5) == [urgent]
    assert select_deterministic([urgent, old], now) == [old]


def test_resumed_tokens_are_computed_one_by_one() -> None:
    """The calls have the shapes they had when the tokens were sampled."""
    bench = EngineBench(chunk_cap=8)
    bench.submit(_alone(0))
    bench.run()
    whole = bench.tokens(0)
    resumed = EngineBench(chunk_cap=8)
    resumed.submit(_alone(0, resumed=array("i", whole[:3])))

    assert [len(positions) for positions in _shapes(resumed, 0)] == [8, 8, 4, 1, 1, 1, 1]
    assert resumed.tokens(0) == whole[3:]


def test_a_late_grammar_does_not_change_the_chunks_of_a_prompt() -> None:
    """A deterministic prompt waits for its grammar."""
    shapes = []
    for builds_after in (0, 3):
        bench = EngineBench(FakeBackend(builds_after=builds_after), chunk_cap=8)
        bench.submit(_alone(0, constraint=Constraint("a*", "response_format")))
        shapes.append(_shapes(bench, 0))

    assert shapes[0] == shapes[1]
