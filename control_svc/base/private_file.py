"""Temporary files that only this service can open, for sandboxed child processes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from svc_kit.local_files import PrivateFile, disk_errors


@asynccontextmanager
async def temporary_file(folder: Path) -> AsyncIterator[PrivateFile]:
    """Open a file that exists while the context is open. Raises StorageFailed.

    If the caller is cancelled while a thread opens the file, the file is closed too.
    """
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
