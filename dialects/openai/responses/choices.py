"""Tool choice and text format of responses: JSON to protos and back."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, NotRequired

from corral.control.v1 import tool_pb2
from pydantic import Field, Tag
from typing_extensions import TypedDict

from dialects.openai.responses.namespaces import flat_name, local_name, namespace_of
from dialects.openai.shared.tools import TOOL_MODES, ToolMode, schema_to_proto
from dialects.shared.fields import BY_KIND, WireModel
from dialects.shared.json_body import answer_value
from dialects.shared.parameters import ignore_parameter
from dialects.shared.wire import From, writer
from svc_kit.errors import InvalidField, MissingField, UnsupportedValue

_NAMED_TYPES: Final = ("function", "custom")
_HOSTED_TYPES: Final = ("file_search", "mcp")


class NamedTool(WireModel):
    """A tool by name, or a hosted tool by type."""

    type: str
    name: str | None = None
    namespace: str | None = None
    server_label: str | None = None


class ChoiceModel(NamedTool):
    mode: Literal["auto", "required"] | None = None
    tools: list[NamedTool] | None = Field(None, min_length=1)


Choice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("~string")]
    | Annotated[ChoiceModel, Tag("~object")],
    BY_KIND,
]


class TextFormat(WireModel):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextSettings(WireModel):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = Field(
        None, description="Returned in the response, without effect."
    )


def tool_choice_to_proto(
    choice: str | ChoiceModel | None, tools: Sequence[tool_pb2.Tool]
) -> tool_pb2.ToolSelection | None:
    """Convert the tool choice; None if the body has none. Raises DomainErrors for unknown tools."""
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
    _check_supported(mode, names, tools)
    is_one = isinstance(choice, ChoiceModel) and choice.type != "allowed_tools"
    return tool_pb2.ToolSelection(mode=f"MODE_{mode.upper()}", allowed_names=names, is_one=is_one)


class NamedChoice(TypedDict):
    type: Literal["function", "custom"]
    name: str
    namespace: NotRequired[str]


class HostedChoice(TypedDict):
    type: str


class AllowedToolsChoice(TypedDict):
    """A choice among some of the tools."""

    type: Literal["allowed_tools"]
    mode: ToolMode
    tools: list[NamedChoice | HostedChoice]


ToolChoice = ToolMode | NamedChoice | HostedChoice | AllowedToolsChoice


def tool_choice_object(
    choice: tool_pb2.ToolSelection, tools: Sequence[tool_pb2.Tool]
) -> ToolChoice:
    """The tool choice as JSON."""
    types = {tool_name(tool): tool.WhichOneof("tool") or "function" for tool in tools}
    selected = [_selected(name, types.get(name, name)) for name in choice.allowed_names]
    if not selected:
        return TOOL_MODES[choice.mode]
    if choice.is_one:
        return selected[0]
    return {"type": "allowed_tools", "mode": TOOL_MODES[choice.mode], "tools": selected}


def _selected(name: str, kind: str) -> NamedChoice | HostedChoice:
    if kind not in _NAMED_TYPES:
        return {"type": kind}
    client_kind: Literal["function", "custom"] = "custom" if kind == "custom" else "function"
    written: NamedChoice = {"type": client_kind, "name": local_name(name)}
    if namespace := namespace_of(name):
        written["namespace"] = namespace
    return written


def tool_name(tool: tool_pb2.Tool) -> str:
    """The name of a tool in a tool choice; for hosted tools, the type."""
    match tool.WhichOneof("tool"):
        case "function":
            return tool.function.name
        case "custom":
            return tool.custom.name
        case kind:
            return kind or ""


def report_grammars(
    tools: Sequence[tool_pb2.Tool],
    choice: tool_pb2.ToolSelection | None,
    text: TextFormat | None,
) -> None:
    """Report grammars of custom tools that are not enforced: the model may write text instead of a
    call. Raises UnsupportedField in a strict request."""
    is_required = choice is not None and choice.mode == tool_pb2.ToolSelection.MODE_REQUIRED
    has_format = text is not None and text.type != "text"
    for index, tool in enumerate(tools):
        is_enforced = is_required or (has_format and tool.custom.syntax == "regex")
        if tool.custom.syntax and not is_enforced:
            reason = "a grammar of a tool is enforced only if a call is required"
            ignore_parameter(f"tools[{index}].format", reason)


def format_to_proto(text: TextFormat | None) -> tool_pb2.AnswerFormat | None:
    """Convert the output format. Raises MissingField."""
    if text is None:
        return None
    if text.type == "json_schema":
        for field, value in (("name", text.name), ("schema", text.schema_)):
            if value is None:
                raise MissingField(field=f"text.format.{field}")
    return schema_to_proto(text, text.type)


class PlainTextFormat(TypedDict):
    """An output format without a schema."""

    type: Literal["text", "json_object"]


class SchemaTextFormat(TypedDict):
    type: Literal["json_schema"]
    name: str
    description: str | None
    schema: Annotated[dict[str, Any], From("schema_json", lambda text: answer_value(text or "{}"))]
    strict: bool


_schema_format = writer(tool_pb2.AnswerFormat, SchemaTextFormat)


def format_object(answer: tool_pb2.AnswerFormat) -> PlainTextFormat | SchemaTextFormat:
    """The output format as JSON, "text" if it is not set."""
    if answer.kind == tool_pb2.AnswerFormat.KIND_JSON_SCHEMA:
        return _schema_format(answer)
    is_object = answer.kind == tool_pb2.AnswerFormat.KIND_JSON_OBJECT
    return {"type": "json_object" if is_object else "text"}


def _name(tool: NamedTool, path: str) -> str:
    if tool.type in _HOSTED_TYPES:
        return tool.type
    if tool.type not in _NAMED_TYPES:
        raise UnsupportedValue(field=f"{path}.type", value=tool.type)
    if not tool.name:
        raise MissingField(field=f"{path}.name")
    return flat_name(tool.namespace, tool.name)


def _check_supported(mode: str, names: Sequence[str], tools: Sequence[tool_pb2.Tool]) -> None:
    if mode == "required" and not tools:
        raise InvalidField(
            field="tool_choice", problem="it is only allowed when 'tools' are specified"
        )
    known = {tool_name(tool) for tool in tools}
    for name in names:
        if name not in known:
            raise InvalidField(field="tool_choice", problem=f"'{name}' is not among 'tools'")
