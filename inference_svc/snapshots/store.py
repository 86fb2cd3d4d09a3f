"""The folder of snapshots: files of mode 0600, written atomically, evicted by least recent use. A
folder beside them has the blocks of cells of the disk prefix cache, each as long as a snapshot
needs it.

All state is in the folder, so engine processes may share it.
"""

import fcntl
import logging
import math
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from io import BufferedReader, BufferedWriter
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from inference_svc.engine.saved_state import CellLayout
from inference_svc.snapshots.cell_blocks import (
    BLOCK_TOKENS,
    BlockFolder,
    name_blocks,
    without_blocks,
)
from inference_svc.snapshots.file_format import SnapshotReader, file_bytes, write
from inference_svc.snapshots.snapshot import Snapshot
from svc_kit.errors import (
    SnapshotCorrupt,
    SnapshotIncompatible,
    SnapshotNotFound,
    SnapshotTooLarge,
    StorageFailed,
)
from svc_kit.local_files import open_regular, own_files

log = logging.getLogger(__name__)
_ID = re.compile(r"snap_[0-9a-f]{24}")
_SUFFIX, _UNFINISHED = ".snapshot", ".unfinished"
# What has another name is not ours: it is neither counted nor deleted.
_FILE = re.compile(rf"{_ID.pattern}\{_SUFFIX}")
_LEFT = re.compile(rf"({_ID.pattern}|key)\{_UNFINISHED}")
_KEY_BYTES = 32
_RESERVED_SHARE = 20


def new_snapshot_id() -> str:
    """Generate a random snapshot id."""
    return f"snap_{secrets.token_hex(12)}"


@dataclass(frozen=True, slots=True)
class FolderLimits:
    """Limits of a folder. In the disk prefix cache `max_age_s` is how long the files of projects
    stay after their last use. `setting` is the name of `max_bytes`. A twentieth of the disk, at
    most `max_reserve_bytes`, stays free for what else is on it."""

    path: Path
    max_bytes: int
    max_files: int
    max_age_s: float = math.inf
    setting: str = "snapshots.max_mib"
    max_reserve_bytes: int = 0


NO_SNAPSHOTS = FolderLimits(Path(os.devnull), 0, 0)
"""Limits that disable snapshots."""


class FolderUsage(NamedTuple):
    """Number and total size of the files in a folder."""

    num_files: int
    num_bytes: int


class SnapshotStore:
    """All snapshots of one server; the folder is created by the first save. One thread at a time
    may use an instance; several instances may share a folder, and read while one writes."""

    def __init__(
        self,
        limits: FolderLimits,
        write: Callable[[BufferedWriter, Snapshot, bytearray, bytes], None] = write,
    ) -> None:
        self._limits = limits
        self._write_file = write
        self._is_tidy = False
        self._blocks = BlockFolder(limits.path / "blocks")
        self._block_names: dict[str, tuple[str, ...]] = {}  # of snapshots that have been read

    def save(self, snapshot: Snapshot, state: bytearray, layout: CellLayout | None = None) -> int:
        """Write a snapshot, with a `layout` as blocks of cells; returns the number of evicted ones.
        Raises `SnapshotTooLarge` or `StorageFailed`."""
        size = file_bytes(snapshot)
        limit = self._limits.max_bytes if self._limits.max_files else 0
        if size > limit:
            raise SnapshotTooLarge(
                snapshot=snapshot.snapshot_id,
                size_bytes=size,
                limit_bytes=limit,
                setting=self._limits.setting,
            )
        with _convert_os_errors():
            self._limits.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._locked() as folder:
                secret, rest = self._prepare(), state
                if layout is not None and layout.num_cells >= BLOCK_TOKENS:
                    rest = without_blocks(state, layout)
                    blocks = name_blocks(state, layout, snapshot.key, secret)
                    snapshot = replace(snapshot, state_bytes=len(rest), blocks=blocks)
                num_evicted = self._evict(snapshot)
                try:
                    if snapshot.blocks is not None:
                        self._blocks.write(snapshot.blocks, state)
                    with _atomic_file(self._path(snapshot.snapshot_id)) as file:
                        self._write_file(file, snapshot, rest, secret)
                except OSError:
                    self._delete_unused()
                    raise
                os.fsync(folder)
        return num_evicted

    @contextmanager
    def open(self, snapshot_id: str) -> Iterator[SnapshotReader]:
        """Open a snapshot; its metadata is read and verified. Raises `SnapshotNotFound`,
        `SnapshotCorrupt`, `SnapshotIncompatible` or `StorageFailed`."""
        with _convert_os_errors(), self._open_file(snapshot_id) as file:
            yield self._reader(file, snapshot_id)
            os.utime(file.fileno())  # the modification time orders eviction

    def ids(self, *, used_before: float = math.inf) -> list[str]:
        """The ids of all snapshots, or of those last used before a Unix time in seconds, the least
        recently used first. Raises `StorageFailed`."""
        with _convert_os_errors():
            return [path.stem for path, status in self._files() if status.st_mtime < used_before]

    def mark_used(self, snapshot_id: str) -> None:
        """Count a use of a snapshot that was not opened, if it exists. Raises as `open`."""
        path = self._path(snapshot_id)
        with _convert_os_errors(), suppress(FileNotFoundError):
            os.utime(path, follow_symlinks=False)

    def describe(self, snapshot_id: str) -> Snapshot:
        """Read the metadata of a snapshot without counting as a use. Raises as `open`."""
        with _convert_os_errors(), self._open_file(snapshot_id) as file:
            return self._reader(file, snapshot_id).snapshot

    def _reader(self, file: BufferedReader, snapshot_id: str) -> SnapshotReader:
        try:
            secret = self._read_key()
        except FileNotFoundError:
            raise SnapshotCorrupt(snapshot=snapshot_id, fault="foreign") from None
        size = os.fstat(file.fileno()).st_size
        return SnapshotReader(file, size, snapshot_id, secret, self._blocks)

    def drop(self, snapshot_ids: Iterable[str]) -> int:
        """Delete snapshots; returns how many existed. Raises `StorageFailed`."""
        count = 0
        with _convert_os_errors():
            for snapshot_id in snapshot_ids:
                if _ID.fullmatch(snapshot_id) and _is_regular(self._path(snapshot_id)):
                    self._path(snapshot_id).unlink(missing_ok=True)
                    count += 1
            if count:
                with self._locked():
                    self._tidy()
                    self._delete_unused()
        return count

    @property
    def usage(self) -> FolderUsage:
        """Current usage, with blocks; zero if the folder cannot be read."""
        try:
            sizes = [status.st_size for _, status in self._files()]
            return FolderUsage(len(sizes), sum(sizes) + self._blocks.num_bytes)
        except OSError:
            return FolderUsage(0, 0)

    def _prepare(self) -> bytes:
        """The key of the locked folder, created if it has none, as after somebody deleted it."""
        self._tidy()
        try:
            return self._read_key()
        except FileNotFoundError:
            return self._create_key()

    def _tidy(self) -> None:
        """Delete what a crash left in the locked folder, files that are unfinished and unused
        blocks, when it is first locked."""
        if not self._is_tidy:
            for unfinished in own_files(self._limits.path, _LEFT):
                unfinished.unlink(missing_ok=True)
            self._delete_unused()
            self._is_tidy = True

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Lock the folder for writing; yields its file descriptor."""
        descriptor = os.open(self._limits.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)

    def _path(self, snapshot_id: str) -> Path:
        if not _ID.fullmatch(snapshot_id):
            raise SnapshotNotFound(snapshot=snapshot_id)
        return self._limits.path / f"{snapshot_id}{_SUFFIX}"

    def _open_file(self, snapshot_id: str) -> BufferedReader:
        """Open the file of a snapshot, which must be a regular file."""
        path = self._path(snapshot_id)
        try:
            path.lstat()
            if not _is_regular(path):
                raise SnapshotCorrupt(snapshot=snapshot_id, fault="foreign")
            return BufferedReader(open_regular(path))
        except FileNotFoundError:
            raise SnapshotNotFound(snapshot=snapshot_id) from None

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        """Every snapshot, the least recently used first."""
        files = []
        for path in own_files(self._limits.path, _FILE):
            with suppress(FileNotFoundError):  # deleted by another process meanwhile
                files.append((path, path.lstat()))
        return sorted(files, key=lambda entry: entry[1].st_mtime_ns)

    def _evict(self, new: Snapshot) -> int:
        """Delete the least recently used files until a new one fits; returns their number. Raises
        `StorageFailed`, and deletes none, if the disk is nearly full."""
        size, kept = file_bytes(new), tuple[str, ...]()
        if new.blocks is not None:
            size, kept = size + self._blocks.missing_bytes(new.blocks), new.blocks.names
        self._check_free_space(size)
        files = self._files()
        for num_evicted, (path, _) in enumerate(files):
            usage = self.usage
            num_files, num_bytes = usage.num_files + 1, usage.num_bytes + size
            if num_files <= self._limits.max_files and num_bytes <= self._limits.max_bytes:
                return num_evicted
            log.info("evicting snapshot %s", path.stem)
            path.unlink(missing_ok=True)
            self._delete_unused(kept)
        return len(files)

    def _check_free_space(self, num_bytes: int) -> None:
        disk = shutil.disk_usage(self._limits.path)
        reserve = min(disk.total // _RESERVED_SHARE, self._limits.max_reserve_bytes)
        if self._limits.max_reserve_bytes and disk.free - num_bytes < reserve:
            raise StorageFailed(problem=f"only {disk.free >> 20} MiB are free on its disk")

    def _delete_unused(self, kept: Iterable[str] = ()) -> None:
        """Delete the blocks that no snapshot has, except some; none while a snapshot cannot be
        read, which may have them. The folder must be locked."""
        if not self._blocks.exists:
            return
        known = self._block_names
        ids = [path.stem for path, _ in self._files()]
        with suppress(StorageFailed):
            self._block_names = {
                each: known[each] if each in known else self._read_names(each) for each in ids
            }
            self._blocks.delete_others({*kept, *chain(*self._block_names.values())})

    def _read_names(self, snapshot_id: str) -> tuple[str, ...]:
        """The names of a snapshot's blocks; of none if its file is damaged."""
        try:
            blocks = self.describe(snapshot_id).blocks
        except (SnapshotCorrupt, SnapshotIncompatible, SnapshotNotFound):
            blocks = None
        return () if blocks is None else blocks.names

    @property
    def _key_path(self) -> Path:
        return self._limits.path / "key"

    def _read_key(self) -> bytes:
        with open_regular(self._key_path) as file:
            key = file.read(_KEY_BYTES + 1)
        if len(key) != _KEY_BYTES:
            problem = f"'key' in the folder of snapshots has not {_KEY_BYTES} bytes: remove it"
            raise StorageFailed(problem=problem)
        return key

    def _create_key(self) -> bytes:
        """Create a key, which invalidates all existing snapshots."""
        key = secrets.token_bytes(_KEY_BYTES)
        with _atomic_file(self._key_path) as file:
            file.write(key)
        return key


def _is_regular(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


@contextmanager
def _atomic_file(path: Path) -> Iterator[BufferedWriter]:
    """Write to a temporary file, flush it to disk, then rename it."""
    unfinished = path.with_suffix(_UNFINISHED)
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def _convert_os_errors() -> Iterator[None]:
    """Convert OSError to `StorageFailed`."""
    try:
        yield
    except OSError as error:
        log.error("snapshot storage failed: %s", error)
        raise StorageFailed(problem=error.strerror or "I/O error") from error
