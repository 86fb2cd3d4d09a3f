"""Sequences that wait for a prefix instead of computing it again."""

from pathlib import Path

import pytest

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.events import CacheSource, ModelLoad, Preempted, Started
from inference_svc.engine.request import AppliedAdapter, adapter_stack
from tests.support.fake_backend import VOCABULARY_SIZE, FakeBackend
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
    """Eight sequences arrive together: one computes the prefix, seven reuse it."""
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


def test_sequences_behind_a_follower_start_at_once() -> None:
    """A sequence with another prompt does not wait behind the follower."""
    bench = _bench(2)
    bench.submit(make_request(0, prompt=_prompt(0)), make_request(1, prompt=_prompt(1)))
    bench.submit(make_request(2, prompt=[97, 98], max_tokens=1))
    bench.step()

    assert _started(bench).keys() == {0, 2}


@pytest.mark.parametrize("other", [{"cache_key": b"other"}, {"reuse": False}])
def test_a_sequence_that_cannot_share_the_prefix_starts_at_once(other: dict[str, object]) -> None:
    """The cache key differs, or the request declines reuse."""
    bench = _bench()
    bench.submit(make_request(0, prompt=_prompt(0)), make_request(1, prompt=_prompt(1), **other))
    bench.step()

    assert _started(bench).keys() == {0, 1}
    assert _started(bench)[1].cached_tokens == 0


def test_a_follower_replaces_a_cancelled_leader() -> None:
    """It reuses the computed part, and the others follow it."""
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


def test_followers_do_not_wait_for_a_paused_leader() -> None:
    bench = _bench()
    bench.submit(*(make_request(i, prompt=_prompt(i), max_tokens=2) for i in range(3)))
    bench.step()
    bench.engine.pause(0, paused=True)
    bench.step()

    assert _started(bench)[1].cached_tokens == CHUNK
    assert 2 not in _started(bench)


def test_followers_wait_for_a_slow_leader_that_makes_progress() -> None:
    """Progress matters, not the time that earlier prompts took."""
    bench = _bench(measured={8: 0.8})
    bench.submit(*(make_request(i, prompt=_prompt(i), max_tokens=1) for i in range(4)))
    while bench.engine.has_work:
        bench.step()
        bench.clock.now += 3 * CHUNK * 0.1

    assert [_started(bench)[i].cached_tokens for i in range(4)] == [0, *[len(SYSTEM)] * 3]


def test_followers_leave_a_leader_without_progress() -> None:
    """They wait twice the estimated time of the rest, doubled again if adapters take turns."""
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


def test_followers_wait_while_their_leader_waits_for_running_prompts() -> None:
    """Prompts that start after the follower arrived count too."""
    bench = _bench(measured={8: 0.8})
    bench.submit(
        *(make_request(i, prompt=[*SYSTEM, *[98 + i] * 140], max_tokens=1) for i in range(2))
    )
    bench.submit(*(make_request(2 + i, prompt=[65 + i] * 200, max_tokens=1) for i in range(5)))
    while bench.engine.has_work:
        bench.step()
        bench.clock.now += 1.5 * CHUNK * 0.1

    assert _started(bench)[1].cached_tokens == len(SYSTEM)


def test_a_leader_is_scheduled_with_the_response_ratio_of_its_follower() -> None:
    """A short follower does not wait as long as its long leader alone would."""
    bench = _bench()
    bench.submit(make_request(0, prompt=[97] * 200), make_request(1, prompt=[*SYSTEM, *[98] * 130]))
    bench.step()
    bench.clock.now = 0.5
    bench.step()
    assert _slots(bench)[-2:] == [{0}, {0}]
    bench.submit(make_request(2, prompt=SYSTEM[:90]))
    bench.step()

    assert _slots(bench)[-1] == {1}


def test_a_leader_inherits_no_ratio_once_the_prefix_is_computed() -> None:
    """The follower then waits for a slot, not for the rest of the leader's prompt."""
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


def test_a_leader_inherits_the_priority_of_its_followers() -> None:
    """Priority and response ratio are inherited while they follow."""
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


def test_a_leader_of_interactive_work_is_not_preempted() -> None:
    """Not even by a sequence that is ahead of its followers in the queue."""
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
    """Two followers wait while the leader computes; none at the end."""
    bench = _bench()
    bench.submit(*(make_request(i, prompt=_prompt(i)) for i in range(3)))
    bench.step()
    loads = [event for event in bench.events if isinstance(event, ModelLoad)]
    assert loads[-1].num_followers == 2
    bench.run()
    loads = [event for event in bench.events if isinstance(event, ModelLoad)]

    assert loads[-1].num_followers == 0
