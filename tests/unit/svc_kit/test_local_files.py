"""Private copies of files."""

import hashlib
from pathlib import Path

import pytest

from svc_kit.local_files import PrivateFile


def test_a_copy_is_independent_of_its_source(tmp_path: Path) -> None:
    """It can be read repeatedly by its path, and is unlinked."""
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


def test_an_unreadable_source_leaves_no_copy(tmp_path: Path) -> None:
    """The OSError is raised."""
    with pytest.raises(FileNotFoundError):
        PrivateFile.copy_of(tmp_path / "missing", tmp_path / "copies")
