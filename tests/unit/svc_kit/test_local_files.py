"""A copy that nobody else can change, and of which nothing is left."""

import hashlib
from pathlib import Path

import pytest

from svc_kit.local_files import PrivateFile


def test_a_copy_outlives_changes_of_its_source(tmp_path: Path) -> None:
    """It is read by its path as often as wanted, and has no name in the folder."""
    source, folder = tmp_path / "source", tmp_path / "copies"
    source.write_bytes(b"abc" * 1_000_000)
    copy = PrivateFile.copy_of(source, folder)
    source.write_bytes(b"something else")
    read = [copy.path.read_bytes() for _ in range(2)]
    left = list(folder.iterdir())
    copy.close()
    copy.close()

    assert read == [b"abc" * 1_000_000] * 2
    assert copy.digest == hashlib.sha256(read[0]).hexdigest()
    assert left == []


def test_a_source_that_cannot_be_read_leaves_nothing(tmp_path: Path) -> None:
    """The operating system's error is the caller's to explain."""
    with pytest.raises(FileNotFoundError):
        PrivateFile.copy_of(tmp_path / "missing", tmp_path / "copies")
