"""Mappings of responses to protos."""

from dataclasses import replace
from typing import Any, Final

from corral.control.v1 import response_pb2 as pb
from corral.control.v1 import response_service_pb2 as service_pb
from corral.inference.v1.generation_pb2 import GenerationOptions as OptionsMessage

from control_svc.inference.generation_options import OPTIONS, GenerationOptions
from control_svc.inference.turns import TurnUsage
from control_svc.items.input_items import Include, apply_include
from control_svc.items.proto import ITEM, input_items
from control_svc.responses.model import (
    IncompleteReason,
    NewResponse,
    Response,
    ResponseError,
    ResponseResult,
    ResponseSettings,
)
from control_svc.tools.proto import FORMAT, TOOL
from svc_kit.errors import UnsupportedField
from svc_kit.rpc.message_mapper import EnumMapper, MessageMapper


class _SettingsMapper(MessageMapper[ResponseSettings, pb.ResponseSettings]):
    """Also converts `reasoning`, and settings of options that are fields of their own."""

    def from_message(
        self, message: pb.ResponseSettings, path: str = "", **extra: Any
    ) -> ResponseSettings:
        if message.options.stopping.HasField("max_tokens"):
            raise UnsupportedField(field="options.stopping.max_tokens")
        settings = super().from_message(
            message,
            path,
            effort=message.reasoning.effort,
            summary=message.reasoning.summary,
            is_reasoning_said=message.HasField("reasoning"),
            **extra,
        )
        include = tuple(sorted(set(settings.include)))
        options = _options(message.options, settings.prompt_cache_key, include)
        return replace(settings, include=include, options=options)

    def arguments(self, value: ResponseSettings) -> dict[str, Any]:
        reasoning = pb.ResponseReasoning(effort=value.effort, summary=value.summary)
        shown = reasoning if value.is_reasoning_said else None
        return {**super().arguments(value), "reasoning": shown}


def _options(
    options: OptionsMessage, cache_key: str, include: tuple[Include, ...]
) -> GenerationOptions:
    """Return the options of each turn, with settings that are separate fields in the API."""
    completed = OptionsMessage()
    completed.CopyFrom(options)
    if cache_key and not completed.cache.affinity:
        completed.cache.affinity = cache_key
    if Include.LOGPROBS in include and not completed.output.HasField("top_logprobs"):
        completed.output.top_logprobs = 0
    return OPTIONS.decode(completed, "options")


_SETTINGS: Final = _SettingsMapper(
    ResponseSettings,
    pb.ResponseSettings,
    renamed={"choice": "tool_choice"},
    uses=[TOOL, FORMAT, OPTIONS],
    only_domain=["effort", "summary", "is_reasoning_said"],
    only_message=["reasoning"],
)
USAGE: Final = MessageMapper(
    TurnUsage,
    pb.ResponseUsage,
    renamed={"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"},
)
_RESULT: Final = MessageMapper(
    ResponseResult,
    pb.Response,
    uses=[
        USAGE,
        MessageMapper(
            ResponseError, pb.ResponseError, only_domain=["reason", "metadata", "is_refusal"]
        ),
        EnumMapper(IncompleteReason, pb.Response.IncompleteReason, only_message=["CONTENT_FILTER"]),
    ],
    is_part=True,
)
_RESPONSE: Final = MessageMapper(
    Response,
    pb.Response,
    renamed={"previous_id": "previous_response_id"},
    flat={"result": _RESULT},
    uses=[_SETTINGS, ITEM],
    only_domain=[
        "model",
        "options",
        "seed",
        "conversation_end",
        "context_start",
        "is_compacted",
        "work",
    ],
)


def new_response(request: pb.NewResponse, request_id: str = "") -> NewResponse:
    """Convert a request. Raises MissingField, InvalidField or UnsupportedField."""
    return NewResponse(
        settings=_SETTINGS.from_message(request.settings),
        input=input_items(request.input, "input"),
        previous_id=request.previous_response_id,
        conversation_id=request.conversation_id,
        request_id=request_id,
    )


def compact_request(request: service_pb.CompactResponseRequest) -> NewResponse:
    """Convert a compaction request to one for a response that is not stored."""
    return NewResponse(
        settings=ResponseSettings(
            model=request.model,
            instructions=request.instructions if request.HasField("instructions") else None,
            prompt_cache_key=request.prompt_cache_key,
            options=_options(OptionsMessage(), request.prompt_cache_key, ()),
            store=False,
        ),
        input=input_items(request.input, "input"),
        previous_id=request.previous_response_id,
    )


def response_to_pb(response: Response) -> pb.Response:
    """Convert a response: its settings as in effect, its output filtered by `include`."""
    settings = replace(response.settings, model=response.model, options=response.options)
    output = tuple(apply_include(item, settings.include) for item in response.output)
    return _RESPONSE.to_message(replace(response, settings=settings, output=output))
