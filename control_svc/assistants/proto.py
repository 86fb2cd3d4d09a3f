"""Mappings of assistants, threads and messages to protos, and their updates."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from corral.control.v1 import (
    assistant_pb2,
    assistant_service_pb2,
    message_pb2,
    thread_pb2,
    thread_service_pb2,
)
from google.protobuf.field_mask_pb2 import FieldMask

from control_svc.assistants.message_model import NewMessage, ThreadMessage
from control_svc.assistants.model import (
    Assistant,
    AssistantSettings,
    NewAssistant,
    NewThread,
    Thread,
    ThreadSettings,
)
from control_svc.base.proto import apply_mask, check_mask
from control_svc.inference.generation_options import OPTIONS
from control_svc.items.model import Item, Message, Text
from control_svc.items.proto import PART
from control_svc.tools.proto import FORMAT, RESOURCES, TOOL
from control_svc.vector_stores.proto import NEW_STORE
from svc_kit.rpc.message_mapper import MessageMapper


class _SettingsMapper(MessageMapper[AssistantSettings, assistant_pb2.Assistant]):
    """Errors name the fields of an assistant alone, in a request that contains it as well."""

    def decode(self, message: assistant_pb2.Assistant, path: str) -> AssistantSettings:
        return self.from_message(message)


ASSISTANT_SETTINGS: Final = _SettingsMapper(
    AssistantSettings,
    assistant_pb2.Assistant,
    renamed={"resources": "tool_resources", "format": "response_format"},
    uses=[TOOL, RESOURCES, FORMAT, OPTIONS],
    only_message=["id", "create_time", "etag"],
)
ASSISTANT: Final = MessageMapper(
    Assistant,
    assistant_pb2.Assistant,
    flat={"settings": ASSISTANT_SETTINGS},
    only_domain=["revision"],
)
NEW_ASSISTANT: Final = MessageMapper(
    NewAssistant,
    assistant_service_pb2.CreateAssistantRequest,
    renamed={"settings": "assistant", "new_stores": "new_vector_stores"},
    uses=[ASSISTANT_SETTINGS, NEW_STORE],
)


def assistant_edit(
    changes: assistant_pb2.Assistant, mask: FieldMask
) -> Callable[[AssistantSettings], AssistantSettings]:
    """A function that applies the changes to settings. Raises InvalidField for a wrong mask."""
    mask = check_mask(mask, changes, ASSISTANT_SETTINGS.targets)

    def edit(old: AssistantSettings) -> AssistantSettings:
        changed = apply_mask(ASSISTANT_SETTINGS.to_message(old), changes, mask)
        if any(path.split(".")[0] == "options" for path in mask.paths):
            return ASSISTANT_SETTINGS.from_message(changed)
        changed.ClearField("options")  # an older release may have stored some that are refused now
        return replace(ASSISTANT_SETTINGS.from_message(changed), options=old.options)

    return edit


THREAD_SETTINGS: Final = MessageMapper(
    ThreadSettings,
    thread_pb2.Thread,
    renamed={"resources": "tool_resources"},
    uses=[RESOURCES],
    only_message=["id", "create_time", "etag", "active_run_id"],
)
THREAD: Final = MessageMapper(
    Thread,
    thread_pb2.Thread,
    flat={"settings": THREAD_SETTINGS},
    only_domain=["revision", "cut"],
)


class _NewMessageMapper(MessageMapper[NewMessage, message_pb2.NewMessage]):
    """Leaves out fields of text that only the server sets, and repeated tools."""

    def from_message(
        self, message: message_pb2.NewMessage, path: str = "", **extra: Any
    ) -> NewMessage:
        new = super().from_message(message, path, **extra)
        return replace(
            new,
            content=tuple(
                Text(text=part.text) if isinstance(part, Text) else part for part in new.content
            ),
            attachments=tuple(
                each._replace(tools=tuple(dict.fromkeys(each.tools))) for each in new.attachments
            ),
        )


NEW_MESSAGE: Final = _NewMessageMapper(
    NewMessage, message_pb2.NewMessage, renamed={"content": "parts"}, uses=[PART]
)
MESSAGE: Final = MessageMapper(
    ThreadMessage,
    message_pb2.Message,
    flat={
        "item": MessageMapper(
            Item,
            message_pb2.Message,
            renamed={"status": "state"},
            only_domain=["content", "origin"],
            is_part=True,
        ),
        "message": MessageMapper(
            Message, message_pb2.Message, renamed={"content": "parts"}, uses=[PART], is_part=True
        ),
    },
)
NEW_THREAD: Final = MessageMapper(
    NewThread,
    thread_service_pb2.CreateThreadRequest,
    renamed={"settings": "thread", "new_stores": "new_vector_stores"},
    uses=[THREAD_SETTINGS, NEW_MESSAGE, NEW_STORE],
)


def thread_edit(
    changes: thread_pb2.Thread, mask: FieldMask
) -> Callable[[ThreadSettings], ThreadSettings]:
    """A function that applies the changes to settings. Raises InvalidField for a wrong mask."""
    mask = check_mask(mask, changes, THREAD_SETTINGS.targets)

    def edit(old: ThreadSettings) -> ThreadSettings:
        changed = apply_mask(THREAD_SETTINGS.to_message(old), changes, mask)
        return THREAD_SETTINGS.from_message(changed)

    return edit


def message_metadata(message: message_pb2.Message, mask: FieldMask) -> dict[str, str] | None:
    """New metadata of a message; None if the mask is empty. Raises InvalidField."""
    checked = check_mask(mask, message, ["metadata"])
    return dict(sorted(message.metadata.items())) if checked.paths else None
