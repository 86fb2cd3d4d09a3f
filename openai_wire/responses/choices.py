"""Tool choice and text format of responses, between JSON and protos."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import orjson
from corral.control.v1 import tool_pb2
from pydantic import Field, Tag

from openai_wire.shared.fields import BY_KIND, WireModel
from svc_kit.errors import InvalidField, MissingField, UnsupportedValue

Json = dict[str, Any]

_MODES: Final = {
    "none": tool_pb2.ToolSelection.MODE_NONE,
    "auto": tool_pb2.ToolSelection.MODE_AUTO,
    "required": tool_pb2.ToolSelection.MODE_REQUIRED,
}
_MODE_NAMES: Final = {mode: name for name, mode in _MODES.items()}
_NAMED: Final = ("function", "custom")
_HOSTED: Final = ("file_search", "mcp")


class NamedTool(WireModel):
    """A tool by name, or one of the server's by kind."""

    type: str
    name: str | None = None
    server_label: str | None = None


class ChoiceModel(NamedTool):
    """A choice that names tools."""

    mode: Literal["auto", "required"] | None = None
    tools: list[NamedTool] | None = Field(None, min_length=1)


Choice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("~string")]
    | Annotated[ChoiceModel, Tag("~object")],
    BY_KIND,
]


class TextFormat(WireModel):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextSettings(WireModel):
    """How the answer is written."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = Field(
        None, description="Shown again, without effect."
    )


_KINDS: Final = {
    "text": tool_pb2.AnswerFormat.KIND_TEXT,
    "json_object": tool_pb2.AnswerFormat.KIND_JSON_OBJECT,
    "json_schema": tool_pb2.AnswerFormat.KIND_JSON_SCHEMA,
}
_KIND_NAMES: Final = {kind: name for name, kind in _KINDS.items()}


def selection_from(
    choice: str | ChoiceModel | None, tools: Sequence[tool_pb2.Tool]
) -> tool_pb2.ToolSelection | None:
    """The rule for calls; None where the body has none. Raises DomainErrors for unknown tools."""
    if choice is None:
        return None
    names: list[str] = []
    mode = choice if isinstance(choice, str) else "required"
    if isinstance(choice, ChoiceModel):
        if choice.type == "allowed_tools":
            mode = choice.mode or "auto"
            names = [
                _name(tool, f"tool_choice.tools[{index}]")
                for index, tool in enumerate(choice.tools or ())
            ]
            if not names:
                raise MissingField(field="tool_choice.tools")
        else:
            names = [_name(choice, "tool_choice")]
    _check_offered(mode, names, tools)
    is_one = isinstance(choice, ChoiceModel) and choice.type != "allowed_tools"
    return tool_pb2.ToolSelection(mode=_MODES[mode], allowed_names=names, is_one=is_one)


def selection_object(
    selection: tool_pb2.ToolSelection, tools: Sequence[tool_pb2.Tool]
) -> str | Json:
    """The tool choice as given."""
    mode = _MODE_NAMES.get(selection.mode, "auto")
    kinds = {name_of(tool): tool.WhichOneof("tool") or "function" for tool in tools}
    named = [
        {"type": kind, "name": name}
        if (kind := kinds.get(name, name)) in _NAMED
        else {"type": kind}
        for name in selection.allowed_names
    ]
    if not named:
        return mode
    return named[0] if selection.is_one else {"type": "allowed_tools", "mode": mode, "tools": named}


def name_of(tool: tool_pb2.Tool) -> str:
    """What a selection calls a tool."""
    match tool.WhichOneof("tool"):
        case "function":
            return tool.function.name
        case "custom":
            return tool.custom.name
        case kind:
            return kind or ""


def format_from(given: TextFormat | None) -> tool_pb2.AnswerFormat | None:
    """The form of the answer. Raises MissingField."""
    if given is None:
        return None
    if given.type == "json_schema":
        for field, value in (("name", given.name), ("schema", given.schema_)):
            if value is None:
                raise MissingField(field=f"text.format.{field}")
    return tool_pb2.AnswerFormat(
        kind=_KINDS[given.type],
        name=given.name or "",
        description=given.description or "",
        schema_json="" if given.schema_ is None else orjson.dumps(given.schema_).decode(),
        strict=given.strict,
    )


def format_object(given: tool_pb2.AnswerFormat) -> Json:
    """The form of the answer, never null."""
    kind = _KIND_NAMES.get(given.kind, "text")
    if kind != "json_schema":
        return {"type": kind}
    return {
        "type": kind,
        "name": given.name,
        "description": given.description or None,
        "schema": orjson.loads(given.schema_json or "{}"),
        "strict": given.strict if given.HasField("strict") else False,
    }


def _name(tool: NamedTool, path: str) -> str:
    if tool.type in _HOSTED:
        return tool.type
    if tool.type not in _NAMED:
        raise UnsupportedValue(field=f"{path}.type", value=tool.type)
    if not tool.name:
        raise MissingField(field=f"{path}.name")
    return tool.name


def _check_offered(mode: str, names: Sequence[str], tools: Sequence[tool_pb2.Tool]) -> None:
    if mode == "required" and not tools:
        raise InvalidField(
            field="tool_choice", problem="it is only allowed when 'tools' are specified"
        )
    offered = {name_of(tool) for tool in tools}
    for name in names:
        if name not in offered:
            raise InvalidField(field="tool_choice", problem=f"'{name}' is not among 'tools'")
