"""Disk space that is kept for deletions, in a file beside that of SQLite.

SQLite writes to its log even to delete, so that on a full disk nothing could be deleted.
"""

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from svc_kit.lifecycle import StartupError
from svc_kit.local_files import open_regular

FILE_NAME: Final = "reserve"
RESERVE_BYTES: Final = 4 * 1024 * 1024
"""More than the log grows by in the largest deletion, of `cleanup.ROWS_AT_ONCE` rows."""


class DiskReserve:
    """Allocated space. Its methods block and may be called from any thread."""

    def __init__(self, folder: Path, num_bytes: int = RESERVE_BYTES) -> None:
        self.is_released = False
        """Whether the space was given up; other writes must wait until it is allocated again."""
        self._path = folder / FILE_NAME
        self._num_bytes = num_bytes
        self._lock = threading.Lock()

    def check(self) -> None:
        """Raise StartupError if the file is of somebody else: ours has zeros alone."""
        try:
            with open_regular(self._path) as file:
                content = file.read(self._num_bytes + 1)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StartupError(f"{self._path} cannot be used: {error.strerror}") from error
        if len(content) > self._num_bytes or content.strip(b"\0"):
            raise StartupError(
                f"{self._path} is not the space that Corral keeps for deletions: move it away"
            )

    def fill(self) -> bool:
        """Allocate the space; return False if the disk is too full. Does nothing on macOS."""
        if not hasattr(os, "posix_fallocate"):
            return True
        with self._lock:
            try:
                with self._path.open("ab") as file:
                    os.posix_fallocate(file.fileno(), 0, self._num_bytes)
            except OSError:
                self._truncate()
                return False
            self.is_released = False
            return True

    def release(self) -> None:
        """Give up the space."""
        with self._lock:
            self._truncate()
            self.is_released = True

    def _truncate(self) -> None:
        with suppress(FileNotFoundError):
            os.truncate(self._path, 0)
