"""Response objects. They have every required key, and null only where Open Responses allows it."""

from typing import Final

from corral.control.v1 import response_pb2
from corral.control.v1 import response_service_pb2 as service_pb

from dialects.openai.errors import RESPONSE_PARAMS, openai_name
from dialects.openai.responses.choices import format_object, tool_choice_object
from dialects.openai.responses.namespaces import group_tools
from dialects.openai.responses.output_items import item_objects
from dialects.openai.responses.tools import tool_object
from dialects.openai.shared.objects import (
    Json,
    ignored_object,
    incomplete_details,
    optional_float,
    optional_seconds,
    state_name,
    token_usage,
)

_SAMPLING_DEFAULTS: Final = {
    "temperature": 1.0,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}


def response_object(response: response_pb2.Response) -> Json:
    """A response."""
    settings = response.settings
    return {
        "id": response.id,
        "object": "response",
        "created_at": response.create_time.seconds,
        "completed_at": optional_seconds(response, "complete_time"),
        "status": state_name(response),
        "background": settings.background,
        "error": _error_object(response),
        "incomplete_details": incomplete_details(response),
        "model": settings.model,
        "output": item_objects(response.output),
        "previous_response_id": response.previous_response_id or None,
        "conversation": {"id": response.conversation_id} if response.conversation_id else None,
        "usage": usage_object(response.usage) if response.HasField("usage") else None,
        **_settings_object(settings),
        **_sampling_object(settings),
        **ignored_object(response.ignored_parameters, RESPONSE_PARAMS),
    }


def usage_object(usage: response_pb2.ResponseUsage) -> Json:
    """Token counts. `cache_write_tokens`, which OpenAI bills, is required by its clients."""
    written = token_usage(usage)
    written["input_tokens_details"]["cache_write_tokens"] = 0
    return written


def compaction_object(compacted: service_pb.CompactResponseResponse) -> Json:
    """A compaction."""
    return {
        "id": compacted.id,
        "object": "response.compaction",
        "created_at": compacted.create_time.seconds,
        "output": item_objects(compacted.output),
        "usage": usage_object(compacted.usage),
    }


def _settings_object(settings: response_pb2.ResponseSettings) -> Json:
    text: Json = {"format": format_object(settings.format)}
    if settings.verbosity:
        text["verbosity"] = settings.verbosity
    is_auto = settings.truncation == response_pb2.ResponseSettings.TRUNCATION_AUTO
    return {
        "instructions": settings.instructions if settings.HasField("instructions") else None,
        "tools": group_tools([tool_object(tool) for tool in settings.tools]),
        "tool_choice": tool_choice_object(settings.tool_choice, settings.tools),
        "parallel_tool_calls": settings.parallel_tool_calls
        if settings.HasField("parallel_tool_calls")
        else True,
        "text": text,
        "reasoning": _reasoning_object(settings),
        "truncation": "auto" if is_auto else "disabled",
        "max_output_tokens": settings.max_output_tokens or None,
        "max_tool_calls": settings.max_tool_calls or None,
        "store": settings.store if settings.HasField("store") else True,
        "metadata": dict(settings.metadata),
        "service_tier": settings.service_tier or "auto",
        "safety_identifier": settings.safety_identifier or None,
        "prompt_cache_key": settings.prompt_cache_key or None,
        "user": settings.user or None,
    }


def _sampling_object(settings: response_pb2.ResponseSettings) -> Json:
    """Sampling parameters that strict clients require."""
    numbers: Json = {}
    for name, default in _SAMPLING_DEFAULTS.items():
        value = optional_float(settings.options.sampling, name)
        numbers[name] = default if value is None else value
    return numbers | {"top_logprobs": settings.options.output.top_logprobs}


def _reasoning_object(settings: response_pb2.ResponseSettings) -> Json | None:
    if not settings.HasField("reasoning"):
        return None
    reasoning = settings.reasoning
    return {"effort": reasoning.effort or None, "summary": reasoning.summary or None}


def _error_object(response: response_pb2.Response) -> Json | None:
    if not response.HasField("error"):
        return None
    error = response.error
    param = {"param": openai_name(error.param, RESPONSE_PARAMS)} if error.param else {}
    return {"code": error.code, "message": error.message} | param
