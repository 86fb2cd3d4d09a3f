"""Tools of responses as objects, with every key that strict clients require."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any, Final, Literal, NotRequired

import orjson
from corral.control.v1 import tool_pb2
from pydantic import Field
from typing_extensions import TypeAliasType, TypedDict

from dialects.openai.responses.choices import tool_name
from dialects.openai.responses.namespaces import local_name, namespace_of
from dialects.shared.json_body import answer_value
from dialects.shared.wire import From, declared, writers

_DEFAULT_RESULTS: Final = 20


class ResponseFunctionTool(TypedDict):
    type: Literal["function"]
    name: Annotated[str, From("function.name")]
    description: Annotated[str | None, From("function.description")]
    parameters: Annotated[dict[str, Any] | None, From("function.parameters_json", answer_value)]
    strict: Annotated[bool | None, From("function.strict")]


class TextInput(TypedDict):
    """The input format of a custom tool that takes any text."""

    type: Literal["text"]


class GrammarInput(TypedDict):
    """The input format of a custom tool with a grammar."""

    type: Literal["grammar"]
    syntax: str
    definition: str


def _input_format(tool: tool_pb2.CustomTool) -> TextInput | GrammarInput:
    if not tool.syntax:
        return {"type": "text"}
    return {"type": "grammar", "syntax": tool.syntax, "definition": tool.definition}


class ResponseCustomTool(TypedDict):
    """A tool of the client that takes free text."""

    type: Literal["custom"]
    name: Annotated[str, From("custom.name")]
    description: Annotated[str | None, From("custom.description")]
    format: Annotated[TextInput | GrammarInput, From("custom", _input_format)]


class SearchRanking(TypedDict):
    ranker: Annotated[str, From(write=lambda ranker: ranker or "auto")]
    score_threshold: float


def _max_results(tool: tool_pb2.FileSearchTool) -> int:
    return tool.max_results if tool.HasField("max_results") else _DEFAULT_RESULTS


class ResponseFileSearchTool(TypedDict):
    type: Literal["file_search"]
    vector_store_ids: Annotated[list[str], From("file_search.vector_store_ids")]
    max_num_results: Annotated[int, From("file_search", _max_results)]
    ranking_options: Annotated[SearchRanking, From("file_search")]
    filters: Annotated[dict[str, Any] | None, From("file_search.filters_json", orjson.loads)]


class ToolNameList(TypedDict):
    """Tools of an MCP server by name."""

    tool_names: list[str]


class ApprovalExceptions(TypedDict):
    """Which calls require approval, unlike others."""

    always: NotRequired[ToolNameList]
    never: NotRequired[ToolNameList]


Approval = Literal["always", "never"] | ApprovalExceptions


def _approval(tool: tool_pb2.McpTool) -> Approval:
    is_never = tool.approval == tool_pb2.McpTool.APPROVAL_NEVER
    if not tool.approval_exempt:
        return "never" if is_never else "always"
    exempt: ToolNameList = {"tool_names": list(tool.approval_exempt)}
    return {"always": exempt} if is_never else {"never": exempt}


def _allowed_tools(tool: tool_pb2.McpTool) -> list[str] | None:
    return list(tool.allowed_tools) if tool.limits_tools else None


class ResponseMcpTool(TypedDict):
    type: Literal["mcp"]
    server_label: Annotated[str, From("mcp.server_label")]
    server_description: Annotated[str | None, From("mcp.description")]
    server_url: Literal[None]
    headers: Literal[None]
    allowed_tools: Annotated[list[str] | None, From("mcp", _allowed_tools)]
    require_approval: Annotated[Approval, From("mcp", _approval)]


ClientTool = ResponseFunctionTool | ResponseCustomTool


class NamespaceTool(TypedDict):
    """Functions and custom tools with a common name."""

    type: Literal["namespace"]
    name: str
    description: Literal[""]
    tools: list[ClientTool]


ResponseTool = TypeAliasType(
    "ResponseTool",
    Annotated[ClientTool | ResponseFileSearchTool | ResponseMcpTool, Field(discriminator="type")],
)
_WRITERS: Final[Mapping[str, Callable[[tool_pb2.Tool], ResponseTool]]] = writers(
    tool_pb2.Tool, ResponseTool
)


@declared
def tool_object(tool: tool_pb2.Tool) -> ResponseTool:
    """A tool as JSON."""
    return _WRITERS[tool.WhichOneof("tool") or "function"](tool)


def tool_objects(tools: Sequence[tool_pb2.Tool]) -> list[ResponseTool | NamespaceTool]:
    """Tools as clients send them: neighbours of one namespace are one tool."""
    written: list[ResponseTool | NamespaceTool] = []
    for namespace, members in groupby(tools, key=lambda tool: namespace_of(tool_name(tool))):
        objects = [tool_object(tool) for tool in members]
        if namespace is None:
            written += objects
        else:
            written.append(_namespace_tool(namespace, objects))
    return written


def _namespace_tool(namespace: str, tools: Sequence[ResponseTool]) -> NamespaceTool:
    inner: list[ClientTool] = []
    for tool in tools:
        if tool["type"] == "function" or tool["type"] == "custom":
            tool["name"] = local_name(tool["name"])
            inner.append(tool)
    return {"type": "namespace", "name": namespace, "description": "", "tools": inner}
