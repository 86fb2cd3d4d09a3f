"""The unified layout: all slots share one pool of cells."""

from typing import Any

import pytest

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.constraint import Constraint
from inference_svc.engine.events import CacheSource, Preempted, Started
from tests.support.fake_backend import VOCABULARY_SIZE, FakeBackend
from tests.support.sequences import EngineBench, expected_tokens, make_request

SLOTS = 4
NO_END = 10**6
SYSTEM = [100 + i % 7 for i in range(80)]


def _bench(cells: int, **options: Any) -> EngineBench:
    """An engine with four slots that share a pool of `cells`."""
    limits = NativeLimits(256, SLOTS, SLOTS, cells, VOCABULARY_SIZE, cells=cells)
    return EngineBench(FakeBackend(limits, end_after=NO_END), chunk_cap=256, **options)


def _request(i: int, prompt: list[int], tokens: int, **changes: Any) -> Any:
    options = {"max_tokens": tokens, "ignore_eos": True, "max_draft": 0, **changes}
    return make_request(i, prompt, **options)


def test_a_shared_prefix_uses_its_cells_once() -> None:
    """Four sequences with one prompt run in less than twice its cells."""
    bench = _bench(280)
    bench.submit(_request(0, [*SYSTEM, 97], 30))
    bench.step()
    bench.submit(*(_request(i, [*SYSTEM, 97 + i], 30) for i in (1, 2, 3)))
    bench.step()
    bench.step()

    assert len(bench.engine.running) == SLOTS
    assert bench.backend.used_cells < 2 * len(SYSTEM)
    bench.run()
    for i in range(SLOTS):
        assert bench.tokens(i) == expected_tokens([*SYSTEM, 97 + i], 30, end_after=NO_END)


def test_a_sequence_waits_for_free_cells() -> None:
    """A slot is free, but cells are not until another sequence ends."""
    bench = _bench(250)
    for i in range(3):
        bench.submit(_request(i, [65 + i] * 100, 10, cache_key=b"%d" % i))
    bench.step()
    assert [event.sequence_id for event in bench.events if isinstance(event, Started)] == [0]
    bench.run()

    for i in range(3):
        assert bench.tokens(i) == expected_tokens([65 + i] * 100, 10, end_after=NO_END)


def test_evicted_idle_prefixes_are_saved_in_memory() -> None:
    """A finished conversation is restored from there."""
    bench = _bench(200, saved_bytes=10**6)
    bench.submit(_request(0, SYSTEM, 4, cache_key=b"a"))
    bench.run()
    bench.submit(_request(1, [65] * 150, 4, cache_key=b"b"))
    bench.run()
    bench.submit(_request(2, [*SYSTEM, 97], 4, cache_key=b"a"))
    bench.run()

    assert bench.started(2)[2:4] == (len(SYSTEM), CacheSource.MEMORY)


def test_a_prefix_is_evicted_if_the_only_prompt_does_not_fit_beside_it() -> None:
    """Nothing else runs, so the longest prompt must start."""
    bench = _bench(200)
    bench.submit(_request(0, [*SYSTEM, *([65] * 110)], 4))
    bench.run()
    bench.submit(_request(1, [*SYSTEM[:40], *([66] * 155)], 4))
    bench.run()

    assert bench.tokens(1) == expected_tokens([*SYSTEM[:40], *([66] * 155)], 4, end_after=NO_END)


def test_idle_prefixes_that_share_all_cells_are_evicted_together() -> None:
    """Evicting only one of them would free no cells."""
    limits = NativeLimits(256, SLOTS, SLOTS, 200, VOCABULARY_SIZE, cells=200)
    bench = EngineBench(FakeBackend(limits, builds_after=NO_END), chunk_cap=256)
    for i in (0, 1):
        bench.submit(_request(i, SYSTEM, 4, constraint=Constraint("a", "constraint")))
        bench.step()
    for i in (0, 1):
        bench.engine.cancel(i, arrived_in_step=0, step=0)
    assert [bench.backend.freed_by(slot) for slot in (0, 1)] == [0, 0]
    bench.submit(_request(2, [65] * 150, 4))
    bench.run()

    assert bench.tokens(2) == expected_tokens([65] * 150, 4, end_after=NO_END)


def _exhaust_cells(bench: EngineBench) -> list[int]:
    """Run three sequences that need too many cells; return the ids of preempted ones in order."""
    for i, size in enumerate((20, 60, 40)):
        bench.submit(_request(i, [65 + i] * size, 120, cache_key=b"%d" % i))
    bench.run()
    return [event.sequence_id for event in bench.events if isinstance(event, Preempted)]


@pytest.mark.parametrize("saved_bytes", [10**6, 0], ids=["saved", "recomputed"])
def test_the_sequence_that_frees_most_cells_is_preempted_first(saved_bytes: int) -> None:
    """All outputs are correct, whether its cells are saved in memory or computed again."""
    bench = _bench(330, saved_bytes=saved_bytes)
    preempted = _exhaust_cells(bench)

    assert preempted[0] == 1
    for i, size in enumerate((20, 60, 40)):
        assert bench.tokens(i) == expected_tokens([65 + i] * size, 120, end_after=NO_END)


def test_the_lowest_priority_is_preempted_first() -> None:
    """Although it frees fewer cells."""
    bench = _bench(330, saved_bytes=10**6)
    bench.submit(_request(0, [65] * 20, 120, priority=1, cache_key=b"0"))
    bench.submit(_request(1, [66] * 100, 120, priority=3, cache_key=b"1"))
    bench.run()
    preempted = [event.sequence_id for event in bench.events if isinstance(event, Preempted)]

    assert preempted == [0]


def test_waiting_for_the_cells_of_a_paused_sequence_is_not_work() -> None:
    """The step loop checks from time to time."""
    bench = _bench(300)
    bench.submit(_request(0, [65] * 150, 10), _request(1, [66] * 150, 10))
    bench.step()
    bench.engine.pause(0, paused=True)
    bench.step()
    assert not bench.engine.has_work
    bench.engine.cancel(0, arrived_in_step=0, step=0)
    bench.step()
    bench.run()

    assert bench.tokens(1) == expected_tokens([66] * 150, 10, end_after=NO_END)
