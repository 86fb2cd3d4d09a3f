"""Which files are a model's, though they were moved, touched or written to."""

import hashlib
import os
from pathlib import Path

import pytest

from inference_svc.models.file_identity import FileStamp, hash_files, verify_files
from inference_svc.models.metadata import describe_model
from model_files.gguf import ModelFileInvalid
from tests.support.gguf_files import write_model, write_split


def touch(path: Path) -> None:
    """Change when a file was written to."""
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


def test_a_file_in_its_place_is_another_one(tmp_path: Path) -> None:
    """Whether it was moved there, written to, or is gone; a later part of several counts too."""
    first = write_split(tmp_path)
    model = describe_model(first, "m")
    assert verify_files(model.stamps) == model.stamps

    before = first.read_bytes()
    first.rename(tmp_path / "away")
    with pytest.raises(ModelFileInvalid, match="No such file"):
        verify_files(model.stamps)
    first.write_bytes(before)
    with pytest.raises(ModelFileInvalid, match="replaced"):
        verify_files(model.stamps)

    model = describe_model(first, "m")
    touch(model.paths[-1])
    with pytest.raises(ModelFileInvalid, match="written to"):
        verify_files(model.stamps)


def test_the_same_bytes_are_the_same_model(tmp_path: Path) -> None:
    """Once their digest is known: copied back, touched; the new stamps are those to go by."""
    first = write_split(tmp_path)
    model = describe_model(first, "m")
    digest = hash_files(model.stamps)
    content = first.read_bytes()
    first.rename(tmp_path / "away")
    first.write_bytes(content)
    touch(model.paths[-1])

    now = verify_files(model.stamps, digest)

    assert now == tuple(map(FileStamp.of, model.paths)) != model.stamps
    assert digest == hashlib.sha256(b"".join(p.read_bytes() for p in model.paths)).hexdigest()


@pytest.mark.parametrize("size", ["same", "other"])
def test_other_bytes_are_another_model(tmp_path: Path, size: str) -> None:
    """Of the same size or not; the file is named with the remedy."""
    path = write_model(tmp_path / "m.gguf")
    stamps = (FileStamp.of(path),)
    digest = hash_files(stamps)
    content = bytearray(path.read_bytes())
    content[-1:] = bytes([content[-1] ^ 1]) if size == "same" else b""
    path.write_bytes(content)

    with pytest.raises(ModelFileInvalid, match=r"written to.*Restart") as refused:
        verify_files(stamps, digest)

    assert refused.value.path == path


def test_a_digest_is_of_the_files_with_these_stamps(tmp_path: Path) -> None:
    """Not of one that came since, nor of one that cannot be read."""
    path = write_model(tmp_path / "m.gguf")
    stamps = (FileStamp.of(path),)
    touch(path)
    with pytest.raises(ModelFileInvalid, match="written to"):
        hash_files(stamps)
    path.unlink()
    with pytest.raises(ModelFileInvalid, match="No such file"):
        hash_files(stamps)
