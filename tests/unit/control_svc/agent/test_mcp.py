"""Names of MCP tools in prompts, and approvals of calls."""

import re
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from control_svc.agent.mcp import approved_calls, function_names, needs_approval
from control_svc.items.model import (
    Content,
    Item,
    ItemStatus,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    McpListTools,
    McpToolDescription,
)
from control_svc.tools.model import FileSearchTool, FunctionTool, McpTool, Tool

TOOL_NAMES = st.lists(st.text("ab_.é ", max_size=70), max_size=6)


def list_tools(label: str, names: list[str]) -> McpListTools:
    tools = (McpToolDescription(name=n, description="", input_schema_json="{}") for n in names)
    return McpListTools(server_label=label, tools=tuple(tools))


@given(TOOL_NAMES, TOOL_NAMES, st.sets(st.sampled_from(["a", "b", "a_b", "s_a"])))
def test_every_tool_has_a_unique_name(ones: list[str], others: list[str], mine: set[str]) -> None:
    """A valid function name that differs from client functions and file_search."""
    tools: list[Tool] = [FunctionTool(name=name) for name in sorted(mine)]
    tools += [FileSearchTool(), McpTool(server_label="s"), McpTool(server_label="t")]
    names = function_names(tools, {"s": list_tools("s", ones), "t": list_tools("t", others)})

    assert len(names) == len(set(ones)) + len(set(others))
    assert len(set(names.values())) == len(names)
    assert not {*names.values()} & {*mine, "file_search"}
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in names.values())


def test_a_unique_valid_name_is_not_changed() -> None:
    """Other names get valid characters."""
    names = function_names([McpTool(server_label="s")], {"s": list_tools("s", ["find", "a.b"])})

    assert names == {("s", "find"): "find", ("s", "a.b"): "a_b"}


def test_exempt_tools_have_the_opposite_rule() -> None:
    always = McpTool(server_label="s", approval_exempt=("read",))
    never = McpTool(server_label="s", require_approval="never", approval_exempt=("write",))

    assert [needs_approval(always, name) for name in ("read", "write")] == [False, True]
    assert [needs_approval(never, name) for name in ("read", "write")] == [False, True]


def test_an_approved_call_is_started_once() -> None:
    """A response that is resumed after a crash finds the call that it has started."""
    request = item("mcpr_1", McpApprovalRequest(server_label="s", name="f", arguments="{}"))
    yes = item("mcpa_1", McpApprovalResponse(approval_request_id="mcpr_1", approve=True))
    no = item("mcpa_2", McpApprovalResponse(approval_request_id="mcpr_1", approve=False))
    [call] = approved_calls([request, yes], [yes])

    assert call == McpCall(server_label="s", name="f", arguments="{}", approval_request_id="mcpr_1")
    assert approved_calls([request, yes, item("mcp_1", call)], [yes, item("mcp_1", call)]) == []
    assert approved_calls([request, no], [no]) == []


def item(item_id: str, content: Content) -> Item:
    return Item(
        id=item_id,
        status=ItemStatus.COMPLETED,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        content=content,
    )
