"""Tools of responses: approval of MCP calls, and unsupported fields."""

from typing import Any

import pytest
from corral.control.v1 import tool_pb2

from dialects.openai.responses.choices import ChoiceModel, tool_choice_object, tool_choice_to_proto
from dialects.openai.responses.input_items import item_to_proto, items_to_proto
from dialects.openai.responses.output_items import item_object
from dialects.openai.responses.requests import new_response, parse_response
from dialects.openai.responses.tool_objects import tool_objects
from dialects.openai.responses.tools import tools_to_proto
from dialects.shared.parameters import ParameterReport, parameter_report
from svc_kit.errors import InvalidField, UnsupportedField, UnsupportedValue

PATCH = {
    "type": "custom",
    "name": "patch",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'},
}
DIAL = {
    "type": "custom",
    "name": "dial",
    "format": {"type": "grammar", "syntax": "regex", "definition": "[0-9]+"},
}
NAMED_PATCH = {"type": "custom", "name": "patch"}
ALWAYS = tool_pb2.McpTool.APPROVAL_ALWAYS
NEVER = tool_pb2.McpTool.APPROVAL_NEVER


def named(*names: str) -> dict[str, Any]:
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


def function(name: str, **fields: Any) -> dict[str, Any]:
    """A function with every key that strict clients require."""
    keys = {"description": None, "parameters": None, "strict": None}
    return {"type": "function", "name": name, **keys, **fields}


def test_tools_of_a_namespace_have_its_name() -> None:
    """They are functions for the model, and a namespace again for the client."""
    custom = {"type": "custom", "name": "sh", "description": None, "format": {"type": "text"}}
    space = {"type": "namespace", "name": "mcp__shop", "description": ""}
    sent = [function("f"), space | {"tools": [function("f"), custom]}, function("g")]
    tools = tools_to_proto(sent)
    choice = tool_choice_to_proto(
        ChoiceModel(type="function", name="f", namespace="mcp__shop"), tools
    )
    assert choice is not None

    names = [tool.function.name or tool.custom.name for tool in tools]
    assert names == ["f", "mcp__shop.f", "mcp__shop.sh", "g"]
    assert tool_objects(tools) == sent
    assert list(choice.allowed_names) == ["mcp__shop.f"]
    assert tool_choice_object(choice, tools) == {
        "type": "function",
        "name": "f",
        "namespace": "mcp__shop",
    }


@pytest.mark.parametrize("kind", ["function_call", "custom_tool_call"])
def test_a_call_of_a_namespace_is_sent_and_played_back(kind: str) -> None:
    """With its own name and that of the namespace."""
    text = {"input": "ls"} if kind == "custom_tool_call" else {"arguments": "{}"}
    call = {"type": kind, "id": "x", "call_id": "c", "name": "f", "namespace": "shop", **text}
    item = item_to_proto(call, "input[0]")

    assert getattr(item, kind).name == "shop.f"
    assert item_object(item) == call | {"status": "completed"}


def test_only_namespaces_have_dots() -> None:
    """And only functions and custom tools are in them."""
    with pytest.raises(InvalidField) as caught:
        tools_to_proto([function("a.b")])
    assert caught.value.field == "tools[0].name"
    search = {"type": "file_search", "vector_store_ids": ["vs_1"]}
    with pytest.raises(UnsupportedValue) as unsupported:
        tools_to_proto([{"type": "namespace", "name": "n", "tools": [search]}])
    assert unsupported.value.field == "tools[0].tools[0].type"


def test_hosted_tools_of_other_servers_are_ignored() -> None:
    """Offers and earlier calls of them are reported by type."""
    report = ParameterReport()
    token = parameter_report.set(report)
    try:
        tools = tools_to_proto(
            [{"type": "web_search", "external_web_access": False}, function("f")]
        )
        items = items_to_proto(
            [{"role": "user", "content": "hi"}, {"type": "web_search_call", "action": {}}], "input"
        )
    finally:
        parameter_report.reset(token)

    assert [tool.function.name for tool in tools] == ["f"]
    assert len(items) == 1
    assert report.names == ("tools.web_search", "input.web_search_call")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, True),
        ({"tool_choice": "auto"}, True),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [NAMED_PATCH]}}, True),
        ({"tool_choice": "required"}, False),
        ({"tool_choice": NAMED_PATCH}, False),
        ({"text": {"format": {"type": "json_object"}}}, True),
        ({"text": {"format": {"type": "json_object"}}, "tools": [DIAL]}, False),
        ({"tools": [DIAL]}, True),
    ],
)
def test_a_grammar_that_is_only_read_is_named(fields: dict[str, Any], *, named: bool) -> None:
    """Codex offers one with every request; it is enforced where a call is required, and one of a
    regular expression also beside an output format."""
    report = ParameterReport()
    token = parameter_report.set(report)
    new_response(parse_response({"model": "m", "input": "hi", "tools": [PATCH]} | fields))
    parameter_report.reset(token)

    assert report.names == (("tools[].format",) if named else ())
