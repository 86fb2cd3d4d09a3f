"""Sequences that wait for a prefix instead of computing it again."""

from pathlib import Path

import pytest

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.events import CacheSource, ModelLoad, Preempted, Started
from inference_svc.engine.fake import VOCABULARY_SIZE, FakeBackend
from inference_svc.engine.request import AppliedAdapter, adapter_stack
from tests.support.sequences import EngineBench, expected_tokens, make_request

SYSTEM = [65 + i % 26 for i in range(100)]
CHUNK = 25


def _bench(slots: int = 8, **options: object) -> EngineBench:
    limits = NativeLimits(CHUNK, slots, slots, 256, VOCABULARY_SIZE)
    return EngineBench(FakeBackend(limits), chunk_cap=CHUNK, **options)  # type: ignore[arg-type]


def _prompt(i: int) -> list[int]:
    return [*SYSTEM, 200 + i]


def _started(bench: EngineBench) -> dict[int, Started]:
    events = [event for event in bench.events if isinstance(event, Started)]
    return {event.sequence_id: event for event in events}


def _computed(bench: EngineBench) -> int:
    return sum(len(batch.tokens) for batch in bench.backend.batches)


def test_a_common_prefix_is_computed_once() -> None:
    """Eight at the same moment: one computes, seven take it over the moment it is there."""
    bench = _bench()
    bench.submit(*(make_request(i, prompt=_prompt(i), max_tokens=1) for i in range(8)))
    bench.run()

    assert _computed(bench) == len(SYSTEM) + 8
    assert {event.source for i, event in _started(bench).items() if i} <= {
        CacheSource.LIVE,
        CacheSource.SLOT,
    }
    for i in range(8):
        assert bench.tokens(i) == expected_tokens(_prompt(i), 1)


def test_followers_hold_nobody_else_back() -> None:
    """Who shares nothing starts at once, from behind them in the queue."""
    bench = _bench(2)
    bench.submit(make_request(0, prompt=_prompt(0)), make_request(1, prompt=_prompt(1)))
    bench.submit(make_request(2, prompt=[97, 98], max_tokens=1))
    bench.step()

    assert _started(bench).keys() == {0, 2}


@pytest.mark.parametrize("other", [{"cache_key": b"other"}, {"reuse": False}])
def test_nobody_waits_for_what_it_may_not_use(other: dict[str, object]) -> None:
    """Another project's prompt, or one that declined reuse."""
    bench = _bench()
    bench.submit(make_request(0, prompt=_prompt(0)), make_request(1, prompt=_prompt(1), **other))
    bench.step()

    assert _started(bench).keys() == {0, 1}
    assert _started(bench)[1].cached_tokens == 0


def test_a_follower_takes_over_from_a_leader_that_is_cancelled() -> None:
    """What was computed is not lost, and the others follow the new leader."""
    bench = _bench()
    bench.submit(*(make_request(i, prompt=_prompt(i), max_tokens=2) for i in range(4)))
    bench.step()
    bench.step()
    bench.engine.cancel(0, arrived_in_step=2, step=3)
    bench.run()

    started = _started(bench)
    assert (started[1].cached_tokens, started[1].source) == (2 * CHUNK, CacheSource.SLOT)
    assert started[2].cached_tokens == started[3].cached_tokens == len(SYSTEM)
    assert _computed(bench) == len(SYSTEM) + 3 * 2
    for i in (1, 2, 3):
        assert bench.tokens(i) == expected_tokens(_prompt(i), 2)


def test_a_leader_that_is_paused_is_not_waited_for() -> None:
    """Its reader may never come back; followers start from what is there."""
    bench = _bench()
    bench.submit(*(make_request(i, prompt=_prompt(i), max_tokens=2) for i in range(3)))
    bench.step()
    bench.engine.pause(0, paused=True)
    bench.step()

    assert _started(bench)[1].cached_tokens == CHUNK
    assert 2 not in _started(bench)


def test_a_leader_that_gets_on_is_waited_for_however_slowly() -> None:
    """What prompts took so far says little of a longer one; what it computes is not left over."""
    bench = _bench(measured={8: 0.8})
    bench.submit(*(make_request(i, prompt=_prompt(i), max_tokens=1) for i in range(4)))
    while bench.engine.has_work:
        bench.step()
        bench.clock.now += 3 * CHUNK * 0.1

    assert [_started(bench)[i].cached_tokens for i in range(4)] == [0, *[len(SYSTEM)] * 3]


def test_a_leader_that_does_not_get_on_is_left() -> None:
    """After twice the time that the rest should take, and as much again where adapters take turns.
    What is there is used."""
    bench = _bench(measured={8: 0.8}, adapter_wait_s=10.0**6)
    bench.engine.adapters.load("a", Path("a.gguf"))
    bench.submit(make_request(0, prompt=_prompt(0)))
    bench.step()
    other = adapter_stack([AppliedAdapter("a", 1.0)])
    bench.submit(make_request(2, prompt=[97, 98], max_tokens=99, adapters=other, priority=3))
    bench.step()
    bench.submit(make_request(1, prompt=_prompt(1)))
    bench.step()
    patience = 2 * 2 * (len(SYSTEM) + 1 - CHUNK) * 0.1
    bench.clock.now = patience - 0.1
    bench.step()
    assert _started(bench).keys() == {0, 2}
    bench.clock.now = patience + 0.1
    bench.step()

    assert _started(bench)[1].cached_tokens == CHUNK


def test_a_leader_may_wait_for_all_who_run() -> None:
    """Those that start after its follower came to wait as well: each is computed to its end."""
    bench = _bench(measured={8: 0.8})
    bench.submit(
        *(make_request(i, prompt=[*SYSTEM, *[98 + i] * 140], max_tokens=1) for i in range(2))
    )
    bench.submit(*(make_request(2 + i, prompt=[65 + i] * 200, max_tokens=1) for i in range(5)))
    while bench.engine.has_work:
        bench.step()
        bench.clock.now += 1.5 * CHUNK * 0.1

    assert _started(bench)[1].cached_tokens == len(SYSTEM)


def test_a_leader_comes_when_its_followers_would() -> None:
    """A short one does not wait behind all whom its long leader waits behind."""
    bench = _bench()
    bench.submit(make_request(0, prompt=[97] * 200), make_request(1, prompt=[*SYSTEM, *[98] * 130]))
    bench.step()
    bench.clock.now = 0.5
    bench.step()
    assert _slots(bench)[-2:] == [{0}, {0}]
    bench.submit(make_request(2, prompt=SYSTEM[:90]))
    bench.step()

    assert _slots(bench)[-1] == {1}


def test_a_leader_comes_for_its_own_part_when_that_would() -> None:
    """Once the prefix is there, its follower waits for a slot, not for the rest of its prompt."""
    bench, prefix = _bench(3), SYSTEM[:CHUNK]
    bench.submit(make_request(0, prompt=[97] * 200), make_request(1, prompt=[*prefix, *[98] * 200]))
    bench.step()
    bench.submit(make_request(2, prompt=[*prefix, 99]), make_request(3, prompt=[99] * 200))
    bench.step()
    bench.step()

    assert _slots(bench) == [{0}, {1}, {0}]
    assert 2 not in _started(bench)


def _slots(bench: EngineBench) -> list[set[int]]:
    return [set(batch.slots.tolist()) for batch in bench.backend.batches]


def test_a_leader_is_as_urgent_as_its_followers() -> None:
    """Class and response ratio are lent for as long as they follow."""
    bench = _bench()
    bench.submit(make_request(0, prompt=_prompt(0), priority=1))
    bench.step()
    (leader,) = bench.engine.running
    bench.submit(make_request(1, prompt=_prompt(1), priority=3))
    bench.submit(make_request(2, prompt=_prompt(2), priority=2))
    bench.step()
    assert leader.effective_priority == 3
    bench.clock.now = 2.0
    bench.submit(make_request(3, prompt=_prompt(3), priority=1))
    bench.step()
    assert leader.inherited_ratio == 3.0 / (len(SYSTEM) + 1)

    bench.engine.cancel(1, arrived_in_step=1, step=2)
    bench.step()
    assert leader.effective_priority == 2


def test_a_leader_of_urgent_work_gives_its_slot_to_nobody() -> None:
    """Not even to a stranger whose turn in the queue comes before its followers'."""
    bench = _bench(1, saved_bytes=10**6)
    bench.submit(make_request(0, prompt=_prompt(0), priority=1, max_tokens=1, project="led"))
    bench.step()
    bench.submit(make_request(1, prompt=_prompt(1), priority=3, max_tokens=1, project="led"))
    bench.step()
    bench.submit(make_request(2, prompt=[97, 98], priority=3, max_tokens=1, project="stranger"))
    bench.run()

    assert not [event for event in bench.events if isinstance(event, Preempted)]
    assert bench.tokens(2) == expected_tokens([97, 98], 1)


def test_the_load_counts_followers() -> None:
    """Two hold back while the first computes; nobody does when all are done."""
    bench = _bench()
    bench.submit(*(make_request(i, prompt=_prompt(i)) for i in range(3)))
    bench.step()
    loads = [event for event in bench.events if isinstance(event, ModelLoad)]
    assert loads[-1].num_followers == 2
    bench.run()
    loads = [event for event in bench.events if isinstance(event, ModelLoad)]

    assert loads[-1].num_followers == 0
