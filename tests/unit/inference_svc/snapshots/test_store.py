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

from inference_svc.engine.saved_state import CellArray, CellLayout
from inference_svc.snapshots.cell_blocks import BLOCK_TOKENS
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
LAYOUT = CellLayout(2 * BLOCK_TOKENS + 9, (CellArray(5, 2, 3),))
BLOCK_BYTES = 6 * BLOCK_TOKENS


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


def _save_blocks(
    store: SnapshotStore, num_cells: int = LAYOUT.num_cells, first: int = 0, **fields: Any
) -> Snapshot:
    """Save a state with so many cells: those of each block are its number, counted from `first`."""
    numbers = bytes(first + cell // BLOCK_TOKENS for cell in range(num_cells) for _ in range(3))
    state = bytearray(b"head_" + 2 * numbers + b"tail")
    snapshot = make_snapshot(new_snapshot_id(), state_bytes=len(state), **fields)
    store.save(snapshot, state, LAYOUT._replace(num_cells=num_cells))
    with store.open(snapshot.snapshot_id) as reader:
        assert reader.read_state() == state
    return snapshot


def _blocks(path: Path) -> list[Path]:
    return sorted((path / "blocks").iterdir())


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


@pytest.mark.parametrize("drops", [False, True])
def test_unfinished_files_of_a_crash_are_deleted(path: Path, drops: bool) -> None:
    """By the next process that writes or drops a file; finished files stay."""
    snapshot, other = _save(_store(path), 2)
    unfinished = path / f"{new_snapshot_id()}.unfinished"
    unfinished.touch()
    store = _store(path)
    if drops:
        store.drop([other.snapshot_id])
    else:
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


def test_a_longer_state_is_stored_as_its_new_cells(path: Path) -> None:
    """The blocks of the shorter one, of which another store reads it, stay where they are."""
    store = _store(path)
    short = _save_blocks(store, 2 * BLOCK_TOKENS + 9)
    before, blocks = store.usage.num_bytes, _blocks(path)
    for block in blocks:
        os.utime(block, (0, 0))
    _save_blocks(_store(path), 3 * BLOCK_TOKENS)

    assert [block.stat().st_size for block in blocks] == [BLOCK_BYTES] * 2
    assert [block.stat().st_mtime for block in blocks] == [0, 0]
    assert len(_blocks(path)) == 3
    assert store.usage.num_bytes - before < BLOCK_BYTES + 1000
    with _store(path).open(short.snapshot_id) as reader:
        assert len(reader.read_state()) == short.state_bytes


def test_blocks_stay_as_long_as_a_snapshot_has_them(path: Path) -> None:
    """Only the owner has access to them."""
    store = _store(path)
    short, long = _save_blocks(store), _save_blocks(store, 3 * BLOCK_TOKENS)
    modes = {stat.S_IMODE(block.stat().st_mode) for block in _blocks(path)}
    _store(path).drop([short.snapshot_id])
    after_short = len(_blocks(path))
    _store(path).drop([long.snapshot_id])

    assert (modes, stat.S_IMODE((path / "blocks").stat().st_mode)) == ({0o600}, 0o700)
    assert after_short == 3
    assert _blocks(path) == []


def test_blocks_are_evicted_with_their_snapshots(path: Path) -> None:
    """Those that the new snapshot or another one shares stay."""
    store = _store(path, max_files=2)
    snapshots = [_save_blocks(store), _save_blocks(store, first=1)]
    for age, snapshot in enumerate(snapshots):
        os.utime(store._path(snapshot.snapshot_id), (age, age))
    for block in _blocks(path):
        os.utime(block, (0, 0))
    _save_blocks(store, 3 * BLOCK_TOKENS)
    after_one = _existing(store, snapshots)
    times = [block.stat().st_mtime for block in _blocks(path)]
    smaller = _store(path, max_bytes=3 * BLOCK_BYTES + 2000)
    _save_blocks(smaller, first=4)

    assert after_one == [1]
    assert times == [0, 0, 0]
    assert _existing(store, snapshots) == []
    assert len(_blocks(path)) == 2
    assert smaller.usage.num_files == 1


@pytest.mark.parametrize("damage", ["altered", "missing", "truncated", "longer"])
def test_a_damaged_block_makes_its_snapshot_corrupt(path: Path, damage: str) -> None:
    """It is written again when it is needed."""
    store = _store(path)
    snapshot = _save_blocks(store)
    block = _blocks(path)[0]
    if damage == "altered":
        block.write_bytes(b"\x07" + block.read_bytes()[1:])
    elif damage == "missing":
        block.unlink()
    else:
        os.truncate(block, 100 if damage == "truncated" else BLOCK_BYTES + 1)
    with (
        store.open(snapshot.snapshot_id) as reader,
        pytest.raises(SnapshotCorrupt, match="altered"),
    ):
        reader.read_state()

    _save_blocks(store)


def test_blocks_that_a_crash_left_are_deleted(path: Path) -> None:
    """By the next process: unfinished ones, and those whose snapshot was not written."""
    _save_blocks(_store(path))
    blocks = _blocks(path)
    digits = "ab" * 24
    for name in (f"{digits}.block", f"{digits}.unfinished"):
        (path / "blocks" / name).write_bytes(b"x")
    (path / "blocks" / "of somebody else").touch()
    store = _store(path)
    _save(store)

    assert _blocks(path) == sorted([*blocks, path / "blocks" / "of somebody else"])


def test_a_full_disk_leaves_no_blocks(path: Path) -> None:
    """Of the snapshot that could not be written."""

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageFailed):
        _save_blocks(_store(path, write=fail))

    assert _blocks(path) == []
