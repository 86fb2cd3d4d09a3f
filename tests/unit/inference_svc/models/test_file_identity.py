"""Detection of replaced and modified model files."""

import hashlib
import os
from pathlib import Path

import pytest

from inference_svc.models.file_identity import FileStamp, hash_files, verify_files
from inference_svc.models.metadata import describe_model
from model_files.gguf import ModelFileInvalid
from tests.support.gguf_files import write_model, write_split


def touch(path: Path) -> None:
    """Change the modification time of a file."""
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    """If it is missing, replaced or modified, also a later part of a split model."""
    first = write_split(tmp_path)
    model = describe_model(first, "m")
    assert verify_files(model.stamps) == model.stamps

    content = first.read_bytes()
    first.rename(tmp_path / "away")
    with pytest.raises(ModelFileInvalid, match="No such file"):
        verify_files(model.stamps)
    first.write_bytes(content)
    with pytest.raises(ModelFileInvalid, match="replaced"):
        verify_files(model.stamps)

    model = describe_model(first, "m")
    touch(model.paths[-1])
    with pytest.raises(ModelFileInvalid, match="written to"):
        verify_files(model.stamps)


def test_files_with_the_same_digest_are_accepted(tmp_path: Path) -> None:
    """If they were copied or touched; their new stamps are returned."""
    first = write_split(tmp_path)
    model = describe_model(first, "m")
    digest = hash_files(model.stamps)
    content = first.read_bytes()
    first.rename(tmp_path / "away")
    first.write_bytes(content)
    touch(model.paths[-1])

    new_stamps = verify_files(model.stamps, digest)

    assert new_stamps == tuple(map(FileStamp.of, model.paths)) != model.stamps
    assert digest == hashlib.sha256(b"".join(p.read_bytes() for p in model.paths)).hexdigest()


@pytest.mark.parametrize("size", ["same", "other"])
def test_a_file_with_another_digest_is_refused(tmp_path: Path, size: str) -> None:
    """Whatever its size; the error has the file and what to do."""
    path = write_model(tmp_path / "m.gguf")
    stamps = (FileStamp.of(path),)
    digest = hash_files(stamps)
    content = bytearray(path.read_bytes())
    content[-1:] = bytes([content[-1] ^ 1]) if size == "same" else b""
    path.write_bytes(content)

    with pytest.raises(ModelFileInvalid, match=r"written to.*Restart") as raised:
        verify_files(stamps, digest)

    assert raised.value.path == path


def test_only_files_with_matching_stamps_are_hashed(tmp_path: Path) -> None:
    """A modified or missing file is refused."""
    path = write_model(tmp_path / "m.gguf")
    stamps = (FileStamp.of(path),)
    touch(path)
    with pytest.raises(ModelFileInvalid, match="written to"):
        hash_files(stamps)
    path.unlink()
    with pytest.raises(ModelFileInvalid, match="No such file"):
        hash_files(stamps)
