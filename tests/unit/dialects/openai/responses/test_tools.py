"""Tools of responses: approval of MCP calls, and unsupported fields."""

from typing import Any

import pytest
from corral.control.v1 import tool_pb2

from dialects.openai.responses.tools import tools_to_proto
from svc_kit.errors import UnsupportedField

ALWAYS = tool_pb2.McpTool.APPROVAL_ALWAYS
NEVER = tool_pb2.McpTool.APPROVAL_NEVER


def named(*names: str) -> dict[str, Any]:
    """Tools by their names."""
    return {"tool_names": list(names)}


@pytest.mark.parametrize(
    ("setting", "approval", "exempt"),
    [
        (None, ALWAYS, []),
        ("always", ALWAYS, []),
        ("never", NEVER, []),
        ({"never": named("read")}, ALWAYS, ["read"]),
        ({"always": named("write")}, NEVER, ["write"]),
        ({"always": named("write"), "never": named("read", "write")}, ALWAYS, ["read"]),
        ({"always": {}}, ALWAYS, []),
        ({"always": named()}, ALWAYS, []),
        ({"never": {}}, ALWAYS, []),
        ({}, ALWAYS, []),
    ],
)
def test_calls_require_approval_by_default(
    setting: object, approval: tool_pb2.McpTool.Approval, exempt: list[str]
) -> None:
    """Also those in both lists; an empty list exempts nothing."""
    [tool] = tools_to_proto([{"type": "mcp", "server_label": "shop", "require_approval": setting}])

    assert (tool.mcp.approval, list(tool.mcp.approval_exempt)) == (approval, exempt)


@pytest.mark.parametrize(
    ("tool", "field"),
    [
        ({"type": "mcp", "server_label": "shop", "server_url": "https://a"}, "server_url"),
        ({"type": "function", "name": "f", "async": True}, "async"),
    ],
)
def test_an_unsupported_field_of_a_tool_is_rejected(tool: dict[str, Any], field: str) -> None:
    """The error has the index of the tool."""
    with pytest.raises(UnsupportedField) as caught:
        tools_to_proto([{"type": "mcp", "server_label": "till"}, tool])

    assert caught.value.field == f"tools[1].{field}"
