"""Converts `chat.proto` to conversations."""

from typing import Final

from corral.inference.v1 import chat_pb2 as pb
from corral.inference.v1 import inference_service_pb2 as service_pb

from inference_svc.chat.conversation import (
    MAX_TOOLS,
    Conversation,
    ConversationLimits,
    MediaPart,
    Message,
    Part,
    RefusalPart,
    TemplateOptions,
    TextPart,
)
from inference_svc.validation import check_count
from svc_kit.errors import MissingField, UnsupportedField
from svc_kit.rpc.message_mapper import MessageMapper

_MESSAGE: Final = MessageMapper(
    Message, pb.ChatMessage, only_domain=["parts"], only_message=["parts"]
)
_MEDIA: Final = MessageMapper(MediaPart, pb.Media, only_domain=["kind", "path"])
_CONVERSATION: Final = MessageMapper(
    Conversation,
    service_pb.Conversation,
    renamed={"options": "template"},
    uses=[
        MessageMapper(TemplateOptions, pb.TemplateOptions, only_domain=["thinking_budget_tokens"])
    ],
    only_domain=["messages"],
    only_message=["messages"],
)


def to_conversation(
    conversation: service_pb.Conversation, *, allows_templates: bool
) -> Conversation:
    """Convert the conversation of a request. The caller must call `Conversation.check`.

    Raises `MissingField` for a role or a part, `InvalidField` for an unknown role or mode, and
    `UnsupportedField` for a chat template if the operator does not allow them.
    """
    if conversation.template.template and not allows_templates:
        raise UnsupportedField(field="chat_template")
    messages = tuple(_message(i, message) for i, message in enumerate(conversation.messages))
    return _CONVERSATION.from_message(conversation, messages=messages)


def check_counts(conversation: service_pb.Conversation, limits: ConversationLimits) -> None:
    """Raise `TooLong` for too many messages, or parts and calls of a message, or tools, before they
    are converted."""
    check_count("messages", conversation.messages, limits.max_messages)
    check_count("tools", conversation.tools, MAX_TOOLS)
    for index, message in enumerate(conversation.messages):
        check_count(f"messages[{index}].content", message.parts, limits.max_messages)
        check_count(f"messages[{index}].tool_calls", message.tool_calls, limits.max_messages)


def _message(index: int, message: pb.ChatMessage) -> Message:
    path = f"messages[{index}]"
    parts = tuple(_part(f"{path}.content[{i}]", part) for i, part in enumerate(message.parts))
    return _MESSAGE.from_message(message, path, parts=parts)


def _part(field: str, part: pb.ContentPart) -> Part:
    match part.WhichOneof("part"):
        case "text":
            return TextPart(part.text)
        case "refusal":
            return RefusalPart(part.refusal)
        case None:
            raise MissingField(field=field)
        case kind:
            return _MEDIA.from_message(getattr(part, kind), kind=kind)
