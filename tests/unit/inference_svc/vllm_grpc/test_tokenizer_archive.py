"""The archive of a tokenizer, and its comparison with a model."""

import hashlib
import io
import json
from pathlib import Path
from zipfile import ZipFile

import pytest

from inference_svc.models.sources import BUNDLED_PATH
from inference_svc.vllm_grpc.tokenizer_archive import (
    CHUNK_BYTES,
    TokenizerArchive,
    check_tokenizer,
)
from inference_svc.vocabularies import ModelVocabulary, open_vocabulary
from svc_kit.lifecycle import StartupError
from tools.demo_model.export_hf import export_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    export_tokenizer(BUNDLED_PATH, tmp_path)
    return tmp_path


async def open_here(path: Path) -> ModelVocabulary:
    return open_vocabulary(path)


async def test_the_archive_has_the_files_of_the_tokenizer_and_no_others(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"weights")

    archive = await TokenizerArchive.read(folder)

    names = ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]
    with ZipFile(io.BytesIO(archive.data)) as opened:
        assert sorted(opened.namelist()) == sorted(names)
        assert all(opened.read(name) == (folder / name).read_bytes() for name in names)
    assert archive.sha256 == hashlib.sha256(archive.data).hexdigest()


async def test_equal_files_make_equal_archives(folder: Path) -> None:
    """Routers compare the digests of several servers."""
    first, again = [await TokenizerArchive.read(folder) for _ in range(2)]

    assert first == again
    with ZipFile(io.BytesIO(first.data)) as opened:
        assert {each.date_time[0] for each in opened.infolist()} == {1980}


def test_the_chunks_are_the_archive() -> None:
    data = bytes(range(256)) * 1000

    chunks = TokenizerArchive(data, "").chunks()

    assert b"".join(chunks) == data
    assert max(map(len, chunks)) == CHUNK_BYTES


async def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"there is no config\.json in it"):
        await TokenizerArchive.read(tmp_path)


async def test_the_tokenizer_of_the_model_is_accepted(folder: Path) -> None:
    await check_tokenizer(BUNDLED_PATH, folder, open_here)


async def test_another_vocabulary_is_refused_with_the_text_and_both_ids(folder: Path) -> None:
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["H"], vocabulary["!"] = vocabulary["!"], vocabulary["H"]
    path.write_text(json.dumps(tokenizer), encoding="utf-8")

    problem = r"token \d+ of 'Hello, world.*' is \d+ there, and \d+ in the configured tokenizer"
    with pytest.raises(StartupError, match=problem):
        await check_tokenizer(BUNDLED_PATH, folder, open_here)
