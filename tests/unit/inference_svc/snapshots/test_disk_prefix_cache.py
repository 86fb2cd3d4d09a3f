"""The disk prefix cache beside files that cannot be read, and on a disk that is nearly full."""

import fcntl
import mmap
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from inference_svc.snapshots.disk_prefix_cache import DiskPrefixCache
from inference_svc.snapshots.snapshot import Snapshot
from inference_svc.snapshots.store import FolderLimits, new_snapshot_id
from svc_kit.errors import StorageFailed
from tests.support.snapshots import FINGERPRINT, make_snapshot

STATE = bytearray(range(40))
MAP_NORESERVE = 0x4000
"""Of Linux (mmap(2)): more memory than there is."""


@contextmanager
def unreadable(file: Path) -> Iterator[None]:
    """Let opens of a file fail, also those of root: somebody else holds its lease."""
    handle = os.open(file, os.O_RDWR)
    fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    yield
    os.close(handle)


def save(cache: DiskPrefixCache, owner: str) -> Snapshot:
    snapshot = make_snapshot(new_snapshot_id(), kept_for=owner)
    cache.save(snapshot, STATE, ())
    return snapshot


@pytest.fixture
def cache(tmp_path: Path) -> DiskPrefixCache:
    return DiskPrefixCache(FolderLimits(tmp_path / "archive", 10**6, 10))


@pytest.fixture(autouse=True)
def _ignored_lease_breaks() -> Iterator[None]:
    """The kernel announces an open to who holds the lease, by a signal that would end it."""
    previous = signal.signal(signal.SIGIO, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGIO, previous)


def test_a_file_that_cannot_be_read_hides_no_other(cache: DiskPrefixCache) -> None:
    """It is found again once it can be read."""
    damaged, other = save(cache, "thread_1"), save(cache, "thread_2")

    with unreadable(cache.limits.path / f"{damaged.snapshot_id}.snapshot"):
        meanwhile = cache.find_compatible(FINGERPRINT)
    later = cache.find_compatible(FINGERPRINT)

    assert [each.snapshot_id for each in meanwhile] == [other.snapshot_id]
    assert len(later) == 2


def test_what_an_owner_left_is_deleted_beside_a_file_that_cannot_be_read(
    cache: DiskPrefixCache,
) -> None:
    """The caller is told, since the file may be the owner's, and tries again."""
    damaged, _ = save(cache, "thread_1"), save(cache, "thread_2")

    with (
        unreadable(cache.limits.path / f"{damaged.snapshot_id}.snapshot"),
        pytest.raises(StorageFailed),
    ):
        cache.drop({"thread_2"})

    assert cache.snapshot_ids() == {damaged.snapshot_id}
    assert cache.drop({"thread_1", "thread_2"}) == 1


def test_the_cache_leaves_room_on_its_disk(cache: DiskPrefixCache) -> None:
    """Databases and files may be on the same one."""
    save(cache, "thread_1")
    free = shutil.disk_usage(cache.limits.path).free
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    state: Any = mmap.mmap(-1, free, flags=flags)  # never touched

    with pytest.raises(StorageFailed, match="MiB are free on its disk"):
        cache.save(make_snapshot(new_snapshot_id()), state, ())
