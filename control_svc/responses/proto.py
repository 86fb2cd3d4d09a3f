"""Conversion of responses between protos and dataclasses."""

from collections.abc import Mapping
from typing import Any, Final

from corral.control.v1 import response_pb2 as pb
from corral.control.v1 import response_service_pb2 as service_pb
from corral.inference.v1.generation_pb2 import GenerationOptions

from control_svc.base.proto import timestamp
from control_svc.inference.turns import TurnUsage
from control_svc.items.input_items import Include
from control_svc.items.proto import includes_from_pb, input_items, items_to_pb
from control_svc.responses.model import (
    NewResponse,
    Response,
    ResponseError,
    ResponseSettings,
    Truncation,
)
from control_svc.tools.proto import (
    choice_from_pb,
    choice_to_pb,
    format_from_pb,
    format_to_pb,
    options_from_pb,
    options_to_pb,
    tools_from_pb,
    tools_to_pb,
)
from svc_kit.errors import InvalidField, UnsupportedField

_TRUNCATIONS: Final[Mapping[int, Truncation]] = {
    pb.ResponseSettings.TRUNCATION_UNSPECIFIED: Truncation.DISABLED,
    pb.ResponseSettings.TRUNCATION_DISABLED: Truncation.DISABLED,
    pb.ResponseSettings.TRUNCATION_AUTO: Truncation.AUTO,
}
_INCLUDES: Final[Mapping[Include, pb.ResponseInclude]] = {
    Include.LOGPROBS: pb.RESPONSE_INCLUDE_LOGPROBS,
    Include.FILE_SEARCH_RESULTS: pb.RESPONSE_INCLUDE_FILE_SEARCH_RESULTS,
    Include.SEALED_REASONING: pb.RESPONSE_INCLUDE_SEALED_REASONING,
    Include.INPUT_IMAGE_URLS: pb.RESPONSE_INCLUDE_INPUT_IMAGE_URLS,
}
_TEXTS: Final = (
    "model",
    "verbosity",
    "prompt_cache_key",
    "safety_identifier",
    "service_tier",
    "user",
)
_NUMBERS: Final = ("max_output_tokens", "max_tool_calls", "compact_threshold")


def new_response(request: pb.NewResponse, request_id: str = "") -> NewResponse:
    """Convert a request. Raises MissingField, InvalidField or UnsupportedField."""
    return NewResponse(
        settings=settings_from_pb(request.settings),
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
            options=_options(GenerationOptions(), request.prompt_cache_key, frozenset()),
            store=False,
        ),
        input=input_items(request.input, "input"),
        previous_id=request.previous_response_id,
    )


def settings_from_pb(request: pb.ResponseSettings) -> ResponseSettings:
    """Convert settings. Raises MissingField, InvalidField or UnsupportedField."""
    if request.truncation not in _TRUNCATIONS:
        raise InvalidField(
            field="truncation", problem=f"{request.truncation} is not a truncation strategy"
        )
    if request.options.stopping.HasField("max_tokens"):
        raise UnsupportedField(field="options.stopping.max_tokens")
    include = includes_from_pb(request.include)
    numbers: dict[str, Any] = {
        name: getattr(request, name) if request.HasField(name) else None for name in _NUMBERS
    }
    return ResponseSettings(
        instructions=request.instructions if request.HasField("instructions") else None,
        tools=tools_from_pb(request.tools),
        choice=choice_from_pb(request.tool_choice) if request.HasField("tool_choice") else None,
        parallel_tool_calls=(
            request.parallel_tool_calls if request.HasField("parallel_tool_calls") else None
        ),
        format=format_from_pb(request.format, "text.format")
        if request.HasField("format")
        else None,
        effort=request.reasoning.effort,
        summary=request.reasoning.summary,
        is_reasoning_said=request.HasField("reasoning"),
        truncation=_TRUNCATIONS[request.truncation],
        options=_options(request.options, request.prompt_cache_key, include),
        include=tuple(sorted(include)),
        background=request.background,
        store=request.store if request.HasField("store") else True,
        metadata=dict(request.metadata),
        **{name: getattr(request, name) for name in _TEXTS},
        **numbers,
    )


def _options(request: GenerationOptions, cache_key: str, include: frozenset[Include]) -> bytes:
    """Return the options of each turn, with settings that are separate fields in the API."""
    options = GenerationOptions()
    options.CopyFrom(request)
    if cache_key and not options.cache.affinity:
        options.cache.affinity = cache_key
    if Include.LOGPROBS in include and not options.output.HasField("top_logprobs"):
        options.output.top_logprobs = 0
    return options_from_pb(options)


def response_to_pb(response: Response) -> pb.Response:
    """Convert a response."""
    result = response.result
    return pb.Response(
        id=response.id,
        state=f"STATE_{response.state.name}",
        create_time=timestamp(response.created_at),
        complete_time=response.completed_at and timestamp(response.completed_at),
        expire_time=response.expires_at and timestamp(response.expires_at),
        settings=_settings_to_pb(response),
        previous_response_id=response.previous_id,
        conversation_id=response.conversation_id,
        output=items_to_pb(response.output, response.settings.include),
        usage=result.usage and usage_to_pb(result.usage),
        error=None if result.error is None else _error_to_pb(result.error),
        incomplete_reason=(
            f"INCOMPLETE_REASON_{result.incomplete_reason.name}"
            if result.incomplete_reason
            else pb.Response.INCOMPLETE_REASON_UNSPECIFIED
        ),
    )


def usage_to_pb(usage: TurnUsage) -> pb.ResponseUsage:
    """Convert usage."""
    return pb.ResponseUsage(
        input_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.completion_tokens,
        reasoning_tokens=usage.reasoning_tokens,
    )


def _settings_to_pb(response: Response) -> pb.ResponseSettings:
    settings = response.settings
    texts = {name: getattr(settings, name) for name in (*_TEXTS, *_NUMBERS)}
    return pb.ResponseSettings(
        **{**texts, "model": response.model},
        instructions=settings.instructions,
        tools=tools_to_pb(settings.tools),
        tool_choice=None if settings.choice is None else choice_to_pb(settings.choice),
        parallel_tool_calls=settings.parallel_tool_calls,
        format=None if settings.format is None else format_to_pb(settings.format),
        reasoning=(
            pb.ResponseReasoning(effort=settings.effort, summary=settings.summary)
            if settings.is_reasoning_said
            else None
        ),
        truncation=f"TRUNCATION_{settings.truncation.name}",
        options=options_to_pb(response.options),
        include=[_INCLUDES[include] for include in settings.include],
        background=settings.background,
        store=settings.store,
        metadata=settings.metadata,
    )


def _error_to_pb(error: ResponseError) -> pb.ResponseError:
    return pb.ResponseError(code=error.code, message=error.message, param=error.param)
