"""Vocabularies of both kinds in real child processes."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from inference_svc.chat.tokenization import THREAD_BYTES, PromptTokenizer, TextToTokenize
from inference_svc.models.sources import BUNDLED_PATH
from inference_svc.sandbox_jobs import CHECK_VOCABULARY
from inference_svc.vocabularies import open_vocabulary
from svc_kit.sandbox.jobs import MIB, FailureKind, JobFailed
from svc_kit.sandbox.pool import SandboxPool, SandboxSettings
from tests.support.hf_folders import byte_level, metaspace, write_folder
from tools.demo_model.export_hf import export_tokenizer


@pytest.fixture
async def pool() -> AsyncIterator[SandboxPool]:
    async with SandboxPool(SandboxSettings(min_children=1, max_children=1)) as pool:
        yield pool


@pytest.fixture(params=["gguf", "folder"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "gguf":
        return BUNDLED_PATH
    export_tokenizer(BUNDLED_PATH, tmp_path)
    return tmp_path


async def test_a_child_process_returns_the_same_tokens(pool: SandboxPool, model: Path) -> None:
    """In both calls, within the limits of a child."""
    text = "The quick brown 🦊 <|im_end|> " * 5000
    vocabulary = open_vocabulary(model)
    tokenizer = PromptTokenizer(vocabulary, pool, model, limit_bytes=10**6)
    request = TextToTokenize(text, parse_special=True)
    results = [[*await tokenizer.tokenize(request)] for _ in range(2)]
    expected = vocabulary.tokenize(text, add_special=False, parse_special=True)
    vocabulary.close()

    assert len(text) > THREAD_BYTES
    assert results == [expected, expected]


async def test_both_kinds_of_files_of_a_model_pass_the_check(
    pool: SandboxPool, model: Path
) -> None:
    assert await pool.run(CHECK_VOCABULARY, {"model": str(model)}) == 538


async def test_a_tokenizer_that_is_invalid_is_refused_without_its_path(
    pool: SandboxPool, tmp_path: Path
) -> None:
    write_folder(tmp_path, b"[" * 10**6)

    with pytest.raises(JobFailed) as failed:
        await pool.run(CHECK_VOCABULARY, {"model": str(tmp_path)})
    assert failed.value.kind is FailureKind.REFUSED
    assert failed.value.problem.startswith("tokenizer.json: Cannot instantiate Tokenizer from")
    assert str(tmp_path) not in failed.value.problem


@pytest.mark.parametrize(
    ("part", "content", "problem"),
    [
        ("pre_tokenizer", {"type": "FixedLength", "length": 0}, "chunk size must be non-zero"),
        (
            "post_processor",
            {"type": "BertProcessing", "sep": ("</s>", 2), "cls": ("<s>", 10**6)},
            "the token id 1000000 is not in the model's vocabulary",
        ),
    ],
)
async def test_a_tokenizer_that_fails_on_a_text_is_refused(
    pool: SandboxPool, tmp_path: Path, part: str, content: object, problem: str
) -> None:
    tokenizer = {**json.loads(byte_level().to_str()), part: content}
    write_folder(tmp_path, json.dumps(tokenizer).encode())

    with pytest.raises(JobFailed, match=problem):
        await pool.run(CHECK_VOCABULARY, {"model": str(tmp_path)})


async def test_a_tokenizer_that_aborts_the_library_ends_only_a_child(
    pool: SandboxPool, tmp_path: Path
) -> None:
    """It cuts the parts of merges inside characters, and cannot name them in its error."""
    tokenizer = json.loads(metaspace().to_str())
    write_folder(tmp_path, json.dumps(tokenizer).encode())
    tokenizer["model"]["continuing_subword_prefix"] = "a"
    invalid = write_folder(tmp_path / "invalid", json.dumps(tokenizer).encode())

    with pytest.raises(JobFailed) as failed:
        await pool.run(CHECK_VOCABULARY, {"model": str(invalid)})
    assert failed.value.kind is FailureKind.CRASHED
    assert await pool.run(CHECK_VOCABULARY, {"model": str(tmp_path)}) > 0


async def test_a_tokenizer_that_exhausts_memory_ends_only_a_child(
    pool: SandboxPool, tmp_path: Path
) -> None:
    large = tmp_path / "large"
    tokenizer = byte_level()
    tokenizer.add_tokens([f"token {number}" for number in range(50_000)])
    write_folder(large, tokenizer)
    write_folder(tmp_path, byte_level())
    limited = replace(CHECK_VOCABULARY, memory_bytes=4 * MIB)

    with pytest.raises(JobFailed) as failed:
        await pool.run(limited, {"model": str(large)})
    assert failed.value.kind in (FailureKind.MEMORY, FailureKind.CRASHED)
    assert await pool.run(CHECK_VOCABULARY, {"model": str(tmp_path)}) > 0
