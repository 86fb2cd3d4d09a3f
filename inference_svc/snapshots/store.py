"""The folder of snapshots: files of mode 0600, complete or absent, evicted by least recent use.

All state is in the folder, so engine processes may share it.
"""

import fcntl
import logging
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import NamedTuple

from inference_svc.snapshots.file_format import SnapshotReader, file_bytes, write
from inference_svc.snapshots.snapshot import Snapshot
from svc_kit.errors import SnapshotCorrupt, SnapshotNotFound, SnapshotTooLarge, StorageFailed

log = logging.getLogger(__name__)
_ID = re.compile(r"snap_[0-9a-f]{24}")
_SUFFIX, _UNFINISHED = ".snapshot", ".unfinished"
_KEY_BYTES = 32


def new_snapshot_id() -> str:
    """A new random name."""
    return f"snap_{secrets.token_hex(12)}"


@dataclass(frozen=True, slots=True)
class FolderLimits:
    """Where snapshots are kept, and how many at most."""

    path: Path
    max_bytes: int
    max_files: int


NO_SNAPSHOTS = FolderLimits(Path(os.devnull), 0, 0)
"""No snapshots at all."""


class FolderUse(NamedTuple):
    """How many files there are, and their bytes."""

    num_files: int
    num_bytes: int


class SnapshotStore:
    """All snapshots of one server, made with its first one. Used by one thread at a time; others
    of the same folder may be used beside it."""

    def __init__(self, limits: FolderLimits) -> None:
        self._limits = limits
        self._key = b""

    def save(self, snapshot: Snapshot, state: bytearray) -> int:
        """Write a snapshot; returns how many others made room. Raises `SnapshotTooLarge` or
        `StorageFailed`."""
        size = file_bytes(snapshot)
        limit = self._limits.max_bytes if self._limits.max_files else 0
        if size > limit:
            raise SnapshotTooLarge(
                snapshot=snapshot.snapshot_id,
                size_bytes=size,
                limit_bytes=limit,
                setting="snapshots.max_mib",
            )
        with _storage():
            secret = self._secret
            with self._locked() as folder:
                num_gone = self._make_room(size)
                self._write(self._path(snapshot.snapshot_id), snapshot, state, secret)
                os.fsync(folder)
        return num_gone

    @contextmanager
    def open(self, snapshot_id: str) -> Iterator[SnapshotReader]:
        """A snapshot, its description read and checked. Raises `SnapshotNotFound`,
        `SnapshotCorrupt`, `SnapshotIncompatible` or `StorageFailed`."""
        with _storage(), self._file(snapshot_id) as file:
            yield self._reader(file, snapshot_id)
            os.utime(file.fileno())  # it was used

    def ids(self) -> list[str]:
        """All that there are, the least recently used first. Raises `StorageFailed`."""
        with _storage():
            return [path.stem for path, _ in self._files()]

    def describe(self, snapshot_id: str) -> Snapshot:
        """Read the metadata of a snapshot without counting as a use. Raises as `open`."""
        with _storage(), self._file(snapshot_id) as file:
            return self._reader(file, snapshot_id).snapshot

    def _reader(self, file: BufferedReader, snapshot_id: str) -> SnapshotReader:
        return SnapshotReader(file, os.fstat(file.fileno()).st_size, snapshot_id, self._secret)

    def drop(self, snapshot_ids: Iterable[str]) -> int:
        """Delete snapshots; returns how many there were. Raises `StorageFailed`."""
        count = 0
        with _storage():
            for snapshot_id in snapshot_ids:
                if _ID.fullmatch(snapshot_id) and self._path(snapshot_id).exists():
                    self._path(snapshot_id).unlink(missing_ok=True)
                    count += 1
        return count

    @property
    def use(self) -> FolderUse:
        """What there is now; nothing where the folder cannot be read."""
        try:
            sizes = [facts.st_size for _, facts in self._files()]
        except OSError:
            sizes = []
        return FolderUse(len(sizes), sum(sizes))

    @property
    def _secret(self) -> bytes:
        """The folder's key. The first time the folder is made, and what a crash left unfinished is
        removed."""
        if not self._key:
            self._limits.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._locked():
                for left in self._limits.path.glob(f"*{_UNFINISHED}"):
                    left.unlink(missing_ok=True)
                self._key = self._read_or_make_key()
        return self._key

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Lock the folder for writing; yields its descriptor."""
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

    def _file(self, snapshot_id: str) -> BufferedReader:
        """An open file, of which at least the kind is right."""
        path = self._path(snapshot_id)
        try:
            if not stat.S_ISREG(path.lstat().st_mode):
                raise SnapshotCorrupt(snapshot=snapshot_id, fault="foreign")
            # What it became meanwhile is neither followed nor waited for.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            return os.fdopen(os.open(path, flags), "rb")
        except FileNotFoundError:
            raise SnapshotNotFound(snapshot=snapshot_id) from None

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        """Every snapshot, the least recently used first."""
        plain = []
        for path in self._limits.path.glob(f"snap_*{_SUFFIX}"):
            with suppress(FileNotFoundError):  # another process has just dropped it
                facts = path.lstat()
                if stat.S_ISREG(facts.st_mode):
                    plain.append((path, facts))
        return sorted(plain, key=lambda entry: entry[1].st_mtime_ns)

    def _make_room(self, size: int) -> int:
        files = self._files()
        total = sum(facts.st_size for _, facts in files)
        for num_gone, (path, facts) in enumerate(files):
            left = len(files) - num_gone
            if left < self._limits.max_files and total + size <= self._limits.max_bytes:
                return num_gone
            log.info("evicting snapshot %s", path.stem)
            path.unlink(missing_ok=True)
            total -= facts.st_size
        return len(files)

    def _write(self, path: Path, snapshot: Snapshot, state: bytearray, secret: bytes) -> None:
        """Write beside the place, reach the disk, then take the place."""
        unfinished = path.with_suffix(_UNFINISHED)
        try:
            with _new_file(unfinished) as file:
                write(file, snapshot, state, secret)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)

    def _read_or_make_key(self) -> bytes:
        """A new key makes older snapshots foreign."""
        path = self._limits.path / "key"
        try:
            key = path.read_bytes()
        except FileNotFoundError:
            key = b""
        if len(key) == _KEY_BYTES:
            return key
        key, unfinished = secrets.token_bytes(_KEY_BYTES), path.with_suffix(_UNFINISHED)
        with _new_file(unfinished) as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        return key


def _new_file(path: Path) -> BufferedWriter:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


@contextmanager
def _storage() -> Iterator[None]:
    """Convert OSErrors to DomainErrors."""
    try:
        yield
    except OSError as error:
        log.error("snapshots: %s", error)
        raise StorageFailed(problem=error.strerror or "input or output failed") from error
