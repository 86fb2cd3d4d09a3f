"""The disk cache of adapter files, by digest, and a change signal."""

import asyncio
import hashlib
import os
import re
import secrets
from collections.abc import AsyncIterator, Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

from svc_kit.errors import AdapterDigestMismatch, AdapterTooLarge
from svc_kit.local_files import disk_errors, own_files
from svc_kit.tasks import open_in_thread


class ChangeSignal:
    """Wakes all current waiters after a change. Use on one event loop."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def notify(self) -> None:
        """Wake all waiters."""
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self, timeout_s: float | None = None) -> None:
        """Return at the next change, or after `timeout_s` (None: no timeout)."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._next.wait()


_SUFFIX: Final = ".gguf"
_INCOMING: Final = "incoming-"
# What has another name is not ours: it is neither counted nor deleted.
_FILE: Final = re.compile(rf"[0-9a-f]{{64}}\{_SUFFIX}")
_LEFT: Final = re.compile(rf"{_INCOMING}[0-9a-f]{{16}}")


class AdapterCache:
    """Adapter files in a folder of at most `max_bytes`."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._incoming: dict[str, int] = {}
        """Reserved bytes of the downloads in progress, by digest."""
        self._finished = ChangeSignal()
        self._space_lock = asyncio.Lock()

    def open(self) -> None:
        """Create the folder and remove incomplete files. Raises `OSError`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for draft in own_files(self._folder, _LEFT):
            draft.unlink(missing_ok=True)

    def find(self, digest: str) -> Path | None:
        """Return the file of a digest and mark it as used now; None if it is missing."""
        path = self._path(digest)
        if not path.is_file():
            return None
        os.utime(path)
        return path

    def delete(self, digest: str) -> None:
        self._path(digest).unlink(missing_ok=True)

    async def store(
        self,
        name: str,
        digest: str,
        size_bytes: int,
        chunks: AsyncIterator[bytes],
        desired: Collection[str],
    ) -> Path:
        """Store the file of the adapter `name`, evicting files with digests not in `desired`.

        A download of the same digest in progress is waited for instead. Raises `AdapterTooLarge` if
        the cache has no space, `AdapterDigestMismatch` for other bytes, and `StorageFailed` if the
        disk is full or fails.
        """
        while digest in self._incoming:
            await self._finished.wait()
        path = self.find(digest)
        if path is not None:
            return path
        self._incoming[digest] = 0
        try:
            async with self._space_lock:
                limit = self._max_bytes - sum(self._incoming.values())
                await asyncio.to_thread(self._free_space, name, size_bytes, limit, desired)
                self._incoming[digest] = size_bytes
            return await self._receive(name, digest, chunks)
        finally:
            self._incoming.pop(digest, None)
            self._finished.notify()

    async def _receive(self, name: str, digest: str, chunks: AsyncIterator[bytes]) -> Path:
        draft = self._folder / f"{_INCOMING}{secrets.token_hex(8)}"
        try:
            actual = await _write(draft, chunks)
            if actual != digest:
                raise AdapterDigestMismatch(adapter=name, expected=digest, actual=actual)
            async with self._space_lock:  # so that its bytes are counted once
                with disk_errors():
                    draft.replace(self._path(digest))
                del self._incoming[digest]
        finally:
            draft.unlink(missing_ok=True)
        return self._path(digest)

    def _free_space(self, name: str, size_bytes: int, limit: int, desired: Collection[str]) -> None:
        """Delete files until `size_bytes` are free; `limit` applies to all files together."""
        with disk_errors():
            files = [(path.stat(), path) for path in own_files(self._folder, _FILE)]
            free = limit - sum(stat.st_size for stat, _ in files)
            unused = [(stat, path) for stat, path in files if path.stem not in desired]
            for stat, path in sorted(unused, key=lambda each: each[0].st_mtime):
                if free >= size_bytes:
                    break
                path.unlink()
                free += stat.st_size
        if free < size_bytes:
            raise AdapterTooLarge(
                adapter=name, needed_bytes=size_bytes, available_bytes=max(free, 0)
            )

    def _path(self, digest: str) -> Path:
        return self._folder / f"{digest}{_SUFFIX}"


async def _write(draft: Path, chunks: AsyncIterator[bytes]) -> str:
    digest = hashlib.sha256()
    with disk_errors():
        file = await open_in_thread(lambda: draft.open("xb"))
    try:
        async for chunk in chunks:
            digest.update(chunk)
            with disk_errors():
                await asyncio.to_thread(file.write, chunk)
        with disk_errors():
            file.flush()
            await asyncio.to_thread(os.fsync, file.fileno())
    finally:
        file.close()
    return digest.hexdigest()
