"""Detects whether the files of a model are still those that were described.

Snapshots and embeddings carry the digest of the model's file.
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
        """The stamp of the file that is there now. Raises `ModelFileInvalid`."""
        try:
            found = path.stat()
        except OSError as problem:
            raise ModelFileInvalid(path, problem.strerror or str(problem)) from problem
        return cls(path, found.st_ino, found.st_size, found.st_mtime_ns)


def hash_files(stamps: Iterable[FileStamp]) -> str:
    """The SHA-256 of files with these stamps, one after the other. Blocks. Raises
    `ModelFileInvalid` where others are there, or come while they are read."""
    stamps, digest = tuple(stamps), hashlib.sha256()
    for stamp in stamps:
        try:
            with stamp.path.open("rb") as part:
                while block := part.read(_BLOCK_BYTES):
                    digest.update(block)
        except OSError as problem:
            raise ModelFileInvalid(stamp.path, problem.strerror or str(problem)) from problem
    verify_files(stamps)
    return digest.hexdigest()


def verify_files(stamps: Sequence[FileStamp], digest: str = "") -> tuple[FileStamp, ...]:
    """The stamps of a model's files as they are now. Raises `ModelFileInvalid` where they are not
    the files that had `stamps`.

    Where these have changed, the files are the same if their `digest` (empty: it is not known) has
    not; that reads all of them, and blocks.
    """
    now = tuple(FileStamp.of(stamp.path) for stamp in stamps)
    changed = [one for one, before in zip(now, stamps, strict=True) if one != before]
    is_same_size = [one.size for one in now] == [before.size for before in stamps]
    if changed and not (digest and is_same_size and hash_files(now) == digest):
        problem = "it was replaced or written to since the start"
        remedy = "Restart the inference service to serve what is there now"
        raise ModelFileInvalid(changed[0].path, f"{problem}. {remedy}")
    return now
