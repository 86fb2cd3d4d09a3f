"""Descriptions of models from folders in Hugging Face's format."""

from pathlib import Path
from typing import Any

import pytest

from inference_svc.models.hf_folder import MAX_TOKENIZER_BYTES, HfFolder, read_tokenizer
from inference_svc.models.metadata import ModelClass
from model_files.gguf import ModelFileInvalid
from tests.support.hf_folders import CONFIG, write_folder


def test_a_folder_is_described_by_its_small_files(tmp_path: Path) -> None:
    """Weights are not needed, and the tokenizer is not opened."""
    folder = write_folder(
        *(tmp_path, b"no JSON"),
        config={"vocab_size": 300},
        generation_config={"temperature": 0.6, "top_k": 20, "repetition_penalty": None},
        tokenizer_config={"chat_template": "{{ messages }}"},
    )
    file = HfFolder.read(folder).describe("mine")

    assert (file.name, file.path, file.architecture) == ("mine", folder, "llama")
    assert (file.vocabulary_size, file.embedding_size, file.num_layers) == (300, 64, 2)
    assert (file.trained_context_tokens, file.kv_bytes_per_token) == (512, 0)
    assert (file.chat_template, file.model_class) == ("{{ messages }}", ModelClass.DECODER)
    assert file.sampling_hints == {"temp": 0.6, "top_k": 20}
    assert [path.name for path in file.paths] == [
        *("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
    ]
    assert [stamp.path for stamp in file.stamps] == list(file.paths)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"architectures": ["BertModel"]}, ModelClass.ENCODER),
        ({"architectures": ["ModernBertForMaskedLM"]}, ModelClass.ENCODER),
        ({"architectures": ["Qwen3ForSequenceClassification"]}, ModelClass.RERANKER),
        ({"is_encoder_decoder": True}, ModelClass.ENCODER_DECODER),
        ({"architectures": None}, ModelClass.DECODER),
    ],
)
def test_the_class_of_a_model_is_that_of_its_architecture(
    tmp_path: Path, config: dict[str, Any], expected: ModelClass
) -> None:
    folder = HfFolder.read(write_folder(tmp_path, b"", config=config))

    assert folder.describe("x").model_class is expected


def test_sizes_of_the_text_model_count_where_a_model_takes_pictures(tmp_path: Path) -> None:
    """And 0 is what the files do not say; older models have other names for the sizes."""
    text = {"model_type": "gemma3_text", "hidden_size": 32}
    pictures = HfFolder.read(write_folder(tmp_path / "a", b"", config={"text_config": text}))
    old = {"n_positions": 1024, "n_layer": 12, "n_embd": 768}
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "tokenizer.json").touch()
    (tmp_path / "b" / "config.json").write_text(str(old).replace("'", '"'))
    file = HfFolder.read(tmp_path / "b").describe("x")

    assert pictures.describe("x").architecture == "gemma3_text"
    assert pictures.describe("x").embedding_size == 32
    assert pictures.describe("x").trained_context_tokens == 0
    assert (file.trained_context_tokens, file.num_layers, file.embedding_size) == (1024, 12, 768)


def test_a_template_has_a_file_or_is_the_default_one_of_several(tmp_path: Path) -> None:
    templates = [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]
    folder = write_folder(tmp_path, b"", tokenizer_config={"chat_template": templates})
    of_several = HfFolder.read(folder).chat_template
    (folder / "chat_template.jinja").write_text("c")

    assert of_several == "b"
    assert HfFolder.read(folder).chat_template == "c"


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_folder_without_a_needed_file_is_refused(tmp_path: Path, name: str) -> None:
    (write_folder(tmp_path, b"") / name).unlink()

    with pytest.raises(ModelFileInvalid, match=f"there is no {name} in it; config.json and"):
        HfFolder.read(tmp_path)


NESTED: dict[str, Any] = dict(CONFIG)
for _ in range(300):
    NESTED = {"text_config": NESTED}


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"config": {"vocab_size": 2**40}}, "config.json: vocab_size: Input should be less"),
        ({"config": {"text_config": NESTED}}, "config.json: Invalid JSON: recursion limit"),
        ({"generation_config": {"eos_token_id": ["x"]}}, "generation_config.json: eos_token_id"),
        ({"tokenizer_config": []}, "tokenizer_config.json: Input should be"),
        ({"tokenizer_config": "x" * (8 << 20)}, "tokenizer_config.json: it has more than 8388608"),
    ],
)
def test_an_invalid_file_is_named_with_its_field(
    tmp_path: Path, files: dict[str, Any], problem: str
) -> None:
    folder = write_folder(tmp_path, b"", **files)

    with pytest.raises(ModelFileInvalid) as refused:
        HfFolder.read(folder)
    assert problem in str(refused.value)


def test_a_tokenizer_of_any_size_is_not_read(tmp_path: Path) -> None:
    with (write_folder(tmp_path, b"") / "tokenizer.json").open("wb") as file:
        file.truncate(MAX_TOKENIZER_BYTES + 1)

    with pytest.raises(ModelFileInvalid, match="more than 67108864 bytes"):
        read_tokenizer(tmp_path)
