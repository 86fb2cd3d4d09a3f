"""Converts `chat.proto` to conversations."""

from corral.inference.v1 import chat_pb2 as pb
from corral.inference.v1 import inference_service_pb2 as service_pb

from inference_svc.chat.conversation import (
    Conversation,
    MediaPart,
    Message,
    Part,
    RefusalPart,
    Role,
    TemplateOptions,
    TextPart,
    ToolCall,
    ToolChoice,
    ToolMode,
    ToolSpec,
)
from svc_kit.errors import InvalidField, MissingField, UnsupportedField

_ROLES = {
    pb.ROLE_SYSTEM: Role.SYSTEM,
    pb.ROLE_DEVELOPER: Role.DEVELOPER,
    pb.ROLE_USER: Role.USER,
    pb.ROLE_ASSISTANT: Role.ASSISTANT,
    pb.ROLE_TOOL: Role.TOOL,
}
_MODES = {
    pb.ToolChoice.MODE_UNSPECIFIED: ToolMode.AUTO,
    pb.ToolChoice.MODE_NONE: ToolMode.NONE,
    pb.ToolChoice.MODE_AUTO: ToolMode.AUTO,
    pb.ToolChoice.MODE_REQUIRED: ToolMode.REQUIRED,
}


def to_conversation(
    conversation: service_pb.Conversation, *, allows_templates: bool
) -> Conversation:
    """Convert the conversation of a request. The caller must call `Conversation.check`.

    Raises `InvalidField` for an unknown role or mode, `MissingField` for an empty part, and
    `UnsupportedField` for a chat template if the operator does not allow them.
    """
    options = conversation.template
    if options.template and not allows_templates:
        raise UnsupportedField(field="chat_template")
    choice = _tool_choice(conversation.tool_choice)
    return Conversation(
        messages=tuple(_message(i, message) for i, message in enumerate(conversation.messages)),
        tools=tuple(
            ToolSpec(tool.name, tool.description, tool.parameters_json, tool.strict)
            for tool in conversation.tools
        ),
        tool_choice=choice,
        options=TemplateOptions(
            kwargs_json=options.kwargs_json,
            enable_thinking=_optional(options, "enable_thinking"),
            continue_final_message=_optional(options, "continue_final_message"),
            template=options.template or None,
        ),
    )


def _optional(options: pb.TemplateOptions, field: str) -> bool | None:
    return bool(getattr(options, field)) if options.HasField(field) else None


def _message(index: int, message: pb.ChatMessage) -> Message:
    field = f"messages[{index}]"
    role = _ROLES.get(message.role)
    if role is None:
        raise InvalidField(field=f"{field}.role", problem="unknown role")
    return Message(
        role=role,
        parts=tuple(_part(f"{field}.content[{i}]", part) for i, part in enumerate(message.parts)),
        tool_calls=tuple(
            ToolCall(call.id, call.name, call.arguments_json) for call in message.tool_calls
        ),
        tool_call_id=message.tool_call_id,
        name=message.name,
        reasoning=message.reasoning,
    )


def _part(field: str, part: pb.ContentPart) -> Part:
    match part.WhichOneof("part"):
        case "text":
            return TextPart(part.text)
        case "refusal":
            return RefusalPart(part.refusal)
        case "image":
            return MediaPart("image", part.image.media_type, part.image.data)
        case "audio":
            return MediaPart("audio", part.audio.media_type, part.audio.data)
    raise MissingField(field=field)


def _tool_choice(choice: pb.ToolChoice) -> ToolChoice:
    mode = _MODES.get(choice.mode)
    if mode is None:
        raise InvalidField(field="tool_choice", problem="unknown mode")
    parallel = choice.parallel if choice.HasField("parallel") else True
    return ToolChoice(mode, tuple(choice.allowed_names), parallel)
