"""The folder of snapshots: eviction, access, damage, several processes."""

import fcntl
import os
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from inference_svc.snapshots.file_format import file_bytes, write
from inference_svc.snapshots.snapshot import Snapshot
from inference_svc.snapshots.store import (
    NO_SNAPSHOTS,
    FolderLimits,
    FolderUsage,
    SnapshotStore,
    new_snapshot_id,
)
from svc_kit.errors import (
    SnapshotCorrupt,
    SnapshotNotFound,
    SnapshotTooLarge,
    StorageFailed,
)
from tests.support.memory import peak_bytes
from tests.support.snapshots import make_snapshot

STATE = bytearray(range(40))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A folder that does not exist yet."""
    return tmp_path / "data" / "snapshots"


def _store(path: Path, max_bytes: int = 10**6, max_files: int = 3, **options: Any) -> SnapshotStore:
    return SnapshotStore(FolderLimits(path, max_bytes, max_files), **options)


def _save(store: SnapshotStore, count: int = 1) -> list[Snapshot]:
    snapshots = [make_snapshot(new_snapshot_id()) for _ in range(count)]
    for age, snapshot in enumerate(snapshots):
        store.save(snapshot, STATE)
        os.utime(store._path(snapshot.snapshot_id), (age, age))
    return snapshots


def _existing(store: SnapshotStore, snapshots: list[Snapshot]) -> list[int]:
    return [i for i, each in enumerate(snapshots) if store._path(each.snapshot_id).exists()]


def test_a_snapshot_survives_its_process(path: Path) -> None:
    """Another store reads it, since the key is in the folder too."""
    (snapshot,) = _save(_store(path))
    reopened = _store(path)
    with reopened.open(snapshot.snapshot_id) as reader:
        assert (reader.snapshot, reader.read_state()) == (snapshot, STATE)

    assert reopened.usage == FolderUsage(1, file_bytes(snapshot))


def test_only_the_owner_has_access(path: Path) -> None:
    """To the folder, the key and every file."""
    _save(_store(path))

    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()} == {0o600}


def test_the_folder_is_created_by_the_first_save(path: Path) -> None:
    """Other operations work without it."""
    store = _store(path)

    assert store.usage == FolderUsage(0, 0)
    assert store.drop(["snap_" + "0" * 24]) == 0
    with pytest.raises(SnapshotNotFound), store.open("snap_" + "0" * 24):
        pass
    assert not path.exists()


def test_the_least_recently_used_are_evicted_by_number(path: Path) -> None:
    store = _store(path, max_files=3)
    snapshots = _save(store, 3)
    with store.open(snapshots[0].snapshot_id):
        pass
    snapshots += _save(store)

    assert _existing(store, snapshots) == [0, 2, 3]


def test_the_least_recently_used_are_evicted_by_bytes(path: Path) -> None:
    """As many as necessary."""
    size = file_bytes(make_snapshot())
    store = _store(path, max_bytes=3 * size, max_files=10)
    snapshots = _save(store, 3)
    large = make_snapshot(new_snapshot_id(), state_bytes=len(STATE) + size)
    store.save(large, bytearray(large.state_bytes))

    assert _existing(store, snapshots) == [2]
    assert store.usage.num_bytes <= 3 * size


@pytest.mark.parametrize("limits", [(100, 3), (10**6, 0)])
def test_a_snapshot_over_the_limits_evicts_nothing(path: Path, limits: tuple[int, int]) -> None:
    """The error has the limit and the setting."""
    (snapshot,) = _save(_store(path))
    store = _store(path, *limits)
    with pytest.raises(SnapshotTooLarge) as failure:
        _save(store)

    assert failure.value.limit_bytes == (100 if limits[1] else 0)
    assert failure.value.setting == "snapshots.max_mib"
    assert _existing(store, [snapshot]) == [0]


def test_drop_counts_existing_snapshots(path: Path) -> None:
    """Unknown ids and paths are ignored."""
    store = _store(path)
    one, two = _save(store, 2)
    outside = path.parent / "outside.snapshot"
    outside.touch()

    assert store.drop([one.snapshot_id, one.snapshot_id, "../outside", "key", "snap_x"]) == 1
    assert _existing(store, [one, two]) == [1]
    assert outside.exists()


@pytest.mark.parametrize(
    "name", ["../outside", "key", "", "snap_" + "0" * 24, "snap_\n" + "0" * 23]
)
def test_invalid_ids_are_not_found(path: Path, name: str) -> None:
    """No id leads out of the folder."""
    store = _store(path)
    _save(store)
    with pytest.raises(SnapshotNotFound), store.open(name):
        pass


@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
def test_only_regular_files_are_opened(path: Path, kind: str) -> None:
    """A FIFO must not block the reader, and links are not followed."""
    store = _store(path)
    (snapshot,) = _save(store)
    file = store._path(snapshot.snapshot_id)
    file.unlink()
    if kind == "link":
        file.symlink_to(path / "key")
    else:
        os.mkfifo(file) if kind == "pipe" else file.mkdir()
    with pytest.raises(SnapshotCorrupt, match="foreign"), store.open(snapshot.snapshot_id):
        pass


def test_unfinished_files_of_a_crash_are_deleted(path: Path) -> None:
    """By the next process; finished files stay."""
    (snapshot,) = _save(_store(path))
    unfinished = path / f"{new_snapshot_id()}.unfinished"
    unfinished.touch()
    store = _store(path)
    _save(store)

    assert not unfinished.exists()
    assert _existing(store, [snapshot]) == [0]


def test_engines_share_a_folder(path: Path) -> None:
    """The folder is locked while one of them writes; each reads the snapshots of the other."""
    locked = []

    def write_locked(*parts: Any) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            locked.append(True)
        finally:
            os.close(descriptor)
        write(*parts)

    first, second = _store(path, write=write_locked), _store(path, write=write_locked)
    for saving, reading in ((first, second), (second, first)):
        (snapshot,) = _save(saving)
        with reading.open(snapshot.snapshot_id) as reader:
            assert reader.read_state() == STATE

    assert locked == [True, True]


def test_a_file_that_another_process_deletes_is_skipped(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between listing the files and reading their sizes."""
    store = _store(path)
    deleted, snapshot = _save(store, 2)
    with os.scandir(path) as listed:
        entries = list(listed)
    store.drop([deleted.snapshot_id])
    monkeypatch.setattr(os, "scandir", lambda *_: nullcontext(entries))

    assert store.usage == FolderUsage(1, file_bytes(snapshot))
    store.save(snapshot, STATE)


def test_a_huge_sparse_file_is_not_read_into_memory(path: Path) -> None:
    """A sparse terabyte with consistent sizes fails the digest of its metadata."""
    store = _store(path)
    (snapshot,) = _save(store)
    file, hole = store._path(snapshot.snapshot_id), 1 << 40
    data = bytearray(file.read_bytes())
    data[28:36] = (snapshot.state_bytes + hole).to_bytes(8, "little")
    file.write_bytes(data)
    os.truncate(file, len(data) + hole)

    def read() -> None:
        with pytest.raises(SnapshotCorrupt, match="altered"), store.open(snapshot.snapshot_id):
            pass

    assert peak_bytes(read) < 1 << 20


def test_a_file_named_as_the_key_is_not_replaced(path: Path) -> None:
    """It may be of somebody else; the error names it."""
    path.mkdir(parents=True)
    (path / "key").write_bytes(b"-----BEGIN PRIVATE KEY-----")
    with pytest.raises(StorageFailed, match="has not 32 bytes"):
        _save(_store(path))

    assert (path / "key").read_bytes() == b"-----BEGIN PRIVATE KEY-----"


def test_without_their_key_snapshots_are_foreign(path: Path) -> None:
    (snapshot,) = _save(_store(path))
    (path / "key").unlink()
    store = _store(path)
    with pytest.raises(SnapshotCorrupt, match="foreign"), store.open(snapshot.snapshot_id):
        pass
    (another,) = _save(store)
    with store.open(another.snapshot_id) as reader:
        assert reader.read_state() == STATE


@pytest.mark.parametrize("what", ["folder", "key"])
def test_a_deleted_folder_or_key_is_made_anew(path: Path, what: str) -> None:
    """An operator may delete them while processes use them, whose later snapshots survive these."""
    store = _store(path)
    _save(store)
    shutil.rmtree(path) if what == "folder" else (path / "key").unlink()
    (snapshot,) = _save(store)
    with _store(path).open(snapshot.snapshot_id) as reader:
        assert reader.read_state() == STATE


def test_readers_do_not_wait_for_a_writer(path: Path) -> None:
    """Of another process, which may write for seconds; requests wait for what is read."""
    (snapshot,) = _save(_store(path))
    writer = os.open(path, os.O_RDONLY)
    fcntl.flock(writer, fcntl.LOCK_EX)
    with ThreadPoolExecutor() as threads:
        described = threads.submit(_store(path).describe, snapshot.snapshot_id)
        try:
            assert described.result(timeout=5) == snapshot
        finally:
            os.close(writer)


def test_a_full_disk_leaves_no_files(path: Path) -> None:
    """The error has the reason."""

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageFailed) as failure:
        _save(_store(path, write=fail))

    assert failure.value.problem == "No space left on device"
    assert [file.name for file in path.iterdir()] == ["key"]


def test_disabled_snapshots_have_typed_errors() -> None:
    store = SnapshotStore(NO_SNAPSHOTS)

    assert store.usage == FolderUsage(0, 0)
    with pytest.raises(SnapshotTooLarge):
        store.save(make_snapshot(), STATE)
    with pytest.raises(StorageFailed), store.open(new_snapshot_id()):
        pass
