"""Offloading prefixes of stored objects to disk, with a fake engine and a real folder."""

from array import array
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.events import CacheSource, Started, TierLoad
from inference_svc.engine.request import DropCachedPrefixes, SequenceRequest, StoredObjectRef
from inference_svc.engine_client.messages import SnapshotDone
from inference_svc.engine_process.file_thread import FileDone
from inference_svc.engine_process.prefix_offload import PrefixOffloader
from inference_svc.engine_process.snapshot_io import ServedEngine
from inference_svc.snapshots.disk_prefix_cache import DiskPrefixCache
from inference_svc.snapshots.store import FolderLimits
from tests.support.fake_backend import FakeBackend
from tests.support.sequences import EngineBench, make_request
from tests.support.snapshots import FINGERPRINT

LIMITS = NativeLimits(64, 4, 1, 512, 300)
THREAD = [65 + i % 20 for i in range(100)]
OTHER_PROMPTS = [[97 + (i + shift) % 20 for i in range(100)] for shift in range(4)]
SAVED_BYTES = 900
"""Memory for two states of a hundred tokens with four bytes each."""


class Bench:
    """An offloader for an engine with one slot, and memory for two prefixes."""

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int = 10**6,
        max_files: int = 9,
        saved_bytes: int = SAVED_BYTES,
        slot_tokens: int = LIMITS.slot_tokens,
    ) -> None:
        self.engine = EngineBench(FakeBackend(LIMITS), saved_bytes=saved_bytes)
        self.finished: SimpleQueue[FileDone] = SimpleQueue()
        served = ServedEngine("m", self.engine.engine, FINGERPRINT, slot_tokens)
        cache = DiskPrefixCache(FolderLimits(folder, max_bytes, max_files))
        self.results: list[SnapshotDone] = []
        self.offloader = PrefixOffloader(served, cache, self.finished.put, self.results.append)
        self._ids = iter(range(1000))

    def request(self, prompt: list[int], object_id: str = "", **changes: Any) -> SequenceRequest:
        keep_for = StoredObjectRef(object_id, FINGERPRINT.model) if object_id else None
        fields = {"keep_for": keep_for, "max_tokens": 4, "ignore_eos": True, **changes}
        return make_request(next(self._ids), prompt, **fields)

    def complete_next(self) -> None:
        """Wait for the offload thread and complete its work."""
        self.finished.get(timeout=50).apply()

    def run(self, prompt: list[int], object_id: str = "", **changes: Any) -> Started:
        """Run a request to its end; returns how it started."""
        request = self.request(prompt, object_id, **changes)
        if self.offloader.defer(request):
            while not self.engine.engine.has_sequences:
                self.complete_next()
        else:
            self.engine.submit(request)
        self.engine.run()
        return self.engine.started(request.sequence_id)

    def drop(self, *object_ids: str) -> object:
        """The outcome of a command, which completes after all earlier work."""
        self.results.clear()
        self.offloader.drop(DropCachedPrefixes(1, object_ids))
        while not self.results:
            self.complete_next()
        return self.results[0].outcome

    @property
    def tier(self) -> TierLoad:
        """The changed load of the disk cache, which is reported only once."""
        load = self.offloader.changed_load()
        assert load is not None
        assert self.offloader.changed_load() is None
        return load.tier

    def evict(self) -> None:
        """Fill slot and memory with other prompts, and wait until the evicted prefixes are
        written."""
        for prompt in OTHER_PROMPTS:
            self.run(prompt)
        self.drop("nobody")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def bench(folder: Path) -> Bench:
    """A bench whose memory has already evicted a thread."""
    bench = Bench(folder)
    assert bench.run(THREAD, "thread_1").cached_tokens == 0
    bench.evict()
    return bench


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.snapshot"))


def next_prompt(num_new_tokens: int = 20) -> list[int]:
    return [*THREAD, *range(200, 200 + num_new_tokens)]


def test_an_evicted_prefix_is_loaded_from_disk(bench: Bench, folder: Path) -> None:
    """Only the new tokens of the next turn are computed."""
    (file,) = files(folder)
    assert file.stat().st_mode & 0o777 == 0o600

    started = bench.run(next_prompt(), "thread_1")

    assert (started.cached_tokens, started.source) == (100, CacheSource.DISK)


def test_another_engine_loads_the_prefixes_of_the_first(bench: Bench, folder: Path) -> None:
    """Files survive a restart."""
    started = Bench(folder).run(next_prompt(), "thread_1")

    assert (started.cached_tokens, started.source) == (100, CacheSource.DISK)


def test_another_object_of_the_project_reuses_a_prefix(bench: Bench) -> None:
    """A response that continues another is found by its tokens; other projects are not searched."""
    other = bench.run(next_prompt(), "thread_1", cache_key=b"another project")
    same_project = bench.run(next_prompt(), "response_2")

    assert (other.cached_tokens, same_project.cached_tokens) == (0, 100)


def test_only_prefixes_of_stored_objects_are_written(folder: Path) -> None:
    """Other requests neither write to the disk cache nor read from it."""
    bench = Bench(folder)
    bench.run(THREAD)
    bench.evict()

    assert not files(folder)
    assert bench.run(next_prompt()).cached_tokens == 0


def test_a_longer_turn_replaces_the_shorter_one(bench: Bench, folder: Path) -> None:
    """A thread is one file, regardless of its number of turns."""
    (before,) = files(folder)
    bench.run(next_prompt(80), "thread_1")
    bench.evict()

    (after,) = files(folder)
    assert after != before
    assert bench.run(next_prompt(90), "thread_1").cached_tokens == 180


def test_a_slightly_longer_prefix_is_not_written_again(bench: Bench, folder: Path) -> None:
    """Computing a few tokens is cheaper than writing the thread."""
    (before,) = files(folder)
    bench.run(next_prompt(), "thread_1")
    bench.evict()

    assert files(folder) == [before]


@pytest.mark.parametrize("offset", [60, -40], ids=["metadata", "cells"])
def test_a_damaged_file_is_deleted_and_the_prompt_computed(
    bench: Bench, folder: Path, offset: int
) -> None:
    """Damage is detected in the metadata, when an engine starts, and in the cells."""
    (file,) = files(folder)
    data = bytearray(file.read_bytes())
    data[offset] ^= 1
    file.write_bytes(data)

    started = Bench(folder).run(next_prompt(), "thread_1")

    assert started.cached_tokens == 0
    assert not files(folder)


def test_the_prompt_of_a_missing_file_is_computed(bench: Bench, folder: Path) -> None:
    """Another engine may have evicted it."""
    files(folder)[0].unlink()

    assert bench.run(next_prompt(), "thread_1").cached_tokens == 0
    assert bench.run(next_prompt(), "thread_1").source is CacheSource.SLOT


def test_the_files_of_another_model_are_ignored(bench: Bench, folder: Path) -> None:
    """Models share the folder."""
    keep_for = StoredObjectRef("thread_1", "another digest")

    assert Bench(folder).run(next_prompt(), keep_for=keep_for).cached_tokens == 0
    assert len(files(folder)) == 1


def test_a_dropped_object_leaves_no_files(bench: Bench, folder: Path) -> None:
    """Its files are deleted, and its prefixes in slots, memory and running sequences are not
    written any more."""
    bench.run(OTHER_PROMPTS[0], "thread_2")
    bench.engine.submit(bench.request(next_prompt(), "thread_1"))
    bench.engine.step()

    assert bench.drop("thread_1", "thread_2", "unknown") == 1
    bench.engine.run()
    bench.evict()
    assert not files(folder)
    assert bench.run(next_prompt(), "thread_1").cached_tokens == 0


def test_a_prefix_read_while_its_object_is_dropped_is_not_written_again(
    bench: Bench, folder: Path
) -> None:
    """Nor is what the deferred request computes."""
    deferred = bench.request(next_prompt(80), "thread_1")
    assert bench.offloader.defer(deferred)

    bench.offloader.drop(DropCachedPrefixes(1, ("thread_1",)))
    for done in [bench.finished.get(timeout=50) for _ in range(2)]:
        done.apply()
    bench.engine.run()
    bench.evict()

    assert not files(folder)


def test_an_evicted_file_is_removed_from_the_index(folder: Path) -> None:
    """Its tokens are not matched, and no read is attempted."""
    bench = Bench(folder, max_files=1)
    for object_id, prompt in zip("ab", OTHER_PROMPTS[:2], strict=True):
        bench.run(prompt, object_id)
    bench.run(THREAD, "thread_1")
    bench.evict()

    assert len(files(folder)) == 1
    assert not bench.offloader.defer(bench.request([*OTHER_PROMPTS[0], 1], "a"))


def test_a_prefix_larger_than_the_memory_is_not_written(folder: Path) -> None:
    """It could not be loaded again."""
    bench = Bench(folder, saved_bytes=300)
    bench.run(THREAD, "thread_1")
    bench.evict()

    assert not files(folder)


def test_a_file_larger_than_the_memory_is_read_once(bench: Bench, folder: Path) -> None:
    """The memory limit may have been lowered by a restart."""
    smaller = Bench(folder, saved_bytes=300)

    assert smaller.run(next_prompt(), "thread_1").cached_tokens == 0
    smaller.run(OTHER_PROMPTS[0])
    assert not smaller.offloader.defer(smaller.request(next_prompt(), "thread_1"))


def test_a_file_with_more_tokens_than_a_slot_is_not_read(bench: Bench, folder: Path) -> None:
    """Slots may be smaller since a restart."""
    assert Bench(folder, slot_tokens=100).run(next_prompt(), "thread_1").cached_tokens == 0


def test_a_deferred_request_can_be_released(bench: Bench) -> None:
    """To be cancelled in the engine; the file is loaded for the next request."""
    request = bench.request(next_prompt(), "thread_1")

    assert bench.offloader.defer(request)
    assert bench.offloader.release(request.sequence_id) is request
    assert bench.offloader.release(request.sequence_id) is None
    bench.complete_next()
    assert not bench.engine.engine.has_sequences
    assert bench.run(next_prompt(), "thread_1").source is CacheSource.DISK


def test_a_limit_of_0_bytes_disables_the_cache(folder: Path) -> None:
    """No request is deferred and nothing is written."""
    bench = Bench(folder, max_bytes=0)

    assert not bench.offloader.defer(bench.request(THREAD, "thread_1"))
    bench.run(THREAD, "thread_1")
    bench.evict()
    assert not files(folder)


def test_a_broken_disk_fails_no_request(tmp_path: Path) -> None:
    """Requests are computed, and there is nothing to delete."""
    path = tmp_path / "a file"
    path.write_text("")
    bench = Bench(path)

    assert bench.run(THREAD, "thread_1").cached_tokens == 0
    bench.evict()
    assert bench.run(next_prompt(), "thread_1").cached_tokens == 0
    assert bench.drop("thread_1") == 0


def test_tokens_are_read_as_an_array(bench: Bench, folder: Path) -> None:
    """The engine concatenates them with other arrays."""
    (snapshot,) = DiskPrefixCache(FolderLimits(folder, 10**6, 9)).find_compatible(FINGERPRINT)

    assert snapshot.origin.tokens[:100] == array("i", THREAD)
    assert snapshot.kept_for == "thread_1"


def test_the_load_counts_hits_misses_and_writes(bench: Bench, folder: Path) -> None:
    """Besides files and limits; an unreadable file is a miss too."""
    (file,) = files(folder)
    size = file.stat().st_size
    assert bench.tier == TierLoad(1, size, 9, 10**6, 0, 1, 1, 0)

    bench.run(next_prompt(), "thread_1")
    bench.run([30, *THREAD], "thread_2")
    assert bench.tier[4:] == (1, 2, 1, 0)
    bench.evict()
    assert bench.tier.num_written == 2
    file.unlink()
    bench.run(next_prompt(), "thread_1")

    remaining = files(folder)[0].stat().st_size
    assert bench.tier == TierLoad(1, remaining, 9, 10**6, 1, 3, 2, 0)


def test_evicted_files_are_counted(folder: Path) -> None:
    """Whichever object they belong to."""
    bench = Bench(folder, max_files=1)
    bench.run(OTHER_PROMPTS[0], "a")
    bench.run(THREAD, "thread_1")
    bench.evict()

    assert bench.tier[-2:] == (2, 1)
