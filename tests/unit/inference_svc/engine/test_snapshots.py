"""Sequences saved by one engine and restored by another, on the fake backend."""

from array import array
from dataclasses import replace
from typing import Any

import pytest

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.events import CacheSource, Preempted, Started
from inference_svc.engine.reasoning_tracker import ReasoningSpec
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sampling_params import Mirostat, Sampling
from inference_svc.engine.saved_state import SavedPrefix
from svc_kit.errors import InvalidField, SnapshotNotFound
from tests.support.fake_backend import VOCABULARY_SIZE, FakeBackend, FakeSampler
from tests.support.sequences import EngineBench, expected_tokens, make_request
from tests.support.snapshots import SNAPSHOT_ID, save_prefix, saved_output, write_and_read

PROMPT = array("i", [65 + i % 26 for i in range(40)])
ROOM = 10**6
NEVER = 10**6


def _bench(slots: int = 2, *, saved_bytes: int = ROOM, **options: Any) -> EngineBench:
    limits = NativeLimits(16, slots, slots, 256, VOCABULARY_SIZE)
    backend = FakeBackend(limits, end_after=NEVER, **options)
    return EngineBench(backend, saved_bytes=saved_bytes)


def _ask(i: int = 0, **changes: Any) -> SequenceRequest:
    return make_request(i, PROMPT, **{"request_id": f"r{i}", "max_tokens": 20, **changes})


def _stepped(bench: EngineBench, count: int) -> EngineBench:
    for _ in range(count):
        bench.step()
    return bench


def _snapshot(steps: int = 8, **changes: Any) -> SavedPrefix:
    """What one engine has after some steps, through a file."""
    bench = _bench()
    bench.submit(_ask(**changes))
    return write_and_read(save_prefix(_stepped(bench, steps).engine, "r0"))


def _whole(**changes: Any) -> list[int]:
    bench = _bench()
    bench.submit(_ask(**changes))
    bench.run()
    return bench.tokens(0)


def _adapt(prefix: SavedPrefix, bench: EngineBench) -> SavedPrefix:
    return replace(prefix, min_tokens=bench.engine.min_restored(len(prefix.tokens)))


def _resume(bench: EngineBench, prefix: SavedPrefix, i: int = 7, **changes: Any) -> list[Started]:
    bench.submit(_ask(i, resumed=array("i", saved_output(prefix)), **changes))
    bench.run()
    return [event for event in bench.events if isinstance(event, Started)]


@pytest.mark.parametrize("can_trim", [True, False])
@pytest.mark.parametrize("steps", [3, 4, 12])
def test_another_engine_continues_a_snapshot(steps: int, can_trim: bool) -> None:
    """It computes one token more than the snapshot has."""
    prefix = _snapshot(steps)
    other = _bench(5, can_trim=can_trim)
    assert other.engine.prefix_cache.put(_adapt(prefix, other))
    (started,) = _resume(other, prefix)

    assert (started.cached_tokens, started.source) == (len(PROMPT), CacheSource.DISK)
    assert [*saved_output(prefix), *other.tokens(7)] == _whole()
    first = other.backend.batches[0]
    assert len(first.tokens) == len(prefix.origin.tokens) - len(prefix.tokens) == 1  # type: ignore[union-attr]


def test_a_partly_computed_prompt_can_be_saved() -> None:
    """The other engine computes the rest."""
    prefix = _snapshot(2)
    other = _bench()
    other.engine.prefix_cache.put(prefix)
    (started,) = _resume(other, prefix)

    assert (len(prefix.tokens), started.cached_tokens) == (32, 32)
    assert other.tokens(7) == _whole()


def test_saving_changes_no_output() -> None:
    """Two sequences are saved in every step."""
    bench = _bench()
    bench.submit(_ask(), _ask(1, cache_key=b"other"))
    bench.step()
    while bench.engine.has_work:
        for name in ("r0", "r1"):
            bench.engine.snapshot(name, 0)
        bench.step()

    assert bench.tokens(0) == bench.tokens(1) == _whole()


def test_only_running_sequences_can_be_saved() -> None:
    """Queued, finished and unknown sequences have no state."""
    bench = _bench(1)
    bench.submit(_ask(), _ask(1, cache_key=b"other", max_tokens=2))
    bench.step()

    assert bench.engine.snapshot("r0", 0) is not None
    assert bench.engine.snapshot("r0", 1) is None
    assert bench.engine.snapshot("r1", 0) is None
    assert bench.engine.snapshot("unknown", 0) is None
    bench.run()
    assert bench.engine.snapshot("r0", 0) is None


def test_a_preempted_sequence_can_be_saved() -> None:
    """Its cells are in memory already."""
    bench = _bench(1)
    bench.submit(_ask(priority=1))
    _stepped(bench, 6)
    bench.submit(_ask(1, priority=3, cache_key=b"other"))
    bench.step()
    prefix = write_and_read(save_prefix(bench.engine, "r0"))
    other = _bench()
    other.engine.prefix_cache.put(prefix)
    _resume(other, prefix)

    assert [event for event in bench.events if isinstance(event, Preempted)] == [Preempted(0)]
    assert [*saved_output(prefix), *other.tokens(7)] == _whole()


@pytest.mark.parametrize("ending", ["finish", "cancel"])
def test_a_kept_sequence_can_be_saved_after_its_end(ending: str) -> None:
    """Its slot may have been reused."""
    bench = _bench(1)
    bench.submit(_ask(keep=True))
    if ending == "cancel":
        _stepped(bench, 8).engine.cancel(0, arrived_in_step=8, step=9)
    bench.run()
    said = bench.tokens(0)
    bench.submit(make_request(1, [*PROMPT, *said, 70, 71], max_tokens=3))
    bench.run()
    bench.submit(make_request(2, range(100), max_tokens=1, cache_key=b"other"))
    bench.run()
    prefix = save_prefix(bench.engine, "r0")

    assert list(saved_output(prefix)) == said == _whole()[: len(said)]
    assert len(prefix.tokens) == len(PROMPT) + len(said) - 1


def test_a_kept_state_has_no_cells_of_rejected_drafts() -> None:
    limits = NativeLimits(64, 1 + 16, 1, 300, VOCABULARY_SIZE)
    bench = EngineBench(FakeBackend(limits, repeats=True, end_after=NEVER), saved_bytes=ROOM)
    bench.submit(_ask(keep=True, max_tokens=40))
    bench.run()
    prefix = save_prefix(bench.engine, "r0")
    bench.submit(make_request(1, range(50, 90), max_tokens=2, cache_key=b"other"))
    bench.run()
    bench.submit(_ask(2, resumed=array("i", saved_output(prefix)), max_tokens=50))
    bench.run()

    assert bench.finished(0).num_drafted > bench.finished(0).num_accepted
    assert len(prefix.state) == 4 * len(prefix.tokens)
    assert not bench.failures()
    assert len(bench.tokens(2)) == 10


@pytest.mark.parametrize("can_trim", [True, False])
@pytest.mark.parametrize("cells", [-1, 1])
def test_a_state_of_another_length_is_truncated_or_recomputed(cells: int, can_trim: bool) -> None:
    """Extra cells are dropped; a state that cannot be truncated is computed again."""
    prefix = _snapshot()
    state = (prefix.state + bytes(4))[: len(prefix.state) + 4 * cells]
    other = _bench(can_trim=can_trim)
    other.engine.prefix_cache.put(_adapt(replace(prefix, state=state), other))
    (started,) = _resume(other, prefix)

    assert (started.cached_tokens > 0) == (can_trim and cells > 0)
    assert [*saved_output(prefix), *other.tokens(7)] == _whole()


@pytest.mark.parametrize("knows", [True, False])
def test_a_snapshot_without_the_window_of_a_prompt_is_not_used(knows: bool) -> None:
    """Even if the engine learns of it only when it has restored it."""
    bench, other = _bench(window=8), _bench(window=8)
    bench.submit(_ask())
    prefix = write_and_read(save_prefix(_stepped(bench, 8).engine, "r0"))
    assert prefix.min_tokens == len(prefix.tokens) - 1
    assert other.engine.prefix_cache.put(prefix if knows else replace(prefix, min_tokens=0))
    prompt = [*PROMPT[:-4], 1, 2]
    other.submit(make_request(7, prompt))
    other.run()

    assert other.started(7).cached_tokens == 0
    assert other.tokens(7) == expected_tokens(prompt, 8)


@pytest.mark.parametrize("ending", ["finish", "cancel", "expire"])
def test_a_kept_sequence_that_ends_while_preempted_is_saved_once(ending: str) -> None:
    bench = _bench(1)
    bench.submit(_ask(keep=True, priority=1, deadline=50.0))
    _stepped(bench, 6)
    bench.submit(_ask(1, priority=3, cache_key=b"other"))
    bench.step()
    if ending == "cancel":
        bench.engine.cancel(0, arrived_in_step=7, step=8)
    elif ending == "expire":
        bench.clock.now = 50.0
    bench.run()
    said = bench.tokens(0)

    assert [event for event in bench.events if isinstance(event, Preempted)] == [Preempted(0)]
    assert list(saved_output(save_prefix(bench.engine, "r0"))) == said == _whole()[: len(said)]
    assert len(said) == 20 or ending != "finish"
    assert bench.engine._load().saved.num_entries == 1


def test_kept_states_are_evicted() -> None:
    """Kept states count towards the memory limit."""
    bench = _bench(1, saved_bytes=500)
    for i in range(4):
        bench.submit(_ask(i, keep=True, cache_key=bytes([i]), max_tokens=2))
        bench.run()

    held = [bench.engine.snapshot(f"r{i}", 0) is not None for i in range(4)]
    assert held == [False, True, True, True]


def test_a_state_larger_than_the_memory_is_rejected() -> None:
    """`capacity` is the largest size that can be restored."""
    prefix = _snapshot()
    other = _bench(saved_bytes=len(prefix.state) - 1)

    assert other.engine.prefix_cache.capacity == len(prefix.state) - 1
    assert not other.engine.prefix_cache.put(prefix)
    assert _bench(saved_bytes=len(prefix.state)).engine.prefix_cache.put(prefix)


def test_restoring_twice_stores_one_entry() -> None:
    """The second state replaces the first."""
    prefix = _snapshot()
    other = _bench()
    for _ in range(3):
        other.engine.prefix_cache.put(prefix)
    load = other.engine._load()

    assert (load.saved.num_entries, load.saved.num_bytes) == (1, len(prefix.state))


@pytest.mark.parametrize("other_owner", [{"cache_key": b"theirs"}, {"reuse": False}])
def test_a_snapshot_is_not_reused_by_other_owners(other_owner: dict[str, Any]) -> None:
    """The cache key differs, or the request declines reuse."""
    prefix = _snapshot()
    other = _bench()
    other.engine.prefix_cache.put(prefix)
    (started,) = _resume(other, prefix, **other_owner)

    assert (started.cached_tokens, started.source) == (0, CacheSource.NONE)
    assert [*saved_output(prefix), *other.tokens(7)] == _whole()


def test_an_ordinary_prompt_reuses_a_snapshot() -> None:
    """After that, the slot has the prefix."""
    prefix = _snapshot()
    other = _bench()
    other.engine.prefix_cache.put(prefix)
    for i in (1, 2):
        other.submit(_ask(i, max_tokens=2))
        other.run()
    sources = [event.source for event in other.events if isinstance(event, Started)]

    assert sources == [CacheSource.DISK, CacheSource.SLOT]
    assert other.tokens(1) == _whole()[:2]


HIDDEN: dict[str, Any] = {"sampling": Sampling(mirostat=Mirostat(2))}


def test_hidden_sampler_state_is_restored() -> None:
    """The request names the snapshot."""
    prefix = _snapshot(**HIDDEN)
    other = _bench()
    other.engine.prefix_cache.put(prefix)
    other.submit(
        _ask(
            resumed=array("i", saved_output(prefix)),
            snapshot_id=SNAPSHOT_ID,
            max_tokens=99,
            **HIDDEN,
        )
    )
    other.step()
    sampler = other.engine.running[0].sampler

    assert isinstance(sampler, FakeSampler)
    assert sampler.restored == (float(len(saved_output(prefix))),)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"snapshot_id": "snap_other"}, SnapshotNotFound),
        ({"cache_key": b"theirs"}, SnapshotNotFound),
        ({"seed": 2}, InvalidField),
        ({"sampling": Sampling(mirostat=Mirostat(1))}, InvalidField),
        ({"resumed": array("i", [97])}, InvalidField),
        ({"min_tokens": 3}, InvalidField),
    ],
    ids=["unknown", "another owner's", "seed", "sampling", "tokens", "rules"],
)
def test_an_incompatible_snapshot_fails_only_its_own_sequence(
    changes: dict[str, Any], error: type[Exception]
) -> None:
    """Other sequences go on."""
    prefix = _snapshot(**HIDDEN)
    other = _bench()
    other.engine.prefix_cache.put(prefix)
    asked = _ask(3, resumed=array("i", saved_output(prefix)), snapshot_id=SNAPSHOT_ID, **HIDDEN)
    other.submit(replace(asked, **changes), _ask(4))
    other.run()

    assert {i: type(failed.error) for i, failed in other.failures().items()} == {3: error}
    assert other.tokens(4) == _whole()


THOUGHT = ReasoningSpec("<think>", ("</think>",), True, False, 6, (tuple(b"</think>"),))


@pytest.mark.parametrize("steps", [6, 11, 18], ids=["thinking", "closing", "answering"])
def test_a_thought_keeps_its_budget(steps: int) -> None:
    """A sequence that is preempted or restored has the tokens and the count of a whole one."""
    bench = _bench(1)
    bench.submit(_ask(priority=1, reasoning=THOUGHT))
    _stepped(bench, steps).submit(_ask(1, priority=3, cache_key=b"other"))
    bench.run()
    prefix, other = _snapshot(steps, reasoning=THOUGHT), _bench()
    assert other.engine.prefix_cache.put(prefix)
    _resume(other, prefix, reasoning=THOUGHT)
    whole = _whole(reasoning=THOUGHT)

    assert [event for event in bench.events if isinstance(event, Preempted)] == [Preempted(0)]
    assert bench.tokens(0) == [*saved_output(prefix), *other.tokens(7)] == whole
    assert bytes(whole[6:14]) == b"</think>"
    assert bench.finished(0).num_reasoning_tokens == other.finished(7).num_reasoning_tokens == 6
