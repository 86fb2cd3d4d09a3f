"""Tools of responses as protos. Unlike in chat completions, functions are flat."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal

from corral.control.v1 import tool_pb2
from pydantic import Field, Tag

from dialects.openai.chat.policy import FUNCTIONS
from dialects.openai.responses.namespaces import HOSTED_TOOLS, flat_name
from dialects.openai.shared.tools import FileSearchSettings, function_to_proto, search_to_proto
from dialects.shared.fields import BY_KIND, WireModel, check_type, validate
from dialects.shared.parameters import Ignored, Policy, Refused, ignore_parameter
from svc_kit.errors import InvalidField, MissingField, UnsupportedValue

Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^.]*$")]
"""Dots separate namespaces."""

_ALWAYS: Final = tool_pb2.McpTool.APPROVAL_ALWAYS
_NEVER: Final = tool_pb2.McpTool.APPROVAL_NEVER


class FunctionToolModel(WireModel):
    policy: ClassVar[Policy] = FUNCTIONS

    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamespaceModel(WireModel):
    """Functions and custom tools with a common name."""

    policy: ClassVar[Policy] = {
        "description": Ignored("the model reads the descriptions of the tools in it", ("",)),
    }

    type: Literal["namespace"]
    name: Name
    tools: list[dict[str, Any]] = Field(max_length=128)


class CustomFormat(WireModel):
    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


class CustomToolModel(WireModel):
    """A tool of the client that takes free text."""

    policy: ClassVar[Policy] = FUNCTIONS

    type: Literal["custom"]
    name: Name
    description: str | None = None
    format: CustomFormat | None = None


class FileSearchToolModel(FileSearchSettings):
    type: Literal["file_search"]
    vector_store_ids: list[str]


class ToolNames(WireModel):
    """Tools of an MCP server by name."""

    tool_names: list[str] | None = None


Names = Annotated[
    Annotated[list[str], Tag("~array")] | Annotated[ToolNames, Tag("~object")], BY_KIND
]


class Approvals(WireModel):
    """Which calls require approval."""

    always: ToolNames | None = None
    never: ToolNames | None = None


class McpToolModel(WireModel):
    """The tools of an MCP server that the operator has configured."""

    policy: ClassVar[Policy] = {
        "server_url": Refused("the operator configures MCP servers"),
        "connector_id": Refused("there are no connectors"),
        "authorization": Refused("the operator configures MCP servers"),
        "headers": Refused("the operator configures MCP servers", ({},)),
        "defer_loading": Ignored("the model reads all tools", (False,)),
        "allowed_callers": Refused("only the model calls tools", ([], ["direct"])),
    }

    type: Literal["mcp"]
    server_label: Name
    server_description: str | None = None
    allowed_tools: Names | None = None
    require_approval: (
        Annotated[
            Annotated[Literal["always", "never"], Tag("~string")]
            | Annotated[Approvals, Tag("~object")],
            BY_KIND,
        ]
        | None
    ) = None


def tools_to_proto(tools: Sequence[Mapping[str, Any]]) -> list[tool_pb2.Tool]:
    """Convert tools. Raises DomainErrors; UnsupportedValue for an unsupported type."""
    return [
        proto for index, tool in enumerate(tools) for proto in _flatten(tool, f"tools[{index}]")
    ]


def _flatten(fields: Mapping[str, Any], path: str) -> Iterator[tool_pb2.Tool]:
    """The tools of a namespace, or one tool; none for a hosted tool of other servers."""
    kind = fields.get("type")
    if isinstance(kind, str) and kind.startswith(HOSTED_TOOLS):
        ignore_parameter(f"tools.{kind}", "the tool is not supported here")
    elif kind == "namespace":
        space = validate(NamespaceModel, fields, path)
        for index, inner in enumerate(space.tools):
            proto = _tool(inner, f"{path}.tools[{index}]")
            named = proto.custom if proto.HasField("custom") else proto.function
            if not named.name:
                raise UnsupportedValue(field=f"{path}.tools[{index}].type", value=inner["type"])
            named.name = flat_name(space.name, named.name)
            yield proto
    else:
        yield _tool(fields, path)


def _tool(fields: Mapping[str, Any], path: str) -> tool_pb2.Tool:
    kind = check_type(fields, path, _CONVERTERS)
    return tool_pb2.Tool(**{kind: _CONVERTERS[kind](fields, path)})


def _function(fields: Mapping[str, Any], path: str) -> tool_pb2.FunctionTool:
    if "function" in fields:
        problem = "unlike in chat completions, its fields belong to the tool itself"
        raise InvalidField(field=f"{path}.function", problem=problem)
    model = validate(FunctionToolModel, fields, path)
    return function_to_proto(model)


def _custom(fields: Mapping[str, Any], path: str) -> tool_pb2.CustomTool:
    model = validate(CustomToolModel, fields, path)
    tool = tool_pb2.CustomTool(name=model.name, description=model.description or "")
    if model.format is not None and model.format.type == "grammar":
        for name in ("syntax", "definition"):
            value = getattr(model.format, name)
            if not value:
                raise MissingField(field=f"{path}.format.{name}")
            setattr(tool, name, value)
    return tool


def _search(fields: Mapping[str, Any], path: str) -> tool_pb2.FileSearchTool:
    model = validate(FileSearchToolModel, fields, path)
    return search_to_proto(model, model.vector_store_ids)


def _mcp(fields: Mapping[str, Any], path: str) -> tool_pb2.McpTool:
    model = validate(McpToolModel, fields, path)
    allowed = model.allowed_tools
    names = allowed.tool_names if isinstance(allowed, ToolNames) else allowed
    tool = tool_pb2.McpTool(
        server_label=model.server_label,
        description=model.server_description or "",
        limits_tools=names is not None,
        allowed_tools=names or (),
    )
    approvals = model.require_approval or "always"
    if isinstance(approvals, str):
        tool.approval = _NEVER if approvals == "never" else _ALWAYS
        return tool
    # Tools in neither list require approval, unless there is only a list `always`. Tools in both
    # lists require approval.
    always, never = (_tool_names(tools) for tools in (approvals.always, approvals.never))
    is_never = bool(always) and approvals.never is None
    tool.approval = _NEVER if is_never else _ALWAYS
    tool.approval_exempt.extend(sorted(always if is_never else never - always))
    return tool


_CONVERTERS: Final[Mapping[str, Callable[[Mapping[str, Any], str], Any]]] = {
    "function": _function,
    "custom": _custom,
    "file_search": _search,
    "mcp": _mcp,
}
"""Converters by type, which is also the name of the field of Tool."""


def _tool_names(tools: ToolNames | None) -> set[str]:
    return set() if tools is None else set(tools.tool_names or ())
