"""Local files: disk errors as DomainErrors, allowed folders, private and atomic files."""

import hashlib
import os
import secrets
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Self

from svc_kit.errors import InvalidField, StorageFailed


@contextmanager
def disk_errors() -> Iterator[None]:
    """Raises StorageFailed where the disk is full, or fails."""
    try:
        yield
    except OSError as error:
        raise StorageFailed(problem=error.strerror or "input or output failed") from error


class AllowedFolders:
    """The folders that files may come from."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = [folder.expanduser().resolve() for folder in folders]

    def find(self, field: str, path: str) -> Path:
        """The file, in one of the folders: links and ".." lead nowhere else.

        Raises `InvalidField`: a path outside of all is refused without a word on what is there.
        """
        with suppress(OSError, ValueError):  # no name that a file could have
            for folder in self._folders:
                found = (folder / path).resolve()
                if found.is_relative_to(folder) and found.is_file():
                    return found
        raise InvalidField(
            field=field, problem="there is no such file in the folders that adapters may come from"
        )


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


@contextmanager
def whole_file(output: Path) -> Iterator[BinaryIO]:
    """A temporary file that replaces `output` when it is complete."""
    part = output.with_name(f"{output.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as written:
            yield written
        part.replace(output)
    finally:
        part.unlink(missing_ok=True)
