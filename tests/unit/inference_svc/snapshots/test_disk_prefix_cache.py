"""The disk prefix cache beside files that cannot be read, and on a disk that is nearly full."""

import fcntl
import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from inference_svc.config import InferenceSettings, SnapshotSettings
from inference_svc.engine.saved_state import CellArray, CellLayout
from inference_svc.model_pool.engine_config import disk_cache_folder
from inference_svc.snapshots.cell_blocks import BLOCK_TOKENS
from inference_svc.snapshots.disk_prefix_cache import DiskPrefixCache
from inference_svc.snapshots.snapshot import Snapshot
from inference_svc.snapshots.store import FolderLimits, new_snapshot_id
from svc_kit.errors import SnapshotTooLarge, StorageFailed
from tests.support.snapshots import FINGERPRINT, make_snapshot

STATE = bytearray(range(40))


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


def test_prefixes_are_written_beside_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """By a new process too. The file keeps its blocks, which nobody else is known to have."""
    layout = CellLayout(2 * BLOCK_TOKENS, (CellArray(0, 1, 2),))
    first, other = (bytearray([value]) * 4 * BLOCK_TOKENS for value in (1, 2))
    limits, ids = FolderLimits(tmp_path / "archive", 10**6, 10), [new_snapshot_id() for _ in "12"]
    DiskPrefixCache(limits, lambda _: layout).save(make_snapshot(ids[0]), first, ())
    cache = DiskPrefixCache(limits, lambda _: layout)

    with unreadable(limits.path / f"{ids[0]}.snapshot"):
        cache.save(make_snapshot(ids[1]), other, ())

    assert [cache.load_state(each) for each in ids] == [first, other]


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


def test_the_cache_leaves_room_on_its_disk(tmp_path: Path) -> None:
    """Databases and files may be on the same one. What fits beside them is still written."""
    cache = DiskPrefixCache(FolderLimits(tmp_path, 1 << 62, 10, max_reserve_bytes=1 << 20))
    small = save(cache, "thread_1")
    large = make_snapshot(new_snapshot_id(), state_bytes=shutil.disk_usage(tmp_path).free)

    with pytest.raises(StorageFailed, match="MiB are free on its disk"):
        cache.save(large, STATE, ())

    assert cache.snapshot_ids() == {small.snapshot_id}


def test_a_prefix_that_is_too_long_names_the_setting_of_the_archive(tmp_path: Path) -> None:
    """The log has this error."""
    settings = InferenceSettings(data_dir=tmp_path, snapshots=SnapshotSettings(archive_mib=1))
    cache = DiskPrefixCache(disk_cache_folder(settings))

    with pytest.raises(SnapshotTooLarge, match=re.escape("snapshots.archive_mib")):
        cache.save(make_snapshot(state_bytes=2 << 20), STATE, ())
