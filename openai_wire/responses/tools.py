"""Tools of responses, between JSON and protos; functions are flat."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import orjson
from corral.control.v1 import tool_pb2
from pydantic import Field, Tag

from openai_wire.shared.fields import BY_KIND, WireModel, validated, without_neutral
from svc_kit.errors import InvalidField, InvalidType, MissingField, UnsupportedValue

Json = dict[str, Any]
Name = Annotated[str, Field(min_length=1, max_length=128)]

_ALWAYS: Final = tool_pb2.McpTool.APPROVAL_ALWAYS
_NEVER: Final = tool_pb2.McpTool.APPROVAL_NEVER
_FUNCTION_NEUTRAL: Final[dict[str, tuple[object, ...]]] = {
    "async": (False,),
    "defer_loading": (False,),
    "output_schema": (),
    "allowed_callers": ([], ["direct"]),
}
_MCP_NEUTRAL: Final[dict[str, tuple[object, ...]]] = {
    "server_url": (),
    "connector_id": (),
    "authorization": (),
    "headers": ({},),
    "defer_loading": (False,),
    "allowed_callers": ([], ["direct"]),
}


class FunctionToolModel(WireModel):
    """A function of the client's."""

    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class CustomFormat(WireModel):
    """The form of a custom tool's input."""

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


class CustomToolModel(WireModel):
    """A tool of the client's that takes free text."""

    type: Literal["custom"]
    name: Name
    description: str | None = None
    format: CustomFormat | None = None


class RankingOptions(WireModel):
    """How a search weighs what it finds."""

    ranker: str | None = None
    score_threshold: Annotated[float, Field(ge=0, le=1)] | None = None


class FileSearchToolModel(WireModel):
    """The server searches vector stores."""

    type: Literal["file_search"]
    vector_store_ids: list[str]
    max_num_results: Annotated[int, Field(ge=1, le=50)] | None = None
    ranking_options: RankingOptions | None = None
    filters: dict[str, Any] | None = None


class ToolNames(WireModel):
    """Tools of a remote server by name."""

    tool_names: list[str] | None = None


Names = Annotated[
    Annotated[list[str], Tag("~array")] | Annotated[ToolNames, Tag("~object")], BY_KIND
]


class Approvals(WireModel):
    """Which calls wait for a person's word."""

    always: ToolNames | None = None
    never: ToolNames | None = None


class McpToolModel(WireModel):
    """The tools of a remote server that the operator has named."""

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


def tools_from(tools: Sequence[Mapping[str, Any]], path: str = "tools") -> list[tool_pb2.Tool]:
    """Typed tools. Raises DomainErrors; UnsupportedValue names a tool that Corral has not."""
    return [_tool(tool, f"{path}[{index}]") for index, tool in enumerate(tools)]


def tool_object(tool: tool_pb2.Tool) -> Json:
    """A tool with every key that a strict reader wants."""
    match tool.WhichOneof("tool"):
        case "custom":
            return _custom_object(tool.custom)
        case "file_search":
            return _search_object(tool.file_search)
        case "mcp":
            return _mcp_object(tool.mcp)
        case _:
            function = tool.function
            return {
                "type": "function",
                "name": function.name,
                "description": function.description or None,
                "parameters": orjson.loads(function.parameters_json or "null"),
                "strict": function.strict if function.HasField("strict") else None,
            }


def _tool(given: Mapping[str, Any], path: str) -> tool_pb2.Tool:
    kind = given.get("type")
    match kind:
        case "function":
            return tool_pb2.Tool(function=_function(given, path))
        case "custom":
            return tool_pb2.Tool(custom=_custom(given, path))
        case "file_search":
            return tool_pb2.Tool(file_search=_search(given, path))
        case "mcp":
            return tool_pb2.Tool(mcp=_mcp(given, path))
        case None:
            raise MissingField(field=f"{path}.type")
        case str():
            raise UnsupportedValue(field=f"{path}.type", value=kind)
        case _:
            raise InvalidType(field=f"{path}.type", expected="a string")


def _function(given: Mapping[str, Any], path: str) -> tool_pb2.FunctionTool:
    if "function" in given:
        raise InvalidField(field=f"{path}.function", problem="here a function has no object around")
    model = validated(FunctionToolModel, without_neutral(given, _FUNCTION_NEUTRAL, path), path)
    return tool_pb2.FunctionTool(
        name=model.name,
        description=model.description or "",
        parameters_json="" if model.parameters is None else orjson.dumps(model.parameters).decode(),
        strict=model.strict,
    )


def _custom(given: Mapping[str, Any], path: str) -> tool_pb2.CustomTool:
    model = validated(CustomToolModel, without_neutral(given, _FUNCTION_NEUTRAL, path), path)
    tool = tool_pb2.CustomTool(name=model.name, description=model.description or "")
    if model.format is not None and model.format.type == "grammar":
        for name in ("syntax", "definition"):
            value = getattr(model.format, name)
            if not value:
                raise MissingField(field=f"{path}.format.{name}")
            setattr(tool, name, value)
    return tool


def _search(given: Mapping[str, Any], path: str) -> tool_pb2.FileSearchTool:
    model = validated(FileSearchToolModel, without_neutral(given, {}, path), path)
    ranking = model.ranking_options or RankingOptions()
    return tool_pb2.FileSearchTool(
        vector_store_ids=model.vector_store_ids,
        max_results=model.max_num_results,
        ranker=ranking.ranker or "",
        score_threshold=ranking.score_threshold,
        filters_json="" if model.filters is None else orjson.dumps(model.filters).decode(),
    )


def _mcp(given: Mapping[str, Any], path: str) -> tool_pb2.McpTool:
    model = validated(McpToolModel, without_neutral(given, _MCP_NEUTRAL, path), path)
    allowed = model.allowed_tools
    names = allowed.tool_names if isinstance(allowed, ToolNames) else allowed
    tool = tool_pb2.McpTool(
        server_label=model.server_label,
        description=model.server_description or "",
        limits_tools=names is not None,
        allowed_tools=names or (),
    )
    request = model.require_approval or "always"
    if isinstance(request, str):
        tool.approval = _NEVER if request == "never" else _ALWAYS
        return tool
    # What neither list names waits for a person's word, unless only waiting ones are named; what
    # both name waits.
    always, never = (set(_named(names)) for names in (request.always, request.never))
    is_never = bool(always) and request.never is None
    tool.approval = _NEVER if is_never else _ALWAYS
    tool.approval_exempt.extend(sorted(always if is_never else never - always))
    return tool


def _named(tools: ToolNames | None) -> Sequence[str]:
    return () if tools is None else tools.tool_names or ()


def _custom_object(tool: tool_pb2.CustomTool) -> Json:
    form: Json = {"type": "text"}
    if tool.syntax:
        form = {"type": "grammar", "syntax": tool.syntax, "definition": tool.definition}
    return {
        "type": "custom",
        "name": tool.name,
        "description": tool.description or None,
        "format": form,
    }


def _search_object(tool: tool_pb2.FileSearchTool) -> Json:
    return {
        "type": "file_search",
        "vector_store_ids": list(tool.vector_store_ids),
        "max_num_results": tool.max_results if tool.HasField("max_results") else 20,
        "ranking_options": {
            "ranker": tool.ranker or "auto",
            "score_threshold": tool.score_threshold,
        },
        "filters": orjson.loads(tool.filters_json or "null"),
    }


def _mcp_object(tool: tool_pb2.McpTool) -> Json:
    is_never = tool.approval == tool_pb2.McpTool.APPROVAL_NEVER
    approval: object = "never" if is_never else "always"
    if tool.approval_exempt:
        exempt = {"tool_names": list(tool.approval_exempt)}
        approval = {"always" if is_never else "never": exempt}
    return {
        "type": "mcp",
        "server_label": tool.server_label,
        "server_description": tool.description or None,
        "server_url": None,
        "headers": None,
        "allowed_tools": list(tool.allowed_tools) if tool.limits_tools else None,
        "require_approval": approval,
    }
