"""Tools of responses: whose calls wait for a person's word."""

from typing import Any

import pytest
from corral.control.v1 import tool_pb2

from openai_wire.responses.tools import tools_from

ALWAYS = tool_pb2.McpTool.APPROVAL_ALWAYS
NEVER = tool_pb2.McpTool.APPROVAL_NEVER


def named(*names: str) -> dict[str, Any]:
    """Tools by their names."""
    return {"tool_names": list(names)}


@pytest.mark.parametrize(
    ("asked", "approval", "exempt"),
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
def test_in_doubt_a_call_waits_for_a_word(
    asked: object, approval: tool_pb2.McpTool.Approval, exempt: list[str]
) -> None:
    """A tool that both lists name waits, and a list without names allows nothing."""
    [tool] = tools_from([{"type": "mcp", "server_label": "shop", "require_approval": asked}])

    assert (tool.mcp.approval, list(tool.mcp.approval_exempt)) == (approval, exempt)
