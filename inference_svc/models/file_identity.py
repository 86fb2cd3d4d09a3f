"""Detects whether the files of a model have changed since they were described.

Snapshots and embeddings contain the digest of the model's files.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from model_files.gguf import ModelFileInvalid

_BLOCK_BYTES = 1 << 20


class FileStamp(NamedTuple):
    """Identifies the content of a file by its metadata."""

    path: Path
    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, path: Path) -> Self:
        """Return the current stamp of a file. Raises `ModelFileInvalid`."""
        try:
            stat = path.stat()
        except OSError as error:
            raise ModelFileInvalid(path, error.strerror or str(error)) from error
        return cls(path, stat.st_ino, stat.st_size, stat.st_mtime_ns)


def hash_files(stamps: Iterable[FileStamp]) -> str:
    """Return the SHA-256 of the concatenated files. Blocks.

    Raises `ModelFileInvalid` if a file differs from its stamp, also if it changes meanwhile.
    """
    stamps, digest = tuple(stamps), hashlib.sha256()
    for stamp in stamps:
        try:
            with stamp.path.open("rb") as part:
                while block := part.read(_BLOCK_BYTES):
                    digest.update(block)
        except OSError as error:
            raise ModelFileInvalid(stamp.path, error.strerror or str(error)) from error
    verify_files(stamps)
    return digest.hexdigest()


def verify_files(stamps: Sequence[FileStamp], digest: str = "") -> tuple[FileStamp, ...]:
    """Return the current stamps of a model's files. Raises `ModelFileInvalid` if a file changed.

    If stamps differ and `digest` is known (not empty), the files are hashed, which blocks: files
    with the same digest count as unchanged.
    """
    now = tuple(FileStamp.of(stamp.path) for stamp in stamps)
    changed = [current for current, old in zip(now, stamps, strict=True) if current != old]
    is_same_size = [current.size for current in now] == [old.size for old in stamps]
    if changed and not (digest and is_same_size and hash_files(now) == digest):
        problem = "it was replaced or written to since the start"
        remedy = "Restart the inference service to serve the new file"
        raise ModelFileInvalid(changed[0].path, f"{problem}. {remedy}")
    return now
