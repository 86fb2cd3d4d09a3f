"""What remote tools are called here, and which calls are allowed."""

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


def listed(label: str, names: list[str]) -> McpListTools:
    """What a server offers."""
    tools = (McpToolDescription(name=n, description="", input_schema_json="{}") for n in names)
    return McpListTools(server_label=label, tools=tuple(tools))


@given(TOOL_NAMES, TOOL_NAMES, st.sets(st.sampled_from(["a", "b", "a_b", "s_a"])))
def test_every_tool_has_a_name_of_its_own(
    ones: list[str], others: list[str], mine: set[str]
) -> None:
    """One that models can write, beside the client's functions and the search of files."""
    tools: list[Tool] = [FunctionTool(name=name) for name in sorted(mine)]
    tools += [FileSearchTool(), McpTool(server_label="s"), McpTool(server_label="t")]
    names = function_names(tools, {"s": listed("s", ones), "t": listed("t", others)})

    assert len(names) == len(set(ones)) + len(set(others))
    assert len(set(names.values())) == len(names)
    assert not {*names.values()} & {*mine, "file_search"}
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in names.values())


def test_a_name_that_is_free_is_kept() -> None:
    """So later prompts show the call as the model wrote it."""
    names = function_names([McpTool(server_label="s")], {"s": listed("s", ["find", "a.b"])})

    assert names == {("s", "find"): "find", ("s", "a.b"): "a_b"}


def test_exempt_tools_have_the_other_rule() -> None:
    """Whichever the rule is."""
    always = McpTool(server_label="s", approval_exempt=("read",))
    never = McpTool(server_label="s", require_approval="never", approval_exempt=("write",))

    assert [needs_approval(always, name) for name in ("read", "write")] == [False, True]
    assert [needs_approval(never, name) for name in ("read", "write")] == [False, True]


def test_an_allowed_call_is_taken_up_once() -> None:
    """A response that goes on after a crash finds the call that it has begun."""
    request = item("mcpr_1", McpApprovalRequest(server_label="s", name="f", arguments="{}"))
    word = item("mcpa_1", McpApprovalResponse(approval_request_id="mcpr_1", approve=True))
    no = item("mcpa_2", McpApprovalResponse(approval_request_id="mcpr_1", approve=False))
    [call] = approved_calls([request, word], [word])

    assert call == McpCall(server_label="s", name="f", arguments="{}", approval_request_id="mcpr_1")
    assert approved_calls([request, word, item("mcp_1", call)], [word, item("mcp_1", call)]) == []
    assert approved_calls([request, no], [no]) == []


def item(item_id: str, content: Content) -> Item:
    """A whole item."""
    return Item(
        id=item_id,
        status=ItemStatus.COMPLETED,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        content=content,
    )
