"""Bytes in a folder: written beside their final place, and moved there when they are safe.

    incoming/KEY      on their way; of a writer that died they stay until the sweeper comes
    ab/KEY            complete: on the disk, never changed, "ab" being the key's first two digits
    INSTALLATION      the id of the database whose rows name these bytes

Keys are made here. Nothing that a caller says becomes part of a path. All work on the disk is done
by threads, because a slow disk must not stop the event loop.
"""

import asyncio
import hashlib
import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Final

from control_svc.blobs.store import Blob, BlobMissing, BlobSink, StoredKey, run_shielded
from svc_kit.lifecycle import StartupError
from svc_kit.local_files import disk_errors

READ_BYTES: Final = 256 * 1024
_GATHERED_BYTES: Final = 1024 * 1024
_GATHERED_CHUNKS: Final = 256
_PUSHED_BYTES: Final = 8 * 1024 * 1024
_INCOMING: Final = "incoming"
_INSTALLATION: Final = "INSTALLATION"


class FolderBlobs:
    """A BlobStore in a folder that no other program writes to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._incoming = folder / _INCOMING

    def prepare(self) -> None:
        """Make the folders. Raises OSError."""
        self._incoming.mkdir(mode=0o700, parents=True, exist_ok=True)

    def claim(self, installation: str) -> None:
        """Bind the folder to the database with this id; blobs of another database would be swept.
        Raises StartupError if the folder belongs to another database or has no owner; OSError.
        """
        is_used = any(any(shelf.iterdir()) for shelf in self._shelves())
        path = self._folder / _INSTALLATION
        if not path.exists():
            if is_used:
                raise StartupError(
                    f"{self._folder} holds files, but does not say of which database: choose"
                    f" another data_dir, or write {installation} to {path} if they are this one's"
                )
            self._write_once(path, installation)
        if path.read_text().strip() != installation:
            raise StartupError(
                f"{self._folder} holds the files of another database: choose another data_dir,"
                " or the database that belongs to it (database_url, or a backup)"
            )

    @asynccontextmanager
    async def create(self) -> AsyncIterator[BlobSink]:
        """Begin new bytes; left without `commit`, also by a cancellation, they are removed."""
        key = secrets.token_hex(16)
        sink = _FileSink(key, self._incoming / key, self._path(key))
        try:
            yield sink
        finally:
            await run_shielded(sink.close())

    async def read(self, key: str, offset: int, length: int) -> AsyncGenerator[bytes, None]:
        """The bytes of a range in chunks. Raises BlobMissing before the first of them."""
        opening = asyncio.create_task(asyncio.to_thread(self._open, key))
        try:
            file = await asyncio.shield(opening)
        except asyncio.CancelledError:
            with suppress(BlobMissing):
                (await opening).close()  # the thread opens it all the same
            raise
        try:
            end = offset + length
            while offset < end:
                # pread: a cancelled one may still be running when the file is closed.
                count = min(READ_BYTES, end - offset)
                chunk = await asyncio.to_thread(os.pread, file.fileno(), count, offset)
                if not chunk:
                    raise BlobMissing(f"the bytes of {key} end too early")
                offset += len(chunk)
                yield chunk
        finally:
            file.close()

    async def delete(self, keys: Collection[str]) -> None:
        """Delete; what is not there is no error."""
        if keys:
            await asyncio.to_thread(self._unlink, list(keys))

    async def keys(self) -> AsyncIterator[Sequence[StoredKey]]:
        """Everything in the store, a folder at a time."""
        for folder in [self._incoming, *await asyncio.to_thread(self._shelves)]:
            yield await asyncio.to_thread(_stored_in, folder)

    def _shelves(self) -> list[Path]:
        """The folders of complete bytes; what else lies there is not ours."""
        return sorted(entry for entry in self._folder.glob("??") if entry.is_dir())

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
        return self._folder / key[:2] / key

    def _open(self, key: str) -> FileIO:
        try:
            return self._path(key).open("rb", buffering=0)
        except FileNotFoundError:
            raise BlobMissing(f"there are no bytes under {key}") from None

    def _unlink(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._path(key).unlink(missing_ok=True)
            (self._incoming / key).unlink(missing_ok=True)


class _FileSink:
    """One file on its way."""

    def __init__(self, key: str, path: Path, final: Path) -> None:
        self._key = key
        self._path = path
        self._final = final
        self._digest = hashlib.sha256()
        self._size_bytes = 0
        self._pushed_bytes = 0
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._is_committed = False
        self._running: asyncio.Future[None] | None = None
        self._file: FileIO | None = None

    @property
    def size_bytes(self) -> int:
        """How much has been written."""
        return self._size_bytes

    async def write(self, chunk: bytes) -> None:
        """Append, while the bytes before are being written; a failure is raised by the next call.
        Small chunks are collected, since each write takes a thread.
        """
        if not chunk:
            return
        self._gathered.append(chunk)
        self._gathered_bytes += len(chunk)
        self._size_bytes += len(chunk)
        if self._gathered_bytes >= _GATHERED_BYTES or len(self._gathered) >= _GATHERED_CHUNKS:
            await self._flush()

    async def sha256(self) -> str:
        """The digest of what has been written."""
        await self._flush()
        await self._settle()
        return self._digest.hexdigest()

    async def commit(self) -> Blob:
        """Write the rest, have it on the disk, and move it to its place."""
        digest = await self.sha256()
        self._start(self._finish)
        await self._settle()
        return Blob(self._key, self._size_bytes, digest)

    async def close(self) -> None:
        """Remove what was not committed, after the thread that a cancelled task left behind.

        A file that is closed under a thread's write could be another one by then.
        """
        if self._running is not None:
            await asyncio.wait([self._running])
            self._running.exception()  # whom it concerned has heard of it, or has left
            await asyncio.to_thread(self._remove)

    async def _flush(self) -> None:
        """Hand what is gathered to a thread, when that has done what it had."""
        await self._settle()
        chunks, self._gathered, self._gathered_bytes = self._gathered, [], 0
        self._start(lambda: self._append(chunks))

    def _start(self, work: Callable[[], None]) -> None:
        self._running = asyncio.ensure_future(asyncio.to_thread(work))

    async def _settle(self) -> None:
        if self._running is not None:
            await asyncio.shield(self._running)

    def _remove(self) -> None:
        if self._file is not None:
            self._file.close()
        if not self._is_committed:
            self._path.unlink(missing_ok=True)

    def _append(self, chunks: Sequence[bytes]) -> None:
        with disk_errors():
            file = self._opened()
            for chunk in chunks:
                self._digest.update(chunk)
                view = memoryview(chunk)
                while view:
                    view = view[file.write(view) or 0 :]
            self._push(file)

    def _push(self, file: FileIO) -> None:
        """Start writing dirty pages to the disk, so that little is left for the end, and drop them
        from the page cache.
        """
        written = file.tell()
        if written - self._pushed_bytes >= _PUSHED_BYTES and hasattr(os, "posix_fadvise"):
            length = written - self._pushed_bytes
            os.posix_fadvise(file.fileno(), self._pushed_bytes, length, os.POSIX_FADV_DONTNEED)
            self._pushed_bytes = written

    def _opened(self) -> FileIO:
        """The file, made by the thread that first needs it: `close` knows of that thread."""
        if self._file is None:
            self._file = self._path.open("xb", buffering=0)
        return self._file

    def _finish(self) -> None:
        with disk_errors():
            os.fsync(self._opened().fileno())
            # The sweeper counts from here: a row will name these bytes within the same call.
            os.utime(self._path)
            self._final.parent.mkdir(mode=0o700, exist_ok=True)
            self._path.rename(self._final)
            self._is_committed = True
            for folder in (self._final.parent, self._final.parent.parent):
                _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    """Have a folder's entries on the disk: without it a power cut may undo the move."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _stored_in(folder: Path) -> list[StoredKey]:
    found = []
    for entry in os.scandir(folder):
        try:
            touched = entry.stat().st_mtime
        except FileNotFoundError:
            continue  # moved or deleted meanwhile
        found.append(StoredKey(entry.name, datetime.fromtimestamp(touched, UTC)))
    return found
