"""A file that nobody else can change, for as long as this process wants it.

What was checked is then what is used, whatever has become of the original. The file has no name:
nothing of it is left behind, however the process ends. Other processes of the same user reach it
through this one's descriptor.
"""

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Self

_BLOCK_BYTES = 1 << 20


class PrivateFile:
    """The file, by `path`; `size_bytes` and `digest` (SHA-256 in hex) are of what was written."""

    def __init__(self, folder: Path) -> None:
        """An empty file in the file system of `folder`. Raises `OSError`."""
        folder.mkdir(parents=True, exist_ok=True)
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # open until `close`
        self._sha256 = hashlib.sha256()
        self.size_bytes = 0
        self.path = Path(f"/proc/{os.getpid()}/fd/{self._file.fileno()}")

    @classmethod
    def copy_of(cls, source: Path, folder: Path) -> Self:
        """A copy. Raises `OSError`."""
        copy = cls(folder)
        try:
            with source.open("rb") as file:
                while block := file.read(_BLOCK_BYTES):
                    copy.write(block)
            copy.flush()
        except BaseException:
            copy.close()
            raise
        return copy

    @property
    def digest(self) -> str:
        """The digest of what was written so far."""
        return self._sha256.hexdigest()

    def write(self, block: bytes) -> None:
        """Append; others see it after `flush`. Raises `OSError`."""
        self._file.write(block)
        self._sha256.update(block)
        self.size_bytes += len(block)

    def flush(self) -> None:
        """Let others see what was written. Raises `OSError`."""
        self._file.flush()

    def close(self) -> None:
        """Give it up. May be called again."""
        self._file.close()
