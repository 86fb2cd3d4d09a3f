"""Offloading prefixes to disk, with a fake engine and a real folder."""

import os
from array import array
from pathlib import Path
from threading import Event

import pytest

from inference_svc.engine.events import CacheSource, TierLoad
from inference_svc.engine.request import ArchiveOwner, DropCachedPrefixes, project_archive
from inference_svc.snapshots.disk_prefix_cache import DiskPrefixCache
from inference_svc.snapshots.store import FolderLimits
from tests.support.offloading import OTHER_PROMPTS, OffloadBench, files
from tests.support.snapshots import FINGERPRINT

THREAD = [65 + i % 20 for i in range(100)]
LONG = [65 + i % 21 for i in range(300)]
LONG_BYTES = 1700
"""Memory for its state, and no other one beside two of a hundred tokens."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def bench(folder: Path) -> OffloadBench:
    """A bench whose memory has already evicted a thread."""
    bench = OffloadBench(folder)
    assert bench.run(THREAD, "thread_1").cached_tokens == 0
    bench.evict()
    return bench


def evict_long(folder: Path, owner: str) -> OffloadBench:
    """A bench whose memory has already evicted a long prompt."""
    bench = OffloadBench(folder, saved_bytes=LONG_BYTES)
    bench.run(LONG, owner)
    bench.evict()
    return bench


def next_prompt(num_new_tokens: int = 20) -> list[int]:
    return [*THREAD, *range(200, 200 + num_new_tokens)]


def test_an_evicted_prefix_is_loaded_from_disk(bench: OffloadBench, folder: Path) -> None:
    """Only the new tokens of the next turn are computed."""
    (file,) = files(folder)
    assert file.stat().st_mode & 0o777 == 0o600

    started = bench.run(next_prompt(), "thread_1")

    assert (started.cached_tokens, started.source) == (100, CacheSource.DISK)


def test_another_engine_loads_the_prefixes_of_the_first(bench: OffloadBench, folder: Path) -> None:
    """Files survive a restart."""
    started = OffloadBench(folder).run(next_prompt(), "thread_1")

    assert (started.cached_tokens, started.source) == (100, CacheSource.DISK)


def test_another_object_of_the_project_reuses_a_prefix(bench: OffloadBench) -> None:
    """A response that continues another is found by its tokens; other projects are not searched."""
    other = bench.run(next_prompt(), "thread_1", cache_key=b"another project")
    same_project = bench.run(next_prompt(), "response_2")

    assert (other.cached_tokens, same_project.cached_tokens) == (0, 100)


def test_only_prefixes_of_stored_objects_are_written(folder: Path) -> None:
    """Other requests neither write to the disk cache nor read from it."""
    bench = OffloadBench(folder)
    bench.run(THREAD)
    bench.evict()

    assert not files(folder)
    assert bench.run(next_prompt()).cached_tokens == 0


def test_a_project_finds_its_stateless_prefixes(folder: Path) -> None:
    """Another project does not, although it sends the same."""
    owner = project_archive("red")
    evict_long(folder, owner)
    bench = OffloadBench(folder, saved_bytes=LONG_BYTES)
    other = bench.run([*LONG, 1], project_archive("blue"), cache_key=b"blue")
    same = bench.run([*LONG, 1], owner)

    assert other.cached_tokens == 0
    assert (same.cached_tokens, same.source) == (300, CacheSource.DISK)


def test_short_stateless_prefixes_are_not_written(folder: Path) -> None:
    """Nor those of which a file has most: there may be many."""
    owner = project_archive("red")
    bench = OffloadBench(folder)
    bench.run(THREAD, owner)
    bench.evict()
    assert not files(folder)
    bench = evict_long(folder, owner)
    before = files(folder)
    bench.run([*LONG, *range(200, 290)], owner)
    bench.evict()

    assert files(folder) == before


def test_a_shorter_prefix_is_read_where_the_longest_is_damaged(folder: Path) -> None:
    """It belongs to another object, so the longer one did not replace it."""
    bench = OffloadBench(folder)
    bench.run(THREAD, "thread_1")
    bench.evict()
    (short,) = files(folder)
    bench.run(next_prompt(80), "thread_2")
    bench.evict()
    (long,) = set(files(folder)) - {short}
    data = bytearray(long.read_bytes())
    data[-40] ^= 1
    long.write_bytes(data)
    started = OffloadBench(folder).run(next_prompt(90), "thread_1")

    assert (started.cached_tokens, started.source) == (100, CacheSource.DISK)
    assert files(folder) == [short]


def test_a_prefix_that_is_used_from_memory_does_not_expire(folder: Path) -> None:
    """Its file is not read, and yet is the one that the next start needs."""
    owner = project_archive("red")
    bench = evict_long(folder, owner)
    assert bench.run([*LONG, 1], owner).source == CacheSource.DISK
    (file,) = files(folder)
    os.utime(file, (0, 0))

    started = bench.run([*LONG, 2], owner)
    bench.drop("nobody")
    num_expired = DiskPrefixCache(FolderLimits(folder, 10**6, 9, 3600)).delete_expired()

    assert (started.cached_tokens, started.source) == (300, CacheSource.SLOT)
    assert num_expired == 0
    assert files(folder) == [file]


def test_a_longer_turn_replaces_the_shorter_one(bench: OffloadBench, folder: Path) -> None:
    """A thread is one file, regardless of its number of turns."""
    (before,) = files(folder)
    bench.run(next_prompt(80), "thread_1")
    bench.evict()

    (after,) = files(folder)
    assert after != before
    assert bench.run(next_prompt(90), "thread_1").cached_tokens == 180


def test_a_slightly_longer_prefix_is_not_written_again(bench: OffloadBench, folder: Path) -> None:
    """Computing a few tokens is cheaper than writing the thread."""
    (before,) = files(folder)
    bench.run(next_prompt(), "thread_1")
    bench.evict()

    assert files(folder) == [before]


@pytest.mark.parametrize("offset", [60, -40], ids=["metadata", "cells"])
@pytest.mark.parametrize("owner", ["thread_1", project_archive("red")])
def test_a_damaged_file_is_deleted_and_the_prompt_computed(
    folder: Path, owner: str, offset: int
) -> None:
    """Damage is detected in the metadata, when an engine starts, and in the cells."""
    evict_long(folder, owner)
    (file,) = files(folder)
    data = bytearray(file.read_bytes())
    data[offset] ^= 1
    file.write_bytes(data)

    started = OffloadBench(folder, saved_bytes=LONG_BYTES).run([*LONG, 1], owner)

    assert started.cached_tokens == 0
    assert not files(folder)


def test_the_prompt_of_a_missing_file_is_computed(bench: OffloadBench, folder: Path) -> None:
    """Another engine may have evicted it."""
    files(folder)[0].unlink()

    assert bench.run(next_prompt(), "thread_1").cached_tokens == 0
    assert bench.run(next_prompt(), "thread_1").source is CacheSource.SLOT


def test_the_files_of_another_model_are_ignored(bench: OffloadBench, folder: Path) -> None:
    """Models share the folder."""
    keep_for = ArchiveOwner("thread_1", "another digest")

    assert OffloadBench(folder).run(next_prompt(), keep_for=keep_for).cached_tokens == 0
    assert len(files(folder)) == 1


def test_a_dropped_object_leaves_no_files(bench: OffloadBench, folder: Path) -> None:
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
    bench: OffloadBench, folder: Path
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
    bench = OffloadBench(folder, max_files=1)
    for object_id, prompt in zip("ab", OTHER_PROMPTS[:2], strict=True):
        bench.run(prompt, object_id)
    bench.run(THREAD, "thread_1")
    bench.evict()

    assert len(files(folder)) == 1
    assert not bench.offloader.defer(bench.request([*OTHER_PROMPTS[0], 1], "a"))


def test_a_prefix_larger_than_the_memory_is_not_written(folder: Path) -> None:
    """It could not be loaded again."""
    bench = OffloadBench(folder, saved_bytes=300)
    bench.run(THREAD, "thread_1")
    bench.evict()

    assert not files(folder)


def test_a_file_larger_than_the_memory_is_read_once(bench: OffloadBench, folder: Path) -> None:
    """The memory limit may have been lowered by a restart."""
    smaller = OffloadBench(folder, saved_bytes=300)

    assert smaller.run(next_prompt(), "thread_1").cached_tokens == 0
    smaller.run(OTHER_PROMPTS[0])
    assert not smaller.offloader.defer(smaller.request(next_prompt(), "thread_1"))


def test_a_file_with_more_tokens_than_a_slot_is_not_read(bench: OffloadBench, folder: Path) -> None:
    """Slots may be smaller since a restart."""
    assert OffloadBench(folder, slot_tokens=100).run(next_prompt(), "thread_1").cached_tokens == 0


def test_a_deferred_request_can_be_released(bench: OffloadBench) -> None:
    """To be cancelled in the engine; the file is loaded for the next request."""
    request = bench.request(next_prompt(), "thread_1")

    assert bench.offloader.defer(request)
    assert bench.offloader.release(request.sequence_id) is request
    assert bench.offloader.release(request.sequence_id) is None
    bench.complete_next()
    assert not bench.engine.engine.has_sequences
    assert bench.run(next_prompt(), "thread_1").source is CacheSource.DISK


def test_a_prompt_that_is_scored_does_not_wait_for_a_file(bench: OffloadBench) -> None:
    """All of it is computed."""
    request = bench.request(next_prompt(), "thread_1", prompt_logprobs=0)

    assert not bench.offloader.defer(request)


def test_a_limit_of_0_bytes_disables_the_cache(folder: Path) -> None:
    """No request is deferred and nothing is written."""
    bench = OffloadBench(folder, max_bytes=0)

    assert not bench.offloader.defer(bench.request(THREAD, "thread_1"))
    bench.run(THREAD, "thread_1")
    bench.evict()
    assert not files(folder)


def test_a_disk_that_hangs_delays_no_request_for_long(
    bench: OffloadBench, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later ones do not wait at all, until it answers."""
    other, answers, scandir = OffloadBench(folder, max_read_s=0.01), Event(), os.scandir

    def hang(path: Path) -> object:
        answers.wait()
        return scandir(path)

    with monkeypatch.context() as hanging:
        hanging.setattr(os, "scandir", hang)
        try:
            assert other.offloader.defer(other.request(next_prompt(), "thread_1"))
            while other.offloader.has_deferred:
                other.offloader.submit_overdue()
            assert other.engine.engine.has_sequences
            other.engine.run()
            assert not other.offloader.defer(other.request(next_prompt(), "thread_1"))
        finally:
            answers.set()
        other.complete_next()

    other.evict()
    assert other.run(next_prompt(), "thread_1").source is CacheSource.DISK


def test_a_broken_disk_fails_no_request(tmp_path: Path) -> None:
    """Requests are computed, and there is nothing to delete."""
    path = tmp_path / "a file"
    path.write_text("")
    bench = OffloadBench(path)

    assert bench.run(THREAD, "thread_1").cached_tokens == 0
    bench.evict()
    assert bench.run(next_prompt(), "thread_1").cached_tokens == 0
    assert bench.drop("thread_1") == 0


def test_tokens_are_read_as_an_array(bench: OffloadBench, folder: Path) -> None:
    """The engine concatenates them with other arrays."""
    (snapshot,) = DiskPrefixCache(FolderLimits(folder, 10**6, 9)).find_compatible(FINGERPRINT)

    assert snapshot.origin.tokens[:100] == array("i", THREAD)
    assert snapshot.kept_for == "thread_1"


def test_the_load_counts_hits_misses_and_writes(bench: OffloadBench, folder: Path) -> None:
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
    bench = OffloadBench(folder, max_files=1)
    bench.run(OTHER_PROMPTS[0], "a")
    bench.run(THREAD, "thread_1")
    bench.evict()

    assert bench.tier[-2:] == (2, 1)
