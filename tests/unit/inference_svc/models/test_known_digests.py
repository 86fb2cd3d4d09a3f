"""Digests of model files that a restart finds again."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from inference_svc.models.file_identity import FileStamp
from inference_svc.models.known_digests import KnownDigests
from model_files.gguf import ModelFileInvalid


def test_the_digest_of_an_unchanged_file_is_not_computed_again(tmp_path: Path) -> None:
    """By another process either; that of a changed one is."""
    model, kept = tmp_path / "m.gguf", tmp_path / "data" / "digests"
    model.write_bytes(b"weights")
    first = KnownDigests(kept).digest([FileStamp.of(model)])
    (name,) = json.loads(kept.read_text())
    kept.write_text(json.dumps({name: "ab" * 32}))
    again = KnownDigests(kept).digest([FileStamp.of(model)])
    os.utime(model, (1, 1))
    changed = KnownDigests(kept).digest([FileStamp.of(model)])

    assert first == changed == hashlib.sha256(b"weights").hexdigest()
    assert again == "ab" * 32


def test_a_file_that_is_not_the_described_one_has_no_digest(tmp_path: Path) -> None:
    """Although that of the described one is known."""
    model, known = tmp_path / "m.gguf", KnownDigests(tmp_path / "digests")
    model.write_bytes(b"weights")
    stamp = FileStamp.of(model)
    known.digest([stamp])
    model.write_bytes(b"others")

    with pytest.raises(ModelFileInvalid):
        known.digest([stamp])


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"m": 1}', '{"m": "no digest"}'])
def test_a_damaged_list_is_written_anew(tmp_path: Path, text: str) -> None:
    """Or none, where it cannot be written."""
    model, kept = tmp_path / "m.gguf", tmp_path / "digests"
    model.write_bytes(b"weights")
    kept.write_text(text)
    expected = hashlib.sha256(b"weights").hexdigest()

    assert KnownDigests(kept).digest([FileStamp.of(model)]) == expected
    assert list(json.loads(kept.read_text()).values()) == [expected]
    assert KnownDigests(tmp_path).digest([FileStamp.of(model)]) == expected
