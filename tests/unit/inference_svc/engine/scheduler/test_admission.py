"""Preemption of batch work by interactive work."""

import pytest

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.events import ModelLoad, Preempted, Resumed, Started
from inference_svc.engine.kv_cache.allocator import MIN_REUSED_TOKENS
from inference_svc.engine.scheduler.queue import AGING_S, RECENT_S
from tests.support.fake_backend import VOCABULARY_SIZE, FakeBackend
from tests.support.sequences import EngineBench, expected_tokens, make_request

PLENTY = 10**6


def _bench(slots: int = 1, saved_bytes: int = PLENTY, batch_tokens: int = 64) -> EngineBench:
    limits = NativeLimits(batch_tokens, slots, slots, 256, VOCABULARY_SIZE)
    return EngineBench(FakeBackend(limits), saved_bytes=saved_bytes)


def _preempted(bench: EngineBench) -> list[int]:
    return [event.sequence_id for event in bench.events if isinstance(event, Preempted)]


@pytest.mark.parametrize("steps", [1, 4])
def test_batch_work_is_preempted_and_resumes(steps: int) -> None:
    """During prefill or decode; every token is emitted and computed once."""
    prompt = [70 + i % 9 for i in range(30)]
    bench = _bench()
    bench.submit(make_request(0, prompt=prompt, priority=1, max_tokens=10))
    for _ in range(steps):
        bench.step()
    bench.submit(make_request(1, priority=3, max_tokens=3))
    bench.step()
    assert _preempted(bench) == [0]
    started = [event.sequence_id for event in bench.events if isinstance(event, Started)]
    assert started == [0, 1]  # in the same step
    bench.run()

    assert bench.tokens(0) == expected_tokens(prompt, 10)
    assert bench.tokens(1) == expected_tokens([65, 66, 67], 3)
    assert [event for event in bench.events if isinstance(event, Resumed)] == [Resumed(0, 0)]
    assert len([event for event in bench.events if isinstance(event, Started)]) == 2
    computed = sum(len(batch.tokens) for batch in bench.backend.batches)
    assert computed == 30 + 9 + 3 + 2


def test_only_the_newest_batch_work_is_preempted() -> None:
    """One slot is needed, so one sequence is preempted."""
    bench = _bench(3)
    bench.submit(*(make_request(i, priority=priority) for i, priority in enumerate([1, 2, 1])))
    bench.step()
    bench.submit(make_request(3, priority=3, max_tokens=2))
    bench.step()

    assert _preempted(bench) == [2]
    bench.run()
    assert [len(bench.tokens(i)) for i in range(4)] == [8, 8, 8, 2]


@pytest.mark.parametrize(("running", "waiting"), [(2, 3), (1, 2), (3, 3)])
def test_only_interactive_work_preempts_and_only_batch_work(running: int, waiting: int) -> None:
    """All other combinations wait in the queue."""
    bench = _bench()
    bench.submit(make_request(0, priority=running))
    bench.step()
    bench.submit(make_request(1, priority=waiting))
    bench.run()

    assert _preempted(bench) == []


def test_there_is_no_preemption_without_memory() -> None:
    """The cells of the preempted sequence could not be saved."""
    bench = _bench(saved_bytes=0)
    bench.submit(make_request(0, priority=1))
    bench.step()
    bench.submit(make_request(1, priority=3))
    bench.run()

    assert _preempted(bench) == []
    assert len(bench.tokens(0)) == 8


def test_promoted_batch_work_is_not_preempted() -> None:
    """Batch work completes even under a constant load of interactive work."""
    bench = _bench()
    bench.submit(make_request(0, priority=1, max_tokens=6))
    bench.step()
    bench.submit(make_request(1, priority=3, max_tokens=2))
    bench.step()
    bench.clock.now = 2 * AGING_S
    while not bench.tokens(1):
        bench.step()
    while len(bench.tokens(0)) < 3:
        bench.step()
    bench.submit(make_request(4, priority=3, max_tokens=2))
    bench.run()
    assert _preempted(bench) == [0]
    assert len(bench.tokens(0)) == 6

    bench.submit(make_request(2, priority=1, max_tokens=9))
    bench.clock.now += 0.1
    bench.step()
    bench.submit(make_request(3, priority=3, max_tokens=2))
    bench.step()
    assert _preempted(bench) == [0, 2]


def test_interactive_work_preempts_past_aged_work() -> None:
    """Batch work at the head of the queue may not preempt, and does not block the next one."""
    bench = _bench()
    bench.submit(
        make_request(0, priority=1, max_tokens=6), make_request(1, priority=1, max_tokens=6)
    )
    bench.step()
    bench.clock.now = 2 * AGING_S
    bench.submit(make_request(2, priority=3, max_tokens=2))
    bench.step()
    assert _preempted(bench) == [0]
    bench.run()

    started = [event.sequence_id for event in bench.events if isinstance(event, Started)]
    assert started == [0, 2, 1]
    assert [len(bench.tokens(i)) for i in range(3)] == [6, 6, 2]


def test_the_next_newest_is_preempted_if_the_newest_cannot_be() -> None:
    """The cells of the newest are being copied in this step."""
    system = [65 + i % 26 for i in range(60)]
    bench = _bench(3)
    bench.submit(make_request(0, priority=1, max_tokens=20))
    bench.submit(make_request(1, prompt=system, priority=1, max_tokens=20))
    while not bench.tokens(1):
        bench.step()
    bench.submit(make_request(2, prompt=[*system, 1], priority=3))
    bench.submit(make_request(3, prompt=[98, 99], priority=3))
    bench.step()
    assert _preempted(bench) == [0]
    bench.run()

    assert bench.tokens(0) == expected_tokens([65, 66, 67], 20)
    assert bench.tokens(3) == expected_tokens([98, 99], 8)


def test_a_leader_of_interactive_work_keeps_its_slot() -> None:
    """The waiting sequence needs the prefix that it computes."""
    system = [65 + i % 26 for i in range(90)]
    bench = _bench(2, batch_tokens=16)
    bench.submit(make_request(0, prompt=[*system, 1], priority=1, max_tokens=2))
    bench.submit(make_request(1, prompt=[97] * 5, priority=2, max_tokens=3))
    bench.step()
    bench.submit(make_request(2, prompt=[*system, 2], priority=3, max_tokens=2))
    bench.step()

    assert _preempted(bench) == []
    bench.run()
    started = bench.started(2)
    assert started.cached_tokens > len(system) - MIN_REUSED_TOKENS


def test_a_preempted_sequence_can_be_cancelled() -> None:
    """Its saved cells are freed."""
    bench = _bench()
    bench.submit(make_request(0, priority=1, max_tokens=50))
    bench.step()
    bench.submit(make_request(1, priority=3, max_tokens=3))
    bench.step()
    bench.engine.cancel(0, arrived_in_step=2, step=3)
    bench.run()

    load = [event for event in bench.events if isinstance(event, ModelLoad)][-1]
    assert load.saved.num_bytes == 0
    assert len(bench.tokens(1)) == 3


def test_a_sequence_is_not_preempted_while_its_cells_are_copied() -> None:
    """One interactive request reuses its prefix; the next one preempts it a step later."""
    system = [65 + i % 26 for i in range(60)]
    bench = _bench(2)
    bench.submit(make_request(0, prompt=system, priority=1, max_tokens=20))
    while not bench.tokens(0):
        bench.step()
    prompts = {1: [*system, 1], 2: [98, 99]}
    bench.submit(*(make_request(i, prompt=prompt, priority=3) for i, prompt in prompts.items()))
    bench.step()
    assert _preempted(bench) == []
    bench.step()
    assert _preempted(bench) == [0]
    bench.run()

    for i, prompt in prompts.items():
        assert bench.tokens(i) == expected_tokens(prompt, 8)
    assert bench.tokens(0) == expected_tokens(system, 20)


def test_the_load_counts_preemptions() -> None:
    """`num_preempted` is a gauge, `num_preemptions` a counter."""
    bench = _bench()
    bench.submit(make_request(0, priority=1, max_tokens=10))
    bench.step()
    bench.submit(make_request(1, priority=3, max_tokens=3))
    bench.clock.now = 1.0
    bench.step()
    loads = [event for event in bench.events if isinstance(event, ModelLoad)]
    assert (loads[-1].num_preempted, loads[-1].num_preemptions) == (1, 1)
    bench.run()
    loads = [event for event in bench.events if isinstance(event, ModelLoad)]

    assert (loads[-1].num_preempted, loads[-1].num_preemptions) == (0, 1)


@pytest.mark.parametrize(
    ("running", "preempted"),
    [
        ([(2, 30), (1, 10), (2, 20)], [1]),
        ([(1, 10), (2, 30)], [0]),
        ([(2, 10), (2, 30), (2, 20)], [1]),
        ([(3, 10), (3, 20)], [1]),
        ([(1, 30)], []),
    ],
)
def test_a_lack_of_cells_preempts_the_lowest_priority_with_most_cells(
    running: list[tuple[int, int]], preempted: list[int]
) -> None:
    """Of any priority, but never the only one: its cells always fit."""
    bench = _bench(3)
    for i, (priority, length) in enumerate(running):
        bench.submit(make_request(i, [65 + i] * length, priority=priority, max_tokens=50))
        while not bench.tokens(i):
            bench.step()

    assert bench.engine._runner.admission.free_cells() is bool(preempted)
    bench.step()
    assert _preempted(bench) == preempted


def test_a_project_leaves_a_slot_to_another_that_used_the_model() -> None:
    """Its next request starts at once. Nothing is left for it a minute later."""
    bench = _bench(4)
    bench.submit(make_request(0, project="b", max_tokens=2))
    bench.submit(*(make_request(i, project="a", max_tokens=50) for i in range(1, 9)))
    for _ in range(5):
        bench.step()
    with_one_left = len(bench.engine.running)
    bench.submit(make_request(10, project="b", max_tokens=2))
    bench.step()
    started = [event.sequence_id for event in bench.events if isinstance(event, Started)]
    for _ in range(5):
        bench.step()
    bench.clock.now += RECENT_S
    bench.step()

    assert with_one_left == 3
    assert started[-1] == 10
    assert len(bench.engine.running) == 4


def test_batch_work_does_not_keep_its_project_from_the_last_slot() -> None:
    """Others' interactive work preempts it."""
    bench = _bench(4)
    bench.submit(make_request(0, project="b", max_tokens=2))
    bench.submit(
        *(make_request(i, project="a", priority=1, max_tokens=50) for i in range(1, 9)),
    )
    for _ in range(5):
        bench.step()
    bench.submit(make_request(10, project="a", priority=3, max_tokens=50))
    bench.step()

    assert len(bench.engine.running) == 4
    assert _preempted(bench) == []
