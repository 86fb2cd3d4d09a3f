"""Attributes of the spans of hosted tool calls, as in OpenTelemetry's GenAI conventions."""

from typing import Final

import orjson

from control_svc.items.model import Content, FileSearchCall, Item, McpCall
from svc_kit.tracing.span import Attributes

_FILE_SEARCH: Final = "file_search"


def tool_name(call: Item) -> str:
    content = call.content
    return content.name if isinstance(content, McpCall) else _FILE_SEARCH


def tool_attributes(call: Item) -> Attributes:
    return {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": tool_name(call),
        "gen_ai.tool.type": "extension" if isinstance(call.content, McpCall) else "datastore",
        "gen_ai.tool.call.id": call.id,
    }


def result_attributes(result: Content, *, with_content: bool) -> Attributes:
    """The attributes of a result. A failed call has one too."""
    attributes: dict[str, str] = {}
    if isinstance(result, McpCall | FileSearchCall) and result.problem:
        attributes["error.type"] = "tool_error"
    if with_content:
        attributes |= _content(result)
    return attributes


def _content(result: Content) -> dict[str, str]:
    if isinstance(result, McpCall):
        texts = (result.arguments, result.output or result.problem)
    elif isinstance(result, FileSearchCall):
        found = [{"file_id": each.file_id, "score": each.score} for each in result.results]
        texts = (orjson.dumps({"queries": result.queries}).decode(), orjson.dumps(found).decode())
    else:
        return {}
    return {"gen_ai.tool.call.arguments": texts[0], "gen_ai.tool.call.result": texts[1]}
