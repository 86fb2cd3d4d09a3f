"""Tools, choices, forms and resources: the same after a way over protos."""

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
def test_tools_come_back_as_they_were(tools: tuple[Tool, ...]) -> None:
    """Nothing of a tool is lost on the wire, and nothing appears."""
    assert tools_from_pb(tools_to_pb(tools)) == tools


@given(st.builds(ToolChoice, allowed_names=st.lists(TEXTS, max_size=3).map(tuple)))
def test_a_choice_comes_back_as_it_was(choice: ToolChoice) -> None:
    """Nothing of a choice is lost on the wire."""
    assert choice_from_pb(choice_to_pb(choice)) == choice


@given(st.builds(ResponseFormat, name=TEXTS, strict=st.none() | st.booleans()))
def test_a_form_comes_back_as_it_was(answer: ResponseFormat) -> None:
    """Nothing of a form is lost on the wire."""
    assert format_from_pb(format_to_pb(answer)) == answer


@given(st.lists(TEXTS.filter(bool), max_size=2).map(tuple))
def test_resources_come_back_as_they_were(stores: tuple[str, ...]) -> None:
    """Resources without stores are unset on the wire, which means the same."""
    resources = ToolResources(vector_store_ids=stores)
    sent = resources_to_pb(resources)

    assert (ToolResources() if sent is None else resources_from_pb(sent)) == resources
