"""Models as Ollama lists and describes them."""

from datetime import UTC, datetime
from typing import Any, Final

from corral.inference.v1 import model_pb2

from dialects.ollama.events import timestamp
from dialects.ollama.model_body import tagged

Json = dict[str, Any]
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


def listed_model(model: model_pb2.Model, name: str) -> Json:
    """A model as in /api/tags, under one of its names."""
    name = tagged(name)
    return {
        "name": name,
        "model": name,
        "modified_at": _modified_at(model),
        "size": model.size_bytes,
        "digest": model.digest,
        "details": _details(model),
    }


def running_model(model: model_pb2.Model) -> Json:
    """A loaded model as in /api/ps. It has no time at which it is unloaded."""
    listed = listed_model(model, model.name)
    del listed["modified_at"]
    return listed | {
        "size": model.memory_bytes or model.size_bytes,
        "size_vram": sum(model.device_memory_bytes.values()),
        "context_length": model.resolved_limits.context_tokens,
        "expires_at": _NEVER,
    }


def described_model(model: model_pb2.Model) -> Json:
    """A model as in /api/show."""
    template = model.chat_template
    return {
        "modelfile": f'# Served by Corral\nFROM {model.name}\nTEMPLATE """{template}"""\n',
        "parameters": _parameters(model),
        "template": template,
        "details": _details(model),
        "model_info": _model_info(model),
        "capabilities": capabilities(model),
        "modified_at": _modified_at(model),
    }


def capabilities(model: model_pb2.Model) -> list[str]:
    """What a model can do, in Ollama's words."""
    if model.model_class == model_pb2.MODEL_CLASS_ENCODER:
        return ["embedding"]
    can = {
        "completion": model.model_class != model_pb2.MODEL_CLASS_RERANKER,
        "tools": model.turn_format.tool_calls not in _OFF,
        "insert": model.infills,
        "vision": model_pb2.MODALITY_IMAGE in model.input_modalities,
        "thinking": model.thinking.mode in _THINKS,
    }
    return [name for name, is_able in can.items() if is_able]


def _details(model: model_pb2.Model) -> Json:
    return {
        "parent_model": model.parent,
        "format": "gguf",
        "family": model.architecture,
        "families": [model.architecture],
        "parameter_size": _parameter_size(model.num_parameters),
        "quantization_level": model.quantization.upper(),
    }


def _parameter_size(num_parameters: int) -> str:
    for unit, name in _UNITS:
        if num_parameters >= unit:
            return f"{num_parameters / unit:.1f}{name}"
    return str(num_parameters)


def _model_info(model: model_pb2.Model) -> Json:
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


def _modified_at(model: model_pb2.Model) -> str:
    """When it was loaded; the epoch if it is not."""
    return timestamp(datetime.fromtimestamp(model.load_time.seconds, UTC))
