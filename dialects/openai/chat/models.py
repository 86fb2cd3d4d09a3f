"""Models as OpenAI's objects."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Final, Literal

from corral.inference.v1 import model_pb2
from typing_extensions import TypedDict

from dialects.shared.wire import From, seconds, writer

Modality = Literal["text", "image", "audio"]
_MODALITIES: Final[dict[int, Modality]] = {
    model_pb2.MODALITY_TEXT: "text",
    model_pb2.MODALITY_IMAGE: "image",
    model_pb2.MODALITY_AUDIO: "audio",
}


def _modalities(values: Sequence[int]) -> list[Modality]:
    return [_MODALITIES[each] for each in values if each in _MODALITIES] or ["text"]


class ModelMeta(TypedDict):
    """Sizes of a model, under llama-server's names."""

    n_vocab: Annotated[int, From("vocabulary_size")]
    n_ctx_train: Annotated[int, From("trained_context_tokens")]
    n_embd: Annotated[int, From("embedding_size")]
    n_params: Annotated[int, From("num_parameters")]
    size: Annotated[int, From("size_bytes")]


class Model(TypedDict):
    """A model as in GET /v1/models/{id}, with extensions of vLLM and llama-server."""

    id: Annotated[str, From("name")]
    object: Literal["model"]
    created: Annotated[int, seconds("load_time")]
    owned_by: Literal["corral"]
    shutdown_date: Literal[None]
    root: Annotated[str, From(".", lambda model: model.parent or model.name)]
    parent: str | None
    aliases: list[str]
    state: Literal[
        "available", "downloading", "failed", "loading", "ready", "unloading", "verifying"
    ]
    problem: str | None
    max_model_len: Annotated[int | None, From("resolved_limits.context_tokens")]
    input_modalities: Annotated[list[Modality], From(write=_modalities)]
    meta: Annotated[ModelMeta, From(".", writer(model_pb2.Model, ModelMeta))]


class ModelList(TypedDict):
    """The response of GET /v1/models."""

    object: Literal["list"]
    data: list[Model]


model_object = writer(model_pb2.Model, Model)


def model_list(models: Iterable[model_pb2.Model]) -> ModelList:
    """The response of GET /v1/models."""
    return {"object": "list", "data": [model_object(model) for model in models]}
