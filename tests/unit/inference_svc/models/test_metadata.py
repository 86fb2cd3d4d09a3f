"""What a model file is said to be."""

from pathlib import Path

import pytest

from inference_svc.models.metadata import (
    FileRole,
    ModelClass,
    default_name,
    describe_model,
    file_role,
    split_paths,
)
from inference_svc.models.sources import BUNDLED_FOLDER, BUNDLED_PATH
from model_files.gguf import ModelFileInvalid
from svc_kit.errors import ModelCannot
from tests.support.gguf_files import (
    F32Tensor,
    gguf_bytes,
    model_metadata,
    write_model,
    write_split,
)


def test_the_demo_model_is_described_from_its_header() -> None:
    """Everything that is needed before a load is there, with the template."""
    model = describe_model(BUNDLED_PATH, "demo")

    assert (model.name, model.architecture, model.model_class) == ("demo", "llama", "decoder")
    assert (model.vocabulary_size, model.embedding_size, model.num_layers) == (2048, 256, 6)
    assert (model.trained_context_tokens, model.num_parameters) == (2048, 4_066_560)
    assert model.size_bytes == BUNDLED_PATH.stat().st_size
    assert model.kv_bytes_per_token == 6 * 2 * (64 + 64) * 2
    assert model.chat_template is not None
    assert "<tool_call>" in model.chat_template
    assert (model.title, model.paths) == ("demo-chat", (BUNDLED_PATH,))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ModelClass.DECODER),
        ({"llama__attention__causal": False}, ModelClass.ENCODER),
        ({"llama__attention__causal": True}, ModelClass.DECODER),
    ],
)
def test_the_class_follows_from_the_metadata(
    tmp_path: Path, changes: dict[str, object], expected: ModelClass
) -> None:
    """A model whose attention is not causal embeds and does not generate."""
    assert describe_model(write_model(tmp_path / "m.gguf", **changes), "m").model_class is expected


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("bert", "encoder"),
        ("nomic-bert", "encoder"),
        ("t5", "encoder_decoder"),
        ("qwen3", "decoder"),
    ],
)
def test_the_class_follows_from_the_architecture(
    tmp_path: Path, architecture: str, expected: str
) -> None:
    """Encoders and encoder-decoders are known by name."""
    metadata = {
        key.replace("llama.", f"{architecture}."): value
        for key, value in model_metadata(general__architecture=architecture).items()
    }
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes(metadata))

    assert describe_model(path, "m").model_class == expected


@pytest.mark.parametrize(
    ("number", "expected"), [(None, None), (0, None), (1, "mean"), (2, "cls"), (3, "last")]
)
def test_the_pooling_is_the_files(tmp_path: Path, number: int | None, expected: str | None) -> None:
    """llama.cpp's numbers in words; none where the file asks for none."""
    model = describe_model(write_model(tmp_path / "m.gguf", llama__pooling_type=number), "m")

    assert model.pooling == expected
    assert model.generates


def test_a_reranker_is_known_by_its_pooling_and_its_head(tmp_path: Path) -> None:
    """Whatever its architecture; without a head it would give numbers that mean nothing."""
    metadata = model_metadata(llama__pooling_type=4)
    headless, ranking = tmp_path / "headless.gguf", tmp_path / "ranking.gguf"
    headless.write_bytes(gguf_bytes(metadata, [F32Tensor("w", (8, 4))]))
    ranking.write_bytes(gguf_bytes(metadata, [F32Tensor("cls.output.weight", (8, 4))]))
    model = describe_model(ranking, "m")

    assert (model.model_class, model.pooling, model.generates) == ("reranker", "rank", False)
    with pytest.raises(ModelFileInvalid, match="no rank head"):
        describe_model(headless, "m")


def test_a_pooling_nobody_knows_is_refused(tmp_path: Path) -> None:
    """llama.cpp would end the process over it."""
    with pytest.raises(ModelFileInvalid, match="pooling type 7"):
        describe_model(write_model(tmp_path / "m.gguf", llama__pooling_type=7), "m")


@pytest.mark.parametrize(
    ("architecture", "problem"),
    [("clip", "projector"), ("llada", "diffusion"), ("dream", "diffusion")],
)
def test_what_is_no_text_model_is_refused_with_the_reason(
    tmp_path: Path, architecture: str, problem: str
) -> None:
    """Before llama.cpp loads it and fails in its own way."""
    with pytest.raises(ModelFileInvalid, match=problem):
        describe_model(write_model(tmp_path / "m.gguf", general__architecture=architecture), "m")


def test_an_encoder_decoder_is_refused_with_its_class(tmp_path: Path) -> None:
    """A typed reason that every way of loading shares."""
    metadata = {
        key.replace("llama.", "t5."): value
        for key, value in model_metadata(general__architecture="t5").items()
    }
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes(metadata))
    with pytest.raises(ModelCannot) as refusal:
        describe_model(path, "m").check_served()

    assert (refusal.value.model, refusal.value.model_class) == ("m", "encoder_decoder")


def test_layers_with_different_heads_are_added_up(tmp_path: Path) -> None:
    """The cache of a model with a number of heads per layer is their sum; zero is no attention."""
    path = write_model(
        tmp_path / "m.gguf",
        llama__attention__head_count_kv=[2, 0],
        llama__attention__key_length=32,
        llama__attention__value_length=16,
    )

    assert describe_model(path, "m").kv_bytes_per_token == 2 * (32 + 16) * 2


@pytest.mark.parametrize(
    "key",
    [
        "general__architecture",
        "llama__block_count",
        "llama__embedding_length",
        "llama__context_length",
        "tokenizer__ggml__tokens",
    ],
)
def test_a_model_without_an_essential_value_is_refused(tmp_path: Path, key: str) -> None:
    """What llama.cpp would need later is missed now, by name where there is one."""
    path = write_model(tmp_path / "m.gguf", **{key: None})

    with pytest.raises(ModelFileInvalid, match=r"missing|no vocabulary"):
        describe_model(path, "m")


def test_adapters_and_projectors_are_not_models(tmp_path: Path) -> None:
    """They are GGUF files too, and are refused in words that say what they are."""
    adapter = BUNDLED_FOLDER / "demo-lora-pirate-f16.gguf"
    projector = write_model(tmp_path / "p.gguf", general__architecture="clip")

    with pytest.raises(ModelFileInvalid, match="LoRA adapter"):
        describe_model(adapter, "m")
    with pytest.raises(ModelFileInvalid, match="projector"):
        describe_model(projector, "m")
    assert file_role(adapter) is FileRole.ADAPTER
    assert file_role(projector) is FileRole.PROJECTOR
    assert file_role(BUNDLED_PATH) is FileRole.MODEL


def test_a_split_model_is_one_model(tmp_path: Path) -> None:
    """Sizes are summed, and all parts are named."""
    first = write_split(tmp_path)

    model = describe_model(first, "big")

    assert [path.name[4:9] for path in model.paths] == ["00001", "00002", "00003"]
    assert model.num_parameters == 3 * 32
    assert model.size_bytes == sum(path.stat().st_size for path in model.paths)
    assert default_name(first) == "big"
    assert file_role(model.paths[1]) is FileRole.LATER_PART


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    """The file that is not there is the one in the message."""
    first = write_split(tmp_path)
    (tmp_path / "big-00002-of-00003.gguf").unlink()

    with pytest.raises(ModelFileInvalid) as raised:
        describe_model(first, "big")

    assert raised.value.path.name == "big-00002-of-00003.gguf"


def test_parts_in_the_wrong_order_are_refused(tmp_path: Path) -> None:
    """A part whose own number differs from its name's was renamed."""
    first = write_split(tmp_path, numbers=(0, 2, 1))

    with pytest.raises(ModelFileInvalid, match="number differs"):
        describe_model(first, "big")


def test_a_renamed_part_is_not_taken_for_a_whole_model(tmp_path: Path) -> None:
    """The header says that there are more files than the name does."""
    first = write_split(tmp_path)
    alone = first.rename(tmp_path / "model.gguf")

    with pytest.raises(ModelFileInvalid, match="split into 3 files, of which 1"):
        describe_model(alone, "m")


def test_a_later_part_points_to_the_first() -> None:
    """Naming any part but the first is a mistake with a remedy."""
    with pytest.raises(ModelFileInvalid, match=r"name the first, x-00001-of-00003\.gguf"):
        split_paths(Path("x-00002-of-00003.gguf"))
    with pytest.raises(ModelFileInvalid, match="claims 0 parts"):
        split_paths(Path("x-00001-of-00000.gguf"))


def test_recommended_sampling_is_kept_as_it_stands(tmp_path: Path) -> None:
    """By its last name; who uses it checks it."""
    path = write_model(
        tmp_path / "m.gguf", general__sampling__top_k=20, general__sampling__temp=0.5
    )

    assert describe_model(path, "m").sampling_hints == {"top_k": 20, "temp": 0.5}
    assert describe_model(BUNDLED_PATH, "demo").sampling_hints == {}
