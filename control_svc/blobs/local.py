"""A blob store in a folder.

    incoming/KEY      a blob that is being written; the sweeper deletes those of killed writers
    ab/KEY            a complete, synced blob; "ab" are the first two digits of the key
    INSTALLATION      the id of the database that references the blobs
    LAST_BACKUP       the time of the newest complete backup
    suspensions/NAME  the time until which a backup suspends deletions

Keys are generated; files with other names belong to others and are neither listed nor deleted. All
disk access is in threads, because a slow disk must not block the event loop.
"""

import asyncio
import errno
import hashlib
import os
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Final

from control_svc.blobs.store import (
    HOLDER,
    KEY,
    Blob,
    BlobSink,
    StoredKey,
    is_future,
    read_suspension,
    read_time,
    run_shielded,
    suspension_end,
)
from svc_kit.errors import BlobMissing
from svc_kit.lifecycle import StartupError
from svc_kit.local_files import atomic_file, disk_errors, open_regular, own_files
from svc_kit.tasks import open_in_thread

READ_BYTES: Final = 256 * 1024
_BUFFER_BYTES: Final = 1024 * 1024
_BUFFER_CHUNKS: Final = 256
_WRITEBACK_BYTES: Final = 8 * 1024 * 1024
_INCOMING: Final = "incoming"
_INSTALLATION: Final = "INSTALLATION"
_LAST_BACKUP: Final = "LAST_BACKUP"
_SUSPENSIONS: Final = "suspensions"
_SHARD: Final = re.compile("[0-9a-f]{2}")
_ENDED: Final = re.compile(rf"{HOLDER.pattern}(\.[0-9a-f]{{8}}\.part)?")
_NOT_PART: Final = re.compile(r".*(?<!\.part)")


class FolderBlobs:
    """A BlobStore in a folder, under keys of one form."""

    def __init__(self, folder: Path, form: re.Pattern[str] = KEY) -> None:
        self._folder = folder
        self._form = form
        self._incoming = folder / _INCOMING

    def prepare(self) -> None:
        """Create the folders. Raises OSError."""
        for folder in (self._incoming, self._folder / _SUSPENSIONS):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def claim(self, installation: str) -> None:
        """Bind the folder to the database with this id, since the sweeper would delete the blobs
        of another one. Raises StartupError if the folder belongs to another or an unknown database;
        OSError.
        """
        is_used = any(any(folder.iterdir()) for folder in self.shard_folders())
        path = self._folder / _INSTALLATION
        if not path.exists():
            if is_used:
                raise StartupError(
                    f"{self._folder} holds files of an unknown database: choose another data_dir,"
                    f" or write {installation} to {path} if they belong to this one"
                )
            self._write_once(path, installation)
        if path.read_text().strip() != installation:
            raise StartupError(
                f"{self._folder} holds the files of another database: choose another data_dir,"
                " or the database that belongs to it (database_url, or a backup)"
            )

    async def unclaim(self, installation: str) -> None:
        """Undo `claim`. Raises OSError."""
        path = self._folder / _INSTALLATION
        if path.is_file() and path.read_text().strip() == installation:
            path.unlink()

    @asynccontextmanager
    async def create(self, key: str | None = None) -> AsyncIterator[BlobSink]:
        """Begin a new blob. Unless committed, it is removed when the context is left."""
        key = key or secrets.token_hex(16)
        sink = _FileSink(key, self._incoming / key, self._path(key))
        try:
            yield sink
        finally:
            await run_shielded(sink.close())

    async def read(self, key: str, offset: int, length: int) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a range in chunks. Raises BlobMissing."""
        file = await open_in_thread(lambda: self._open(key))
        try:
            end = offset + length
            while offset < end:
                # pread, since a cancelled read may still be running when the file is closed.
                count = min(READ_BYTES, end - offset)
                chunk = await asyncio.to_thread(os.pread, file.fileno(), count, offset)
                if not chunk:
                    raise BlobMissing(blob=key)  # too short
                offset += len(chunk)
                yield chunk
        finally:
            file.close()

    def size(self, key: str) -> int | None:
        """The size of a blob in bytes; None if there is none."""
        path = self._path(key)
        return path.stat().st_size if path.is_file() and not path.is_symlink() else None

    async def delete(self, keys: Collection[str]) -> None:
        """Delete blobs, unless deletions are suspended; missing ones are ignored."""
        if keys:
            await asyncio.to_thread(self._unlink, list(keys))

    async def suspend_deletions(self, holder: str, duration_s: float) -> None:
        """Suspend all deletions for so long; 0 ends it for this holder. Raises StorageFailed."""
        await asyncio.to_thread(self._suspend, holder, duration_s)

    async def is_deletion_suspended(self) -> bool:
        return await asyncio.to_thread(self._is_deletion_suspended)

    async def record_backup(self, time: datetime) -> None:
        """Store the time of the newest complete backup. Raises StorageFailed."""
        await asyncio.to_thread(self._record_backup, time)

    async def last_backup(self) -> datetime | None:
        """The time of the newest complete backup; None without one. Raises StorageFailed."""
        path = self._folder / _LAST_BACKUP
        with disk_errors():
            return read_time(path.read_text().strip()) if path.exists() else None

    async def installation(self) -> str | None:
        """The id of the database that references the blobs; None if there is none yet."""
        path = self._folder / _INSTALLATION
        return path.read_text().strip() if path.exists() else None

    async def keys(self) -> AsyncIterator[Sequence[StoredKey]]:
        """Yield all keys in the store, in groups."""
        for folder in [self._incoming, *await asyncio.to_thread(self.shard_folders)]:
            yield await asyncio.to_thread(self._list_keys, folder)

    def shard_folders(self) -> list[Path]:
        """The folders of complete blobs. Other folders and files are ignored."""
        shards = filter(lambda entry: _SHARD.fullmatch(entry.name), self._folder.glob("??"))
        return sorted(entry for entry in shards if entry.is_dir() and not entry.is_symlink())

    def _list_keys(self, folder: Path) -> list[StoredKey]:
        keys: list[StoredKey] = []
        for path in own_files(folder, self._form):
            with suppress(FileNotFoundError):  # moved or deleted meanwhile
                touched = path.stat().st_mtime
                if folder == self._incoming or path == self._path(path.name):
                    keys.append(StoredKey(path.name, datetime.fromtimestamp(touched, UTC)))
        return keys

    def _record_backup(self, time: datetime) -> None:
        with disk_errors(), atomic_file(self._folder / _LAST_BACKUP) as file:
            file.write(f"{time.isoformat()}\n".encode())

    def _write_once(self, path: Path, text: str) -> None:
        """Write a file unless it exists, atomically by a link."""
        draft = self._incoming / secrets.token_hex(16)
        with draft.open("x") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            path.hardlink_to(draft)
        draft.unlink()
        _sync_folder(path.parent)

    def _path(self, key: str) -> Path:
        """The path of a blob, which is in the folder. Raises BlobMissing for another form."""
        if self._form.fullmatch(key) is None:
            raise BlobMissing(blob=key)
        return self._folder / key[:2] / key

    def _open(self, key: str) -> FileIO:
        path = self._path(key)
        try:
            return open_regular(path)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP, errno.EINVAL):  # none, or not a file
                raise BlobMissing(blob=key) from None
            raise

    def _suspend(self, holder: str, duration_s: float) -> None:
        with disk_errors():
            folder = self._folder / _SUSPENSIONS
            (folder / holder).unlink(missing_ok=True)
            for path in own_files(folder, _ENDED):  # those of killed holders
                end = _read_end(path)
                if end is not None and not is_future(end):
                    path.unlink(missing_ok=True)
            if not duration_s:
                return
            with atomic_file(folder / holder) as file:
                file.write(suspension_end(duration_s).encode())
            # The user of a backup may be another one than that of the service.
            (folder / holder).chmod(0o644)

    def _is_deletion_suspended(self) -> bool:
        folder = self._folder / _SUSPENSIONS
        return any(is_future(_read_end(path)) for path in own_files(folder, _NOT_PART))

    def _unlink(self, keys: Sequence[str]) -> None:
        if self._is_deletion_suspended():
            return
        for key in filter(self._form.fullmatch, keys):
            for path in (self._path(key), self._incoming / key):
                with suppress(FileNotFoundError, IsADirectoryError):
                    path.unlink()


class _FileSink:
    """A file that is being written."""

    def __init__(self, key: str, path: Path, final: Path) -> None:
        self._key = key
        self._path = path
        self._final = final
        self._digest = hashlib.sha256()
        self._size_bytes = 0
        self._writeback_offset = 0
        self._buffer: list[bytes] = []
        self._buffer_bytes = 0
        self._is_committed = False
        self._running: asyncio.Future[None] | None = None
        self._file: FileIO | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
        return self._size_bytes

    async def write(self, chunk: bytes) -> None:
        """Append a chunk, while a thread writes the ones before. Raises StorageFailed for those.

        Small chunks are buffered, since each write needs a thread.
        """
        if not chunk:
            return
        self._buffer.append(chunk)
        self._buffer_bytes += len(chunk)
        self._size_bytes += len(chunk)
        if self._buffer_bytes >= _BUFFER_BYTES or len(self._buffer) >= _BUFFER_CHUNKS:
            await self._flush()

    async def sha256(self) -> str:
        """The digest of the bytes so far."""
        await self._flush()
        await self._wait()
        return self._digest.hexdigest()

    async def commit(self) -> Blob:
        """Write the rest, sync the file, and move it to its final path."""
        digest = await self.sha256()
        self._start(self._finish)
        await self._wait()
        return Blob(self._key, self._size_bytes, digest)

    async def close(self) -> None:
        """Wait for the thread of a cancelled task, and remove an uncommitted file.

        Closing a file during a write could make the thread write to another file, whose descriptor
        is the same.
        """
        if self._running is not None:
            await asyncio.wait([self._running])
            self._running.exception()  # raised already, or the caller is gone
            await asyncio.to_thread(self._remove)

    async def _flush(self) -> None:
        """Wait for the thread, then let it write the buffer."""
        await self._wait()
        chunks, self._buffer, self._buffer_bytes = self._buffer, [], 0
        self._start(lambda: self._append(chunks))

    def _start(self, work: Callable[[], None]) -> None:
        self._running = asyncio.ensure_future(asyncio.to_thread(work))

    async def _wait(self) -> None:
        if self._running is not None:
            await asyncio.shield(self._running)

    def _remove(self) -> None:
        if self._file is not None:
            self._file.close()
        if not self._is_committed:
            self._path.unlink(missing_ok=True)

    def _append(self, chunks: Sequence[bytes]) -> None:
        with disk_errors():
            file = self._open()
            for chunk in chunks:
                self._digest.update(chunk)
                view = memoryview(chunk)
                while view:
                    view = view[file.write(view) or 0 :]
            self._start_writeback(file)

    def _start_writeback(self, file: FileIO) -> None:
        """Write dirty pages to the disk, so that the final fsync is short, and drop them from the
        page cache.
        """
        offset, length = self._writeback_offset, file.tell() - self._writeback_offset
        if length >= _WRITEBACK_BYTES and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), offset, length, os.POSIX_FADV_DONTNEED)
            self._writeback_offset += length

    def _open(self) -> FileIO:
        """Open the file in the first thread that needs it, for which `close` waits."""
        if self._file is None:
            self._file = self._path.open("xb", buffering=0)
        return self._file

    def _finish(self) -> None:
        with disk_errors():
            os.fsync(self._open().fileno())
            os.utime(self._path)  # the sweeper's grace period starts now
            self._final.parent.mkdir(mode=0o700, exist_ok=True)
            self._path.rename(self._final)
            self._is_committed = True
            for folder in (self._final.parent, self._final.parent.parent):
                _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    """Sync the entries of a folder; otherwise a power cut may undo a rename."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read_end(path: Path) -> datetime | None:
    """When a suspension ends; None if it has ended meanwhile, or is something else."""
    try:
        with open_regular(path) as file:
            return read_suspension(path.name, file.read(100).decode(errors="replace"))
    except FileNotFoundError:
        return None
