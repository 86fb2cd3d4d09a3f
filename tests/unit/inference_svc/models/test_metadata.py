"""Model descriptions from GGUF metadata."""

from pathlib import Path

import pytest

from inference_svc.models.metadata import (
    FileRole,
    ModelClass,
    ModelFile,
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
from tests.support.model_kinds import write_model_of_kind


def describe(folder: Path, **changes: object) -> ModelFile:
    """Describe a tiny model; `changes` are as in `write_model`."""
    return describe_model(write_model(folder / "m.gguf", **changes), "m")


def describe_architecture(folder: Path, architecture: str) -> ModelFile:
    metadata = model_metadata(general__architecture=architecture)
    renamed = {key.replace("llama.", f"{architecture}."): metadata[key] for key in metadata}
    path = folder / "m.gguf"
    path.write_bytes(gguf_bytes(renamed))
    return describe_model(path, "m")


def test_a_model_is_described_from_its_header() -> None:
    """With all values that are needed before a load."""
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
    """A model without causal attention is an encoder."""
    assert describe(tmp_path, **changes).model_class is expected


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
    """Known encoders and encoder-decoders."""
    assert describe_architecture(tmp_path, architecture).model_class == expected


@pytest.mark.parametrize(
    ("number", "expected"), [(None, None), (0, None), (1, "mean"), (2, "cls"), (3, "last")]
)
def test_the_pooling_type_is_read_from_the_file(
    tmp_path: Path, number: int | None, expected: str | None
) -> None:
    """llama.cpp's numbers; unset and 0 mean none."""
    model = describe(tmp_path, llama__pooling_type=number)

    assert model.pooling == expected
    assert model.generates


def test_a_reranker_has_rank_pooling_and_a_head(tmp_path: Path) -> None:
    """In any architecture. A model without a head is refused."""
    path = tmp_path / "m.gguf"
    head = F32Tensor("cls.output.weight", (8, 4))
    path.write_bytes(gguf_bytes(model_metadata(llama__pooling_type=4), [head]))
    model = describe_model(path, "m")

    assert (model.model_class, model.pooling, model.generates) == ("reranker", "rank", False)
    with pytest.raises(ModelFileInvalid, match="no rank head"):
        describe(tmp_path, llama__pooling_type=4)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"llama__pooling_type": 7}, "pooling type 7"),
        ({"general__architecture": "clip"}, "projector"),
        ({"general__architecture": "llada"}, "diffusion"),
        ({"general__architecture": "dream"}, "diffusion"),
        ({"general__architecture": None}, "missing"),
        ({"llama__block_count": None}, "missing"),
        ({"llama__embedding_length": None}, "missing"),
        ({"llama__context_length": None}, "missing"),
        ({"tokenizer__ggml__tokens": None}, "no vocabulary"),
    ],
)
def test_an_unsupported_model_is_refused_with_the_reason(
    tmp_path: Path, changes: dict[str, object], problem: str
) -> None:
    """Before llama.cpp loads it, which may end the process."""
    with pytest.raises(ModelFileInvalid, match=problem):
        describe(tmp_path, **changes)


def test_an_encoder_decoder_only_generates(tmp_path: Path) -> None:
    """Conversations and embeddings are refused with its class."""
    model = describe_architecture(tmp_path, "t5")
    model.check_generates()
    for check in (model.check_chats, model.check_embeds, model.check_ranks):
        with pytest.raises(ModelCannot) as raised:
            check()

        assert (raised.value.model, raised.value.model_class) == ("m", "encoder_decoder")


def test_the_first_form_of_t5_scales_its_logits(tmp_path: Path) -> None:
    """It has no output of its own. llama.cpp ignores that."""
    path = write_model_of_kind("t5", tmp_path / "m.gguf")

    assert describe_model(path, "m").logit_scale == 1
    assert describe_architecture(tmp_path, "t5").logit_scale == 64**-0.5
    assert describe_architecture(tmp_path, "qwen3").logit_scale == 1


def test_kv_bytes_of_layers_with_different_heads_are_summed(tmp_path: Path) -> None:
    """A layer with 0 heads has no attention."""
    model = describe(
        tmp_path,
        llama__attention__head_count_kv=[2, 0],
        llama__attention__key_length=32,
        llama__attention__value_length=16,
    )

    assert model.kv_bytes_per_token == 2 * (32 + 16) * 2


def test_adapters_and_projectors_are_not_models(tmp_path: Path) -> None:
    """They are GGUF files too; the error has what they are."""
    adapter = BUNDLED_FOLDER / "demo-lora-pirate-f16.gguf"
    projector = write_model(tmp_path / "p.gguf", general__architecture="clip")

    with pytest.raises(ModelFileInvalid, match="LoRA adapter"):
        describe_model(adapter, "m")
    with pytest.raises(ModelFileInvalid, match="projector"):
        describe_model(projector, "m")
    assert file_role(adapter) is FileRole.ADAPTER
    assert file_role(projector) is FileRole.PROJECTOR
    assert file_role(BUNDLED_PATH) is FileRole.MODEL


def test_a_split_model_is_described_as_one_model(tmp_path: Path) -> None:
    """With the paths of all parts and the sum of their sizes."""
    first = write_split(tmp_path)

    model = describe_model(first, "big")

    assert [path.name[4:9] for path in model.paths] == ["00001", "00002", "00003"]
    assert model.num_parameters == 3 * 32
    assert model.size_bytes == sum(path.stat().st_size for path in model.paths)
    assert default_name(first) == "big"
    assert file_role(model.paths[1]) is FileRole.LATER_PART


def test_a_missing_part_is_refused(tmp_path: Path) -> None:
    """The error has its path."""
    first = write_split(tmp_path)
    (tmp_path / "big-00002-of-00003.gguf").unlink()

    with pytest.raises(ModelFileInvalid) as raised:
        describe_model(first, "big")

    assert raised.value.path.name == "big-00002-of-00003.gguf"


def test_parts_in_the_wrong_order_are_refused(tmp_path: Path) -> None:
    """If the number in the header differs from the one in the file name."""
    first = write_split(tmp_path, numbers=(0, 2, 1))

    with pytest.raises(ModelFileInvalid, match="number differs"):
        describe_model(first, "big")


def test_a_renamed_part_is_not_a_whole_model(tmp_path: Path) -> None:
    """Its header has the number of parts."""
    first = write_split(tmp_path)
    alone = first.rename(tmp_path / "model.gguf")

    with pytest.raises(ModelFileInvalid, match="split into 3 files, of which 1"):
        describe_model(alone, "m")


def test_a_reference_to_a_later_part_is_refused() -> None:
    """The error has the name of the first part."""
    with pytest.raises(ModelFileInvalid, match=r"name the first, x-00001-of-00003\.gguf"):
        split_paths(Path("x-00002-of-00003.gguf"))
    with pytest.raises(ModelFileInvalid, match="claims 0 parts"):
        split_paths(Path("x-00001-of-00000.gguf"))


def test_sampling_hints_are_read_from_the_file(tmp_path: Path) -> None:
    """By the last part of their keys, without validation."""
    model = describe(tmp_path, general__sampling__top_k=20, general__sampling__temp=0.5)

    assert model.sampling_hints == {"top_k": 20, "temp": 0.5}
    assert describe_model(BUNDLED_PATH, "demo").sampling_hints == {}
