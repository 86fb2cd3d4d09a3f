"""Conversion of assistants, threads and messages between protos and dataclasses."""

from collections.abc import Callable, Sequence
from typing import Final

from corral.control.v1 import (
    assistant_pb2,
    assistant_service_pb2,
    item_pb2,
    message_pb2,
    thread_pb2,
    thread_service_pb2,
)
from google.protobuf.field_mask_pb2 import FieldMask

from control_svc.assistants.message_model import (
    Attachment,
    AttachmentTool,
    NewMessage,
    ThreadMessage,
)
from control_svc.assistants.model import (
    Assistant,
    AssistantSettings,
    NewAssistant,
    NewThread,
    Thread,
    ThreadSettings,
)
from control_svc.base.proto import apply_mask, check_mask, optional_timestamp, timestamp
from control_svc.items.model import Role, Text
from control_svc.items.proto import parts_from_pb, parts_to_pb
from control_svc.tools.proto import (
    format_from_pb,
    format_to_pb,
    options_from_pb,
    options_to_pb,
    resources_from_pb,
    resources_to_pb,
    tools_from_pb,
    tools_to_pb,
)
from control_svc.vector_stores.proto import new_store
from svc_kit.errors import InvalidField, MissingField

ASSISTANT_FIELDS: Final = (
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
"""Fields that an update may change."""


def new_assistant(request: assistant_service_pb2.CreateAssistantRequest) -> NewAssistant:
    """Convert a request to create an assistant."""
    return NewAssistant(
        settings=_settings(request.assistant),
        new_stores=tuple(map(new_store, request.new_vector_stores)),
        request_id=request.request_id,
    )


def assistant_edit(
    changes: assistant_pb2.Assistant, mask: FieldMask
) -> Callable[[AssistantSettings], AssistantSettings]:
    """A function that applies the changes to settings. Raises InvalidField for a wrong mask."""
    mask = check_mask(mask, changes, ASSISTANT_FIELDS)
    return lambda old: _settings(apply_mask(_assistant_settings_to_pb(old), changes, mask))


def assistant_to_pb(assistant: Assistant) -> assistant_pb2.Assistant:
    """Convert an assistant."""
    message = _assistant_settings_to_pb(assistant.settings)
    message.id = assistant.id
    message.create_time.CopyFrom(timestamp(assistant.created_at))
    message.etag = assistant.etag
    return message


def _settings(assistant: assistant_pb2.Assistant) -> AssistantSettings:
    has_format = assistant.HasField("response_format")
    return AssistantSettings(
        model=assistant.model,
        name=assistant.name,
        description=assistant.description,
        instructions=assistant.instructions,
        tools=tools_from_pb(assistant.tools),
        resources=resources_from_pb(assistant.tool_resources),
        metadata=dict(sorted(assistant.metadata.items())),
        options=options_from_pb(assistant.options),
        format=format_from_pb(assistant.response_format) if has_format else None,
        reasoning_effort=assistant.reasoning_effort,
    )


def _assistant_settings_to_pb(settings: AssistantSettings) -> assistant_pb2.Assistant:
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


THREAD_FIELDS: Final = ("tool_resources", "metadata")
MESSAGE_FIELDS: Final = ("metadata",)
_ROLE: Final = "ITEM_ROLE_"
_TOOL: Final = "ATTACHMENT_TOOL_"


def new_thread(request: thread_service_pb2.CreateThreadRequest) -> NewThread:
    """Convert a request to create a thread. Raises MissingField or InvalidField."""
    return NewThread(
        settings=thread_settings(request.thread),
        messages=new_messages(request.messages),
        new_stores=tuple(map(new_store, request.new_vector_stores)),
        request_id=request.request_id,
    )


def thread_settings(thread: thread_pb2.Thread) -> ThreadSettings:
    """Convert the settings of a thread."""
    return ThreadSettings(
        resources=resources_from_pb(thread.tool_resources),
        metadata=dict(sorted(thread.metadata.items())),
    )


def thread_edit(
    changes: thread_pb2.Thread, mask: FieldMask
) -> Callable[[ThreadSettings], ThreadSettings]:
    """A function that applies the changes to settings. Raises InvalidField for a wrong mask."""
    mask = check_mask(mask, changes, THREAD_FIELDS)
    return lambda old: thread_settings(apply_mask(_thread_settings_to_pb(old), changes, mask))


def thread_to_pb(thread: Thread) -> thread_pb2.Thread:
    """Convert a thread."""
    message = _thread_settings_to_pb(thread.settings)
    message.id = thread.id
    message.create_time.CopyFrom(timestamp(thread.created_at))
    message.etag = thread.etag
    message.active_run_id = thread.active_run_id
    return message


def new_messages(
    messages: Sequence[message_pb2.NewMessage], field: str = "messages"
) -> tuple[NewMessage, ...]:
    """Convert new messages without validation. Raises MissingField or InvalidField."""
    return tuple(
        new_message(message, f"{field}[{index}].") for index, message in enumerate(messages)
    )


def new_message(message: message_pb2.NewMessage, path: str = "") -> NewMessage:
    """Convert a new message; `path` is a prefix for field names in errors.

    Fields of text that only the server sets are removed. Raises MissingField or InvalidField.
    """
    parts = parts_from_pb(message.parts, f"{path}content")
    return NewMessage(
        role=_role(message.role, f"{path}role"),
        content=tuple(Text(text=p.text) if isinstance(p, Text) else p for p in parts),
        attachments=tuple(
            _attachment(attachment, f"{path}attachments[{index}]")
            for index, attachment in enumerate(message.attachments)
        ),
        metadata=dict(sorted(message.metadata.items())),
    )


def message_metadata(message: message_pb2.Message, mask: FieldMask) -> dict[str, str] | None:
    """New metadata of a message; None if the mask is empty. Raises InvalidField."""
    checked = check_mask(mask, message, MESSAGE_FIELDS)
    return dict(sorted(message.metadata.items())) if checked.paths else None


def message_to_pb(message: ThreadMessage) -> message_pb2.Message:
    """Convert a message."""
    reason = message.incomplete_reason
    return message_pb2.Message(
        id=message.id,
        thread_id=message.thread_id,
        state=f"STATE_{message.item.status.name}",
        create_time=timestamp(message.item.created_at),
        completed_time=optional_timestamp(message.completed_at),
        incomplete_time=optional_timestamp(message.incomplete_at),
        incomplete_reason=None if reason is None else f"INCOMPLETE_REASON_{reason.name}",
        role=f"{_ROLE}{message.message.role.name}",
        parts=parts_to_pb(message.message.content),
        attachments=[_attachment_to_pb(attachment) for attachment in message.attachments],
        metadata=message.metadata,
        assistant_id=message.assistant_id,
        run_id=message.run_id,
    )


def _thread_settings_to_pb(settings: ThreadSettings) -> thread_pb2.Thread:
    return thread_pb2.Thread(
        tool_resources=resources_to_pb(settings.resources), metadata=settings.metadata
    )


def _role(value: int, field: str) -> Role:
    if value == item_pb2.ITEM_ROLE_UNSPECIFIED:
        raise MissingField(field=field)
    known = item_pb2.ItemRole.DESCRIPTOR.values_by_number.get(value)
    if known is None:
        raise InvalidField(field=field, problem=f"{value} is not a role")
    return Role[known.name.removeprefix(_ROLE)]


def _attachment(attachment: message_pb2.Attachment, path: str) -> Attachment:
    for index, tool in enumerate(attachment.tools):
        if tool != message_pb2.ATTACHMENT_TOOL_FILE_SEARCH:
            raise InvalidField(field=f"{path}.tools[{index}]", problem=f"{tool} is not a tool")
    return Attachment(attachment.file_id, (AttachmentTool.FILE_SEARCH,) * bool(attachment.tools))


def _attachment_to_pb(attachment: Attachment) -> message_pb2.Attachment:
    return message_pb2.Attachment(
        file_id=attachment.file_id, tools=[f"{_TOOL}{tool.name}" for tool in attachment.tools]
    )
