"""Tools and tool choice, converted to protos."""

from collections.abc import Container, Sequence
from typing import Any, ClassVar, Literal

from corral.inference.v1 import chat_pb2
from pydantic import Field

from dialects.anthropic.blocks import CACHE_CONTROL, Part
from dialects.shared.json_body import json_text
from dialects.shared.parameters import UNKNOWN, Ignored, Policy
from svc_kit.errors import InvalidField, MissingField, UnsupportedValue


class Tool(Part):
    """A tool that the model may call. Tools that Anthropic's servers run are refused."""

    policy: ClassVar[Policy] = {
        **CACHE_CONTROL,
        UNKNOWN: Ignored("it is a hint for Anthropic's servers"),
    }
    type: str | None = Field(None, description="Only custom is supported, the default.")
    name: str | None = Field(None, description="1 to 128 letters, digits, '_', '-' or '.'.")
    description: str | None = None
    input_schema: dict[str, Any] | None = Field(
        None, description="The JSON Schema of its input. Required."
    )
    strict: bool | None = Field(None, description="Require an input that matches the schema.")
    defer_loading: bool | None = Field(
        None, description="Show it to the model only once a tool_reference or a call names it."
    )


class ToolChoice(Part):
    """Whether tools are called, and which one."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = Field(None, description="The tool to call, with type tool.")
    disable_parallel_tool_use: bool | None = Field(
        None, description="Call at most one tool in a turn."
    )


_MODES = {
    "auto": chat_pb2.ToolChoice.MODE_AUTO,
    "any": chat_pb2.ToolChoice.MODE_REQUIRED,
    "tool": chat_pb2.ToolChoice.MODE_REQUIRED,
    "none": chat_pb2.ToolChoice.MODE_NONE,
}


def chat_tools(tools: Sequence[Tool], called: Container[str] = ()) -> list[chat_pb2.Tool]:
    """Convert tools; deferred ones only if they are among the `called`.

    Raises DomainErrors with paths such as tools[0].input_schema.
    """
    if tools and all(tool.defer_loading for tool in tools):
        problem = "at least one tool must be without 'defer_loading'"
        raise InvalidField(field="tools", problem=problem)
    converted = [_tool(f"tools[{index}]", tool) for index, tool in enumerate(tools)]
    return [
        proto
        for tool, proto in zip(tools, converted, strict=True)
        if not tool.defer_loading or proto.name in called
    ]


def chat_tool_choice(
    choice: ToolChoice | None, tools: Sequence[chat_pb2.Tool]
) -> chat_pb2.ToolChoice | None:
    """Convert the tool choice; None if the body has none. Raises DomainErrors."""
    if choice is None:
        return None
    proto = chat_pb2.ToolChoice(mode=_MODES[choice.type])
    if choice.disable_parallel_tool_use is not None:
        proto.parallel = not choice.disable_parallel_tool_use
    if choice.type == "tool":
        if not choice.name:
            raise MissingField(field="tool_choice.name")
        if choice.name not in [tool.name for tool in tools]:
            raise InvalidField(
                field="tool_choice.name", problem=f"'{choice.name}' is not among 'tools'"
            )
        proto.allowed_names.append(choice.name)
    if proto.mode == chat_pb2.ToolChoice.MODE_REQUIRED and not tools:
        raise InvalidField(field="tool_choice", problem="it is only allowed with 'tools'")
    return proto


def _tool(path: str, tool: Tool) -> chat_pb2.Tool:
    if tool.type not in (None, "custom"):
        raise UnsupportedValue(field=f"{path}.type", value=tool.type or "")
    if not tool.name:
        raise MissingField(field=f"{path}.name")
    if tool.input_schema is None:
        raise MissingField(field=f"{path}.input_schema")
    return chat_pb2.Tool(
        name=tool.name,
        description=tool.description or "",
        parameters_json=json_text(tool.input_schema),
        strict=tool.strict,
    )
