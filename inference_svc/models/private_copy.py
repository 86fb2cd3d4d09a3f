"""A copy of a file that nobody else can change, for as long as this process wants it.

What was checked is then what is loaded, and what an engine that is started again loads once more,
whatever has become of the original. The copy has no name: nothing of it is left behind, however the
process ends. Other processes of the same user reach it through this one's descriptor.
"""

import hashlib
import os
import tempfile
from pathlib import Path
from typing import BinaryIO

_BLOCK_BYTES = 1 << 20


class PrivateCopy:
    """The copy, by `path`; `digest` is its SHA-256 in hex."""

    def __init__(self, source: Path, folder: Path) -> None:
        """Copy a file to the file system of `folder`. Raises `OSError`."""
        folder.mkdir(parents=True, exist_ok=True)
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # open until `close`
        try:
            self.digest = _copy(source, self._file)
        except BaseException:
            self._file.close()
            raise
        self.path = Path(f"/proc/{os.getpid()}/fd/{self._file.fileno()}")

    def close(self) -> None:
        """Give it up. May be called again."""
        self._file.close()


def _copy(source: Path, target: BinaryIO) -> str:
    digest = hashlib.sha256()
    with source.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            target.write(block)
    target.flush()
    return digest.hexdigest()
