"""Tools, tool choices, output formats and resources are unchanged by a proto round trip."""

from hypothesis import given
from hypothesis import strategies as st

from control_svc.tools.model import (
    CustomTool,
    FileSearchTool,
    FunctionTool,
    McpTool,
    ResponseFormat,
    Tool,
    ToolChoice,
    ToolResources,
)
from control_svc.tools.proto import (
    choice_from_pb,
    choice_to_pb,
    format_from_pb,
    format_to_pb,
    resources_from_pb,
    resources_to_pb,
    tools_from_pb,
    tools_to_pb,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
TOOLS: st.SearchStrategy[Tool] = st.one_of(
    st.builds(FunctionTool, strict=st.none() | st.booleans(), name=TEXTS, parameters_json=TEXTS),
    st.builds(CustomTool, name=TEXTS, syntax=TEXTS, definition=TEXTS),
    st.builds(
        FileSearchTool,
        max_results=st.none() | st.integers(-(2**31), 2**31 - 1),
        score_threshold=st.none() | st.floats(0, 1),
        vector_store_ids=st.lists(TEXTS, max_size=2).map(tuple),
    ),
    st.builds(
        McpTool,
        server_label=TEXTS,
        allowed_tools=st.none() | st.lists(TEXTS, max_size=2).map(tuple),
        require_approval=st.sampled_from(["always", "never"]),
        approval_exempt=st.lists(TEXTS, max_size=2).map(tuple),
    ),
)


@given(st.lists(TOOLS, max_size=4).map(tuple))
def test_tools_round_trip(tools: tuple[Tool, ...]) -> None:
    """Every kind of tool, with optional fields set and unset."""
    assert tools_from_pb(tools_to_pb(tools)) == tools


@given(st.builds(ToolChoice, allowed_names=st.lists(TEXTS, max_size=3).map(tuple)))
def test_a_tool_choice_round_trips(choice: ToolChoice) -> None:
    """With its mode and allowed names."""
    assert choice_from_pb(choice_to_pb(choice)) == choice


@given(st.builds(ResponseFormat, name=TEXTS, strict=st.none() | st.booleans()))
def test_an_output_format_round_trips(output_format: ResponseFormat) -> None:
    """With its name, schema and strictness."""
    assert format_from_pb(format_to_pb(output_format)) == output_format


@given(st.lists(TEXTS.filter(bool), max_size=2).map(tuple))
def test_resources_round_trip(stores: tuple[str, ...]) -> None:
    """Resources without stores are unset on the wire."""
    resources = ToolResources(vector_store_ids=stores)
    message = resources_to_pb(resources)

    assert (ToolResources() if message is None else resources_from_pb(message)) == resources
