"""The disk cache of adapter files by digest, and the signal of a change."""

import asyncio
import hashlib
import os
import secrets
from collections.abc import AsyncIterator, Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

from svc_kit.errors import AdapterDigestMismatch, AdapterTooLarge
from svc_kit.local_files import disk_errors


class ChangeSignal:
    """Wakes all current waiters after a change. Use on one event loop."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def ring(self) -> None:
        """Wake all waiters."""
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self, at_most_s: float | None = None) -> None:
        """Return at the next ring, or after so many seconds; None: however long it takes."""
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most_s):
                await self._next.wait()


_SUFFIX: Final = ".gguf"
_INCOMING: Final = "incoming-"


class AdapterCache:
    """The folder, of at most `max_bytes`."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._coming: dict[str, int] = {}
        """Bytes of the digests on their way, for which there is room already."""
        self._arrived = ChangeSignal()
        self._one_looks = asyncio.Lock()

    def open(self) -> None:
        """Make the folder and remove what never became whole. Raises `OSError`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for draft in self._folder.glob(f"{_INCOMING}*"):
            draft.unlink(missing_ok=True)

    def find(self, digest: str) -> Path | None:
        """The file of a digest, which counts as used now."""
        path = self._path(digest)
        if not path.is_file():
            return None
        os.utime(path)
        return path

    def drop(self, digest: str) -> None:
        """Delete a file whose digest does not match its name."""
        self._path(digest).unlink(missing_ok=True)

    async def store(
        self,
        name: str,
        digest: str,
        size_bytes: int,
        chunks: AsyncIterator[bytes],
        wanted: Collection[str],
    ) -> Path:
        """Keep the bytes of the adapter `name`; files of digests that are not `wanted` make room.

        Where they are on their way already, for another adapter, they are waited for. Raises
        AdapterTooLarge where there is no room, AdapterDigestMismatch for other bytes, StorageFailed
        where the disk is full or fails.
        """
        while digest in self._coming:
            await self._arrived.wait()
        path = self.find(digest)
        if path is not None:
            return path
        self._coming[digest] = 0
        try:
            async with self._one_looks:
                room = self._max_bytes - sum(self._coming.values())
                await asyncio.to_thread(self._make_room, name, size_bytes, room, wanted)
                self._coming[digest] = size_bytes
            return await self._receive(name, digest, chunks)
        finally:
            self._coming.pop(digest, None)
            self._arrived.ring()

    async def _receive(self, name: str, digest: str, chunks: AsyncIterator[bytes]) -> Path:
        draft = self._folder / f"{_INCOMING}{secrets.token_hex(8)}"
        try:
            found = await _write(draft, chunks)
            if found != digest:
                raise AdapterDigestMismatch(adapter=name, expected=digest, actual=found)
            async with self._one_looks:  # who looks for room counts it once: as coming, or as here
                with disk_errors():
                    draft.replace(self._path(digest))
                del self._coming[digest]
        finally:
            draft.unlink(missing_ok=True)
        return self._path(digest)

    def _make_room(self, name: str, size_bytes: int, room: int, wanted: Collection[str]) -> None:
        """Delete until there is room; `room` is what there would be without any file."""
        with disk_errors():
            files = [(path.stat(), path) for path in self._folder.glob(f"*{_SUFFIX}")]
            room -= sum(stat.st_size for stat, _ in files)
            unwanted = [(stat, path) for stat, path in files if path.stem not in wanted]
            for stat, path in sorted(unwanted, key=lambda each: each[0].st_mtime):
                if room >= size_bytes:
                    break
                path.unlink()
                room += stat.st_size
        if room < size_bytes:
            raise AdapterTooLarge(
                adapter=name, needed_bytes=size_bytes, available_bytes=max(room, 0)
            )

    def _path(self, digest: str) -> Path:
        return self._folder / f"{digest}{_SUFFIX}"


async def _write(draft: Path, chunks: AsyncIterator[bytes]) -> str:
    digest = hashlib.sha256()
    with disk_errors():
        file = await asyncio.to_thread(draft.open, "xb")
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
