"""What llama-server tells about a model and its slots, and vLLM about a tokenizer."""

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

from corral.inference.v1 import load_pb2, model_pb2, sampling_pb2
from google.protobuf.json_format import MessageToDict
from pydantic import WithJsonSchema
from typing_extensions import TypeAliasType, TypedDict

from dialects.shared.proto_schema import message_schema
from dialects.shared.wire import From, writer

_OFF: Final = ("", "off")
_PARAMS_SCHEMA: Final = message_schema(sampling_pb2.SamplingParams.DESCRIPTOR)


class GenerationSettings(TypedDict):
    """The sampling of requests that name none, and the size of the context in tokens."""

    params: Annotated[dict[str, Any], WithJsonSchema(_PARAMS_SCHEMA)]
    n_ctx: int


class Modalities(TypedDict):
    """What a model reads beside text."""

    vision: bool
    audio: bool
    video: bool


class TemplateCaps(TypedDict):
    """What a chat template has words for."""

    supports_tools: bool
    supports_reasoning: bool


class LlamaServerProps(TypedDict):
    default_generation_settings: GenerationSettings
    total_slots: int
    model_alias: str
    model_path: str
    model_ftype: str
    modalities: Modalities
    chat_template: str
    chat_template_caps: TemplateCaps
    bos_token: str
    eos_token: str
    build_info: str
    is_sleeping: bool


def props(model: model_pb2.Model, build: str) -> LlamaServerProps:
    """The answer of /props. The path is the model's name, since files are the operator's."""
    modalities = model.input_modalities
    return {
        "default_generation_settings": {
            "params": MessageToDict(model.default_sampling, preserving_proto_field_name=True),
            "n_ctx": model.resolved_limits.context_tokens,
        },
        "total_slots": model.resolved_limits.slots,
        "model_alias": model.name,
        "model_path": model.name,
        "model_ftype": model.quantization,
        "modalities": {
            "vision": model_pb2.MODALITY_IMAGE in modalities,
            "audio": model_pb2.MODALITY_AUDIO in modalities,
            "video": False,
        },
        "chat_template": model.chat_template,
        "chat_template_caps": {
            "supports_tools": model.turn_format.tool_calls not in _OFF,
            "supports_reasoning": model.thinking.mode
            not in (
                model_pb2.ThinkingSupport.MODE_UNSPECIFIED,
                model_pb2.ThinkingSupport.MODE_NONE,
            ),
        },
        "bos_token": model.begin_token,
        "eos_token": model.end_token,
        "build_info": build,
        "is_sleeping": model.state != model_pb2.Model.STATE_READY,
    }


class TokenizerInfo(TypedDict):
    """vLLM's answer of /tokenizer_info."""

    tokenizer_class: Literal["GGUF"]
    bos_token: Annotated[str | None, From("begin_token")]
    eos_token: Annotated[str | None, From("end_token")]
    chat_template: str | None


tokenizer_info = writer(model_pb2.Model, TokenizerInfo)


class DecodedTokens(TypedDict):
    """The number of tokens of an answer so far."""

    n_decoded: int


class LlamaServerSlot(TypedDict):
    """A slot. `id_task` is the id of its request."""

    id: int
    n_ctx: int
    speculative: bool
    is_processing: bool
    id_task: str | None
    n_prompt_tokens: int
    n_prompt_tokens_processed: int
    n_prompt_tokens_cache: int
    next_token: list[DecodedTokens]


LlamaServerSlots = TypeAliasType("LlamaServerSlots", list[LlamaServerSlot])


def slot_list(
    model: model_pb2.Model, requests: Iterable[load_pb2.LiveRequest], project: str
) -> list[LlamaServerSlot]:
    """The slots of a model as one project sees them: those of others look idle."""
    limits = model.resolved_limits
    running = {
        choice.slot: (request, choice)
        for request in requests
        if request.project == project and request.model == model.name
        for choice in request.choices
        if choice.HasField("slot")
    }
    slots = [_slot(number, limits.context_tokens) for number in range(limits.slots)]
    for number, (request, choice) in running.items():
        if number < len(slots):
            slots[number] |= {
                "is_processing": True,
                "id_task": request.request_id,
                "n_prompt_tokens": request.prompt_tokens,
                "n_prompt_tokens_processed": _num_processed(request, choice),
                "n_prompt_tokens_cache": request.cached_tokens,
                "next_token": [{"n_decoded": choice.completion_tokens}],
            }
    return slots


def _num_processed(request: load_pb2.LiveRequest, choice: load_pb2.LiveChoice) -> int:
    """The prompt tokens that were computed, without those that were cached."""
    is_prefill = choice.HasField("computed_tokens")
    computed = choice.computed_tokens if is_prefill else request.prompt_tokens
    return max(computed - request.cached_tokens, 0)


def _slot(number: int, context_tokens: int) -> LlamaServerSlot:
    return {
        "id": number,
        "n_ctx": context_tokens,
        "speculative": False,
        "is_processing": False,
        "id_task": None,
        "n_prompt_tokens": 0,
        "n_prompt_tokens_processed": 0,
        "n_prompt_tokens_cache": 0,
        "next_token": [],
    }
