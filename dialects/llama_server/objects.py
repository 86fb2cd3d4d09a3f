"""What llama-server tells about a model and its slots, and vLLM about a tokenizer."""

from collections.abc import Iterable
from typing import Any, Final

from corral.inference.v1 import load_pb2, model_pb2
from google.protobuf.json_format import MessageToDict

Json = dict[str, Any]
_OFF: Final = ("", "off")


def props(model: model_pb2.Model, build: str) -> Json:
    """The answer of /props. The path is the model's name, since files are the operator's."""
    modalities = model.input_modalities
    return {
        "default_generation_settings": {
            "params": _sampling(model),
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


def tokenizer_info(model: model_pb2.Model) -> Json:
    """vLLM's answer of /tokenizer_info."""
    return {
        "tokenizer_class": "GGUF",
        "bos_token": model.begin_token or None,
        "eos_token": model.end_token or None,
        "chat_template": model.chat_template or None,
    }


def slot_list(
    model: model_pb2.Model, requests: Iterable[load_pb2.LiveRequest], project: str
) -> list[Json]:
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
                "next_token": [{"n_decoded": choice.completion_tokens}],
            }
    return slots


def _slot(number: int, context_tokens: int) -> Json:
    return {
        "id": number,
        "n_ctx": context_tokens,
        "speculative": False,
        "is_processing": False,
        "id_task": None,
        "n_prompt_tokens": 0,
        "next_token": [],
    }


def _sampling(model: model_pb2.Model) -> Json:
    fields: Json = MessageToDict(model.default_sampling, preserving_proto_field_name=True)
    return fields
