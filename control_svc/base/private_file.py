"""Temporary files on the service's disk that only it can open, for sandboxed child processes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from svc_kit.local_files import PrivateFile, disk_errors


@asynccontextmanager
async def temporary_file(folder: Path) -> AsyncIterator[PrivateFile]:
    """A file for as long as the block runs; one that a thread still opens for a caller who has
    left is closed too. Raises StorageFailed."""
    opening = asyncio.ensure_future(asyncio.to_thread(PrivateFile, folder))
    try:
        with disk_errors():
            file = await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close_opened)
        raise
    try:
        yield file
    finally:
        file.close()


def _close_opened(opening: "asyncio.Future[PrivateFile]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
