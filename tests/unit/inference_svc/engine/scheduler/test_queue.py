"""The order in which waiting sequences start."""

from functools import partial

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.events import Failed, Finished, Started
from inference_svc.engine.scheduler.queue import (
    AGING_S,
    AdmissionQueue,
    PriorityAging,
    aged_priority,
)
from inference_svc.engine.sequence import Sequence
from svc_kit.errors import ContextLengthExceeded
from svc_kit.fairness import FairShare
from tests.support.fake_backend import VOCABULARY_SIZE, FakeBackend
from tests.support.sequences import EngineBench, make_request


def _queue(*sequences: Sequence, shares: FairShare[str] | None = None) -> AdmissionQueue:
    queue = AdmissionQueue(shares)
    for sequence in sequences:
        queue.push(sequence)
    return queue


def _order(queue: AdmissionQueue, now: float) -> list[int]:
    priority_of = partial(aged_priority, now=now)
    return [sequence.request.sequence_id for sequence in queue.in_order(priority_of)]


def _sequence(
    i: int, *, priority: int = 2, project: str = "p", arrived_at: float = 0.0
) -> Sequence:
    return Sequence(make_request(i, priority=priority, project=project), arrived_at=arrived_at)


def _one_slot(**options: object) -> EngineBench:
    return EngineBench(FakeBackend(NativeLimits(64, 1, 1, 128, VOCABULARY_SIZE)), **options)  # type: ignore[arg-type]


def _started_ids(bench: EngineBench) -> list[int]:
    return [event.sequence_id for event in bench.events if isinstance(event, Started)]


def test_the_queue_is_ordered_by_priority_then_arrival() -> None:
    """Interactive, normal and batch work."""
    queue = _queue(
        _sequence(0, priority=1),
        _sequence(1),
        _sequence(2, arrived_at=-1.0),
        _sequence(3, priority=3),
    )

    assert _order(queue, 0.0) == [3, 2, 1, 0]


def test_waiting_raises_the_priority() -> None:
    """After two aging periods, batch work competes with interactive work."""
    queue = _queue(_sequence(0, priority=1), _sequence(1, priority=3, arrived_at=2 * AGING_S - 1))

    assert _order(queue, 2 * AGING_S - 0.5) == [1, 0]
    assert _order(queue, 2 * AGING_S) == [0, 1]


def test_the_number_of_promoted_sequences_is_limited() -> None:
    """Two per class with 16 slots, never in succession; not counting paused or old ones."""
    aging, now = PriorityAging(16), 2 * AGING_S
    aged = [_sequence(i, priority=1) for i in range(9)]
    normal = _sequence(9)
    running: list[Sequence] = []

    def start(sequence: Sequence, *, at: float = now) -> int:
        aging.begin(running, at)
        aging.start(sequence)
        running.append(sequence)
        return sequence.admitted_priority

    assert [start(sequence) for sequence in aged[:5]] == [3, 1, 3, 1, 1]
    assert [start(normal), start(aged[5])] == [3, 1]
    aged[0].paused = True
    assert [start(aged[6]), start(aged[7])] == [3, 1]
    aging.begin(running, now)
    assert aging.priority_of(aged[8]) == 1
    aging.begin(running, now + AGING_S)
    assert [aging.priority_of(aged[8]), aging.priority_of(_sequence(10, arrived_at=now))] == [3, 3]
    aging.start(aged[8])
    assert aging.priority_of(_sequence(11)) == 2, "until others start"


def test_an_aged_backlog_gets_an_eighth_of_the_slots() -> None:
    """Although newer interactive work could use all slots."""
    limits = NativeLimits(256, 16, 16, 64, VOCABULARY_SIZE)
    bench = EngineBench(FakeBackend(limits))
    bench.submit(*(make_request(i, priority=1, max_tokens=30, ignore_eos=True) for i in range(8)))
    bench.clock.now = 2 * AGING_S
    bench.submit(*(make_request(i, priority=3, max_tokens=2) for i in range(8, 48)))
    for _ in range(6):
        bench.step()

    started = _started_ids(bench)
    assert [i for i in started if i < 8] == [0, 1]
    assert len(started) > 20


def test_a_lowered_priority_reorders_the_queue_during_iteration() -> None:
    """Although its project is not charged."""
    queue = _queue(_sequence(0, project="a"), _sequence(1, project="b"), _sequence(2, project="c"))
    classes = {0: 3, 1: 3, 2: 2}
    order = []
    for sequence in queue.in_order(lambda item: classes[item.request.sequence_id]):
        order.append(sequence.request.sequence_id)
        classes[1] = 1

    assert order == [0, 2, 1]


def test_an_aged_backlog_leaves_slots_to_newer_work() -> None:
    """With one slot, every second sequence that starts is an aged one."""
    bench = _one_slot()
    bench.submit(*(make_request(i, priority=1, max_tokens=2) for i in range(4)))
    bench.clock.now = 2 * AGING_S
    bench.submit(*(make_request(i, priority=3, max_tokens=2) for i in range(4, 6)))
    bench.run()

    assert _started_ids(bench) == [0, 4, 1, 5, 2, 3]


def test_the_least_served_project_comes_first() -> None:
    """The project that was charged less is ahead of one that came earlier."""
    shares = FairShare[str]()
    queue = _queue(_sequence(0, project="big"), _sequence(1, project="small"), shares=shares)
    shares.enter("big")
    shares.enter("small")
    shares.charge("big", 10)

    assert _order(queue, 0.0) == [1, 0]


def test_projects_take_turns() -> None:
    """A project with many earlier requests does not delay those of another."""
    bench = _one_slot()
    bench.submit(*(make_request(i, project="many", max_tokens=3) for i in range(6)))
    bench.submit(*(make_request(i, project="few", max_tokens=3, cache_key=b"few") for i in (6, 7)))
    bench.run()

    assert _started_ids(bench)[:4] == [0, 6, 1, 7]


class CountingShare(FairShare[str]):
    """Counts the calls of `served`: one for each computed rank."""

    num_calls = 0

    def served(self, key: str) -> float:
        self.num_calls += 1
        return super().served(key)


def test_iterating_the_queue_ranks_few_sequences_again() -> None:
    """Ranking all of 500 queued sequences for each admission would take a step's time."""
    shares = CountingShare()
    queue = _queue(*(_sequence(i, project=f"p{i % 2}") for i in range(500)), shares=shares)
    order = []
    for sequence in queue.in_order(partial(aged_priority, now=0.0)):
        if sequence.request.sequence_id == 10:
            shares.charge("p0", 1)
        order.append(sequence.request.sequence_id)

    assert order == [*range(11), *range(11, 500, 2), *range(12, 500, 2)]
    assert shares.num_calls < 3 * 500


def test_a_prompt_longer_than_a_slot_fails_at_once() -> None:
    """The error has its size and the limit; the next request runs."""
    bench = _one_slot()
    bench.submit(make_request(0, prompt=[65] * 129), make_request(1, max_tokens=2))
    bench.run()

    assert bench.failures() == {
        0: Failed(0, ContextLengthExceeded(field="prompt", prompt_tokens=129, context_tokens=128))
    }
    assert len(bench.tokens(1)) == 2


def test_chunks_beside_decoding_rows_keep_the_token_target() -> None:
    """Their size depends on the measured step time; alone, only the cap applies."""
    limits = NativeLimits(256, 4, 4, 256, VOCABULARY_SIZE)
    bench = EngineBench(
        FakeBackend(limits), chunk_cap=64, measured={1: 0.01, 4: 0.04}, token_target_s=0.215
    )
    bench.submit(make_request(0, prompt=[70] * 100, max_tokens=50, ignore_eos=True))
    bench.step()
    bench.step()
    bench.submit(make_request(1, prompt=[71] * 60, max_tokens=1))
    bench.step()

    assert [len(batch.tokens) for batch in bench.backend.batches] == [64, 36, 1, 20]


def test_a_chunk_may_be_larger_than_a_pass() -> None:
    """Beside decoding rows, its limit depends on the cap, not on the size of a pass."""
    limits = NativeLimits(256, 4, 4, 512, VOCABULARY_SIZE, ubatch_tokens=64)
    bench = EngineBench(FakeBackend(limits), chunk_cap=128, measured={1: 1.0, 4: 4.0})
    bench.submit(make_request(0, prompt=[70] * 400, max_tokens=50, ignore_eos=True))
    bench.clock.now = AGING_S - 1
    bench.submit(make_request(1, prompt=[71] * 40, max_tokens=50, ignore_eos=True))
    bench.step()
    first = bench.backend.batches[0]
    while len(bench.tokens(1)) < 2:
        bench.step()
    num_before = len(bench.backend.batches)
    bench.submit(*(make_request(i, prompt=[71 + i] * 400, max_tokens=1) for i in (2, 3)))
    bench.step()
    chunks = [len(batch.tokens) for batch in bench.backend.batches[num_before:]]

    assert first.tokens.tolist() == [71] * 40
    assert chunks == [1, 96]


def test_an_urgent_prompt_overtakes_long_ones() -> None:
    """It needs one step, which computes nothing else."""
    limits = NativeLimits(64, 8, 8, 512, VOCABULARY_SIZE)
    bench = EngineBench(FakeBackend(limits), chunk_cap=64)
    bench.submit(*(make_request(i, prompt=[70 + i] * 400, cache_key=b"%d" % i) for i in range(4)))
    bench.step()
    bench.submit(make_request(9, prompt=[65] * 40, priority=3, max_tokens=1))
    bench.step()

    assert len(bench.tokens(9)) == 1
    assert len(bench.backend.batches[-1].tokens) == 40


def test_a_stream_of_urgent_prompts_does_not_starve_others() -> None:
    """A long prompt is skipped four times, then computed beside them."""
    limits = NativeLimits(64, 8, 8, 512, VOCABULARY_SIZE)
    bench = EngineBench(FakeBackend(limits), chunk_cap=64)
    bench.submit(make_request(0, prompt=[70] * 200, max_tokens=1))
    bench.step()
    num_before = len(bench.backend.batches)
    for number in range(1, 6):
        bench.submit(make_request(number, prompt=[80 + number] * 40, priority=3, max_tokens=1))
        bench.step()

    assert [len(batch.tokens) for batch in bench.backend.batches[num_before:]] == [40] * 5 + [8]


def test_a_project_without_work_does_not_lower_the_share_of_new_ones() -> None:
    bench = _one_slot()
    bench.submit(make_request(0, project="finished", max_tokens=2))
    bench.submit(*(make_request(i, project="busy", max_tokens=9) for i in (1, 2)))
    while not any(isinstance(event, Finished) and event.sequence_id == 1 for event in bench.events):
        bench.step()
    bench.submit(make_request(3, project="new", max_tokens=2))
    bench.run()

    assert _started_ids(bench) == [0, 1, 2, 3]
