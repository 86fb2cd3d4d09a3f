"""Models as Ollama lists and describes them."""

from datetime import UTC, datetime
from typing import Annotated, Final, Literal

from corral.inference.v1 import model_pb2
from google.protobuf.timestamp_pb2 import Timestamp
from typing_extensions import TypedDict

from dialects.ollama.events import timestamp
from dialects.ollama.model_body import tagged
from dialects.shared.wire import From, writer

Capability = Literal["completion", "embedding", "insert", "thinking", "tools", "vision"]
API_VERSION: Final = "0.33.0"
"""The release of Ollama whose API this is. Clients compare it with the least that they need."""
_NEVER: Final = "9999-12-31T23:59:59Z"
_UNITS: Final = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))
_OFF: Final = ("", "off")
_THINKS: Final = (
    model_pb2.ThinkingSupport.MODE_SWITCHABLE,
    model_pb2.ThinkingSupport.MODE_ALWAYS,
)
_PARAMETERS: Final = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "repetition_penalty": "repeat_penalty",
    "penalty_last_n": "repeat_last_n",
}
"""Ollama's names of the sampling defaults of a model."""


def capabilities(model: model_pb2.Model) -> list[Capability]:
    """What a model can do, in Ollama's words."""
    if model.model_class == model_pb2.MODEL_CLASS_ENCODER:
        return ["embedding"]
    can: dict[Capability, bool] = {
        "completion": model.model_class != model_pb2.MODEL_CLASS_RERANKER,
        "tools": model.upstream.text_mode or model.turn_format.tool_calls not in _OFF,
        "insert": model.infills,
        "vision": model_pb2.MODALITY_IMAGE in model.input_modalities,
        "thinking": model.thinking.mode in _THINKS,
    }
    return [name for name, is_able in can.items() if is_able]


def _parameter_size(num_parameters: int) -> str:
    for unit, name in _UNITS:
        if num_parameters >= unit:
            return f"{num_parameters / unit:.1f}{name}"
    return str(num_parameters)


def _model_info(model: model_pb2.Model) -> dict[str, str | int]:
    architecture = model.architecture
    return {
        "general.architecture": architecture,
        "general.basename": model.description,
        "general.parameter_count": model.num_parameters,
        f"{architecture}.context_length": model.trained_context_tokens,
        f"{architecture}.embedding_length": model.embedding_size,
        f"{architecture}.vocab_size": model.vocabulary_size,
    }


def _parameters(model: model_pb2.Model) -> str:
    """One parameter a line, as Continue and others parse them."""
    sampling = model.default_sampling
    return "\n".join(
        f"{name} {getattr(sampling, field):.7g}"
        for field, name in _PARAMETERS.items()
        if sampling.HasField(field)
    )


def _modelfile(model: model_pb2.Model) -> str:
    template = model.chat_template
    return f'# Served by Corral\nFROM {model.name}\nTEMPLATE """{template}"""\n'


def _time(load_time: Timestamp) -> str:
    """When a model was loaded; the epoch if it is not."""
    return timestamp(datetime.fromtimestamp(load_time.seconds, UTC))


class OllamaModelDetails(TypedDict):
    parent_model: Annotated[str, From("parent")]
    format: Literal["gguf"]
    family: Annotated[str, From("architecture")]
    families: Annotated[list[str], From("architecture", lambda name: [name])]
    parameter_size: Annotated[str, From("num_parameters", _parameter_size)]
    quantization_level: Annotated[str, From("quantization", str.upper)]


_details = writer(model_pb2.Model, OllamaModelDetails)


class OllamaListedModel(TypedDict):
    """A model in a list. Sizes are in bytes."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaModelDetails


class OllamaModelList(TypedDict):
    """All models."""

    models: list[OllamaListedModel]


class OllamaRunningModel(TypedDict):
    """A model in memory. Sizes are in bytes."""

    name: str
    model: str
    size: int
    digest: str
    details: OllamaModelDetails
    size_vram: int
    context_length: int
    expires_at: str


class OllamaRunningModels(TypedDict):
    """The models in memory."""

    models: list[OllamaRunningModel]


class OllamaModel(TypedDict):
    """A model as in /api/show."""

    modelfile: Annotated[str, From(".", _modelfile)]
    parameters: Annotated[str, From(".", _parameters)]
    template: Annotated[str, From("chat_template")]
    details: Annotated[OllamaModelDetails, From(".", _details)]
    model_info: Annotated[dict[str, str | int], From(".", _model_info)]
    capabilities: Annotated[list[Capability], From(".", capabilities)]
    modified_at: Annotated[str, From("load_time", _time)]


class OllamaVersion(TypedDict):
    """The release of Ollama whose API this is."""

    version: str


described_model = writer(model_pb2.Model, OllamaModel)


def listed_model(model: model_pb2.Model, name: str) -> OllamaListedModel:
    """A model as in /api/tags, under one of its names."""
    name = tagged(name)
    return {
        "name": name,
        "model": name,
        "modified_at": _time(model.load_time),
        "size": model.size_bytes,
        "digest": model.digest,
        "details": _details(model),
    }


def running_model(model: model_pb2.Model) -> OllamaRunningModel:
    """A loaded model as in /api/ps. It has no time at which it is unloaded."""
    name = tagged(model.name)
    return {
        "name": name,
        "model": name,
        "size": model.memory_bytes or model.size_bytes,
        "digest": model.digest,
        "details": _details(model),
        "size_vram": sum(model.device_memory_bytes.values()),
        "context_length": model.resolved_limits.context_tokens,
        "expires_at": _NEVER,
    }
