"""The folder of snapshots."""

import fcntl
import os
import stat
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inference_svc.snapshots import store as folder_module
from inference_svc.snapshots.file_format import file_bytes, write
from inference_svc.snapshots.snapshot import Snapshot
from inference_svc.snapshots.store import (
    NO_SNAPSHOTS,
    FolderLimits,
    FolderUse,
    SnapshotStore,
    new_snapshot_id,
)
from svc_kit.errors import (
    SnapshotCorrupt,
    SnapshotNotFound,
    SnapshotTooLarge,
    StorageFailed,
)
from tests.support.snapshots import a_snapshot

STATE = bytearray(range(40))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A folder that is not there yet."""
    return tmp_path / "data" / "snapshots"


def _folder(path: Path, max_bytes: int = 10**6, max_files: int = 3) -> SnapshotStore:
    return SnapshotStore(FolderLimits(path, max_bytes, max_files))


def _saved(folder: SnapshotStore, count: int = 1) -> list[Snapshot]:
    snapshots = [a_snapshot(new_snapshot_id()) for _ in range(count)]
    for age, snapshot in enumerate(snapshots):
        folder.save(snapshot, STATE)
        os.utime(folder._path(snapshot.snapshot_id), (age, age))
    return snapshots


def _there(folder: SnapshotStore, snapshots: list[Snapshot]) -> list[int]:
    return [i for i, each in enumerate(snapshots) if folder._path(each.snapshot_id).exists()]


def test_a_snapshot_outlives_its_process(path: Path) -> None:
    """Another folder object over the same files reads it, for the key is there too."""
    (snapshot,) = _saved(_folder(path))
    again = _folder(path)
    with again.open(snapshot.snapshot_id) as reader:
        assert (reader.snapshot, reader.state()) == (snapshot, STATE)

    assert again.use == FolderUse(1, file_bytes(snapshot))


def test_nobody_else_may_read(path: Path) -> None:
    """The folder, the key and every file are the owner's alone."""
    _saved(_folder(path))

    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()} == {0o600}


def test_nothing_is_made_before_the_first_save(path: Path) -> None:
    """A server that saves nothing leaves no trace."""
    folder = _folder(path)

    assert folder.use == FolderUse(0, 0)
    assert folder.drop(["snap_" + "0" * 24]) == 0
    with pytest.raises(SnapshotNotFound), folder.open("snap_" + "0" * 24):
        pass
    assert not path.exists()


def test_the_least_recently_used_make_room_by_number(path: Path) -> None:
    """One that was read counts as used."""
    folder = _folder(path, max_files=3)
    snapshots = _saved(folder, 3)
    with folder.open(snapshots[0].snapshot_id):
        pass
    snapshots += _saved(folder)

    assert _there(folder, snapshots) == [0, 2, 3]


def test_the_least_recently_used_make_room_by_bytes(path: Path) -> None:
    """As many as it takes."""
    size = file_bytes(a_snapshot())
    folder = _folder(path, max_bytes=3 * size, max_files=10)
    snapshots = _saved(folder, 3)
    large = a_snapshot(new_snapshot_id(), state_bytes=len(STATE) + size)
    folder.save(large, bytearray(large.state_bytes))

    assert _there(folder, snapshots) == [2]
    assert folder.use.num_bytes <= 3 * size


@pytest.mark.parametrize("limits", [(100, 3), (10**6, 0)])
def test_what_can_never_fit_drops_nothing(path: Path, limits: tuple[int, int]) -> None:
    """It is refused with the sizes and the setting."""
    (snapshot,) = _saved(_folder(path))
    folder = _folder(path, *limits)
    with pytest.raises(SnapshotTooLarge) as failure:
        _saved(folder)

    assert failure.value.limit_bytes == (100 if limits[1] else 0)
    assert failure.value.setting == "snapshots.max_mib"
    assert _there(folder, [snapshot]) == [0]


def test_dropping_counts_what_was_there(path: Path) -> None:
    """Unknown names, and names that are paths, are no error."""
    folder = _folder(path)
    one, two = _saved(folder, 2)
    outside = path.parent / "outside.snapshot"
    outside.touch()

    assert folder.drop([one.snapshot_id, one.snapshot_id, "../outside", "key", "snap_x"]) == 1
    assert _there(folder, [one, two]) == [1]
    assert outside.exists()


@pytest.mark.parametrize(
    "name", ["../outside", "key", "", "snap_" + "0" * 24, "snap_\n" + "0" * 23]
)
def test_other_names_are_not_found(path: Path, name: str) -> None:
    """No name leads out of the folder."""
    folder = _folder(path)
    _saved(folder)
    with pytest.raises(SnapshotNotFound), folder.open(name):
        pass


@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
def test_what_is_no_plain_file_is_foreign(path: Path, kind: str) -> None:
    """A pipe must not keep the reader waiting, nor a link have another file read or touched."""
    folder = _folder(path)
    (snapshot,) = _saved(folder)
    place = folder._path(snapshot.snapshot_id)
    place.unlink()
    if kind == "link":
        place.symlink_to(path / "key")
    else:
        os.mkfifo(place) if kind == "pipe" else place.mkdir()
    with pytest.raises(SnapshotCorrupt, match="foreign"), folder.open(snapshot.snapshot_id):
        pass


def test_what_a_crash_left_is_removed(path: Path) -> None:
    """The next process begins clean; finished files stay."""
    (snapshot,) = _saved(_folder(path))
    left = path / "snap_0.unfinished"
    left.touch()
    folder = _folder(path)
    _saved(folder)

    assert not left.exists()
    assert _there(folder, [snapshot]) == [0]


def test_engines_share_a_folder(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other they write; what one has, the other reads."""
    locked = []

    def write_and_look(*parts: Any) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            locked.append(True)
        finally:
            os.close(descriptor)
        write(*parts)

    monkeypatch.setattr(folder_module, "write", write_and_look)
    first, second = _folder(path), _folder(path)
    for saving, reading in ((first, second), (second, first)):
        (snapshot,) = _saved(saving)
        with reading.open(snapshot.snapshot_id) as reader:
            assert reader.state() == STATE

    assert locked == [True, True]


def test_what_another_process_drops_meanwhile_is_no_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the list of the files and a look at each of them."""
    folder = _folder(path)
    gone, snapshot = _saved(folder, 2)
    files = sorted(path.glob("snap_*.snapshot"))
    folder.drop([gone.snapshot_id])
    monkeypatch.setattr(Path, "glob", lambda *_: iter(files))

    assert folder.use == FolderUse(1, file_bytes(snapshot))
    folder.save(snapshot, STATE)


def test_a_large_file_that_holds_nothing_is_not_read(path: Path) -> None:
    """A terabyte of holes, with sizes that fit: refused by its digest, in little memory."""
    folder = _folder(path)
    (snapshot,) = _saved(folder)
    place, hole = folder._path(snapshot.snapshot_id), 1 << 40
    data = bytearray(place.read_bytes())
    data[28:36] = (snapshot.state_bytes + hole).to_bytes(8, "little")
    place.write_bytes(data)
    os.truncate(place, len(data) + hole)
    tracemalloc.start()
    with pytest.raises(SnapshotCorrupt, match="altered"), folder.open(snapshot.snapshot_id):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 1 << 20


def test_a_lost_key_makes_snapshots_foreign(path: Path) -> None:
    """They are refused, and new ones are made under a new key."""
    (snapshot,) = _saved(_folder(path))
    (path / "key").write_bytes(b"short")
    folder = _folder(path)
    with pytest.raises(SnapshotCorrupt, match="foreign"), folder.open(snapshot.snapshot_id):
        pass
    (another,) = _saved(folder)
    with folder.open(another.snapshot_id) as reader:
        assert reader.state() == STATE


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Writing fails in the middle."""

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(folder_module, "write", fail)
        yield


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_leaves_nothing_behind(path: Path) -> None:
    """The caller learns why."""
    folder = _folder(path)
    with pytest.raises(StorageFailed) as failure:
        _saved(folder)

    assert failure.value.problem == "No space left on device"
    assert [file.name for file in path.iterdir()] == ["key"]


def test_without_a_folder_nothing_is_kept() -> None:
    """Every command has its answer all the same."""
    folder = SnapshotStore(NO_SNAPSHOTS)

    assert folder.use == FolderUse(0, 0)
    with pytest.raises(SnapshotTooLarge):
        folder.save(a_snapshot(), STATE)
    with pytest.raises(StorageFailed), folder.open(new_snapshot_id()):
        pass
