"""Assistants between protos and the domain."""

from collections.abc import Callable
from typing import Final

from corral.control.v1 import assistant_pb2, assistant_service_pb2
from google.protobuf.field_mask_pb2 import FieldMask

from control_svc.api.convert import timestamp
from control_svc.api.merging import check_mask, merged
from control_svc.api.tool_convert import (
    format_from_pb,
    format_to_pb,
    options_from_pb,
    options_to_pb,
    resources_from_pb,
    resources_to_pb,
    tools_from_pb,
    tools_to_pb,
)
from control_svc.api.vector_convert import new_store
from control_svc.domain.assistants import Assistant, AssistantSettings, NewAssistant

EDITABLE: Final = (
    "model",
    "name",
    "description",
    "instructions",
    "tools",
    "tool_resources",
    "metadata",
    "options",
    "response_format",
    "reasoning_effort",
)
"""The fields that callers change."""


def new_assistant(request: assistant_service_pb2.CreateAssistantRequest) -> NewAssistant:
    """What a caller asks for."""
    return NewAssistant(
        settings=_settings(request.assistant),
        new_stores=tuple(map(new_store, request.new_vector_stores)),
        request_id=request.request_id,
    )


def assistant_edit(
    changes: assistant_pb2.Assistant, mask: FieldMask
) -> Callable[[AssistantSettings], AssistantSettings]:
    """What makes the new settings out of the old ones. Raises InvalidField for a wrong mask."""
    checked = check_mask(mask, changes, EDITABLE)
    return lambda there: _settings(merged(_settings_to_pb(there), changes, checked))


def assistant_to_pb(assistant: Assistant) -> assistant_pb2.Assistant:
    """An assistant as callers see it."""
    shown = _settings_to_pb(assistant.settings)
    shown.id = assistant.id
    shown.create_time.CopyFrom(timestamp(assistant.created_at))
    shown.etag = assistant.etag
    return shown


def _settings(assistant: assistant_pb2.Assistant) -> AssistantSettings:
    form = assistant.response_format if assistant.HasField("response_format") else None
    return AssistantSettings(
        model=assistant.model,
        name=assistant.name,
        description=assistant.description,
        instructions=assistant.instructions,
        tools=tools_from_pb(assistant.tools),
        resources=resources_from_pb(assistant.tool_resources),
        metadata=dict(sorted(assistant.metadata.items())),
        options=options_from_pb(assistant.options),
        format=None if form is None else format_from_pb(form),
        reasoning_effort=assistant.reasoning_effort,
    )


def _settings_to_pb(settings: AssistantSettings) -> assistant_pb2.Assistant:
    return assistant_pb2.Assistant(
        model=settings.model,
        name=settings.name,
        description=settings.description,
        instructions=settings.instructions,
        tools=tools_to_pb(settings.tools),
        tool_resources=resources_to_pb(settings.resources),
        metadata=settings.metadata,
        options=options_to_pb(settings.options),
        response_format=None if settings.format is None else format_to_pb(settings.format),
        reasoning_effort=settings.reasoning_effort,
    )
