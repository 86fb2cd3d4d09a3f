"""Tools and tool choice of chat completions, converted to protos."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from corral.inference.v1 import chat_pb2
from pydantic import Field, Tag

from dialects.openai.chat.policy import FUNCTIONS
from dialects.shared.fields import BY_KIND, WireModel
from dialects.shared.json_body import json_text
from dialects.shared.parameters import Policy
from svc_kit.errors import InvalidField, MissingField, UnsupportedValue


class FunctionDefinition(WireModel):
    """A function that the model may call."""

    policy: ClassVar[Policy] = FUNCTIONS

    name: str = Field(
        min_length=1, max_length=128, description="1 to 128 letters, digits, '_', '-' or '.'."
    )
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="The JSON Schema of its arguments.")
    strict: bool | None = None


class ToolDefinition(WireModel):
    """A tool that the model may call. Only functions are supported."""

    policy: ClassVar[Policy] = FUNCTIONS

    type: Literal["function", "custom"]
    function: FunctionDefinition | None = None
    custom: dict[str, Any] | None = Field(None, description="Not supported.")


class NamedFunction(WireModel):
    name: str = Field(min_length=1)


class AllowedTool(WireModel):
    type: Literal["function", "custom"]
    function: NamedFunction | None = None


class AllowedTools(WireModel):
    """Restricts calls to some of the tools."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedTool], Field(min_length=1)]


class ToolChoiceObject(WireModel):
    type: Literal["function", "allowed_tools", "custom"]
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None
    custom: dict[str, Any] | None = Field(None, description="Not supported.")


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required", "any"], Tag("~string")]
    | Annotated[ToolChoiceObject, Tag("~object")],
    BY_KIND,
]
_MODES = {
    "none": chat_pb2.ToolChoice.MODE_NONE,
    "auto": chat_pb2.ToolChoice.MODE_AUTO,
    "required": chat_pb2.ToolChoice.MODE_REQUIRED,
    "any": chat_pb2.ToolChoice.MODE_REQUIRED,  # Mistral's name
}


def chat_tools(tools: Sequence[ToolDefinition]) -> list[chat_pb2.Tool]:
    """Convert tools. Raises DomainErrors with paths such as tools[0].function."""
    return [_tool(f"tools[{index}]", tool) for index, tool in enumerate(tools)]


def chat_tool_choice(
    choice: str | ToolChoiceObject | None, parallel: bool | None, tool_names: Sequence[str]
) -> chat_pb2.ToolChoice | None:
    """Convert the tool choice; None if the body has none. Raises DomainErrors for unknown tools."""
    if choice is None and parallel is None:
        return None
    proto = chat_pb2.ToolChoice(parallel=parallel)
    if isinstance(choice, str):
        proto.mode = _MODES[choice]
    elif choice is not None:
        proto.mode, names = _mode_and_names(choice)
        proto.allowed_names.extend(names)
    if proto.mode == chat_pb2.ToolChoice.MODE_REQUIRED and not tool_names:
        raise InvalidField(
            field="tool_choice", problem="it is only allowed when 'tools' are specified"
        )
    for name in proto.allowed_names:
        if name not in tool_names:
            raise InvalidField(field="tool_choice", problem=f"'{name}' is not among 'tools'")
    return proto


def _tool(path: str, tool: ToolDefinition) -> chat_pb2.Tool:
    if tool.type != "function":
        raise UnsupportedValue(field=f"{path}.type", value=tool.type)
    function = tool.function
    if function is None:
        raise MissingField(field=f"{path}.function")
    return chat_pb2.Tool(
        name=function.name,
        description=function.description or "",
        parameters_json=json_text(function.parameters),
        strict=function.strict,
    )


def _mode_and_names(choice: ToolChoiceObject) -> tuple[chat_pb2.ToolChoice.Mode, list[str]]:
    if choice.type == "custom":
        raise UnsupportedValue(field="tool_choice.type", value=choice.type)
    if choice.type == "function":
        if choice.function is None:
            raise MissingField(field="tool_choice.function")
        return chat_pb2.ToolChoice.MODE_REQUIRED, [choice.function.name]
    if choice.allowed_tools is None:
        raise MissingField(field="tool_choice.allowed_tools")
    names = [
        _allowed_name(f"tool_choice.allowed_tools.tools[{index}]", tool)
        for index, tool in enumerate(choice.allowed_tools.tools)
    ]
    return _MODES[choice.allowed_tools.mode], names


def _allowed_name(path: str, tool: AllowedTool) -> str:
    if tool.type != "function":
        raise UnsupportedValue(field=f"{path}.type", value=tool.type)
    if tool.function is None:
        raise MissingField(field=f"{path}.function")
    return tool.function.name
