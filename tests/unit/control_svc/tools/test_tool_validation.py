"""Validation of tools, tool choices and filters: what cannot be carried out is refused."""

import json
from dataclasses import replace

import pytest

from control_svc.agent.turn import turn_tool
from control_svc.inference.turns import ChoiceMode
from control_svc.tools.model import (
    CustomTool,
    FileSearchTool,
    FormatKind,
    FunctionTool,
    ResponseFormat,
    Tool,
    ToolChoice,
)
from control_svc.tools.tool_validation import (
    MAX_SEARCHED_STORES,
    check_choice,
    check_enforceable,
    check_tools,
)
from control_svc.vector_stores.filters import (
    MAX_DEPTH,
    Comparator,
    Comparison,
    Compound,
    Junction,
    filter_from_json,
)
from svc_kit.errors import (
    DomainError,
    InvalidField,
    InvalidJson,
    InvalidType,
    MissingField,
    TooLong,
    UnsupportedValue,
)

LARK = CustomTool(name="sql", syntax="lark", definition='start: "x"')
DATE = CustomTool(name="date", syntax="regex", definition="[0-9]{4}|never")
REQUIRED = ToolChoice(mode=ChoiceMode.REQUIRED)
JSON = ResponseFormat(kind=FormatKind.JSON_OBJECT)


def test_a_grammar_becomes_an_anchored_pattern() -> None:
    """A JSON Schema pattern matches anywhere in a text; a grammar describes the whole text."""
    schema = json.loads(turn_tool(DATE, enforced=True).parameters)
    free = json.loads(turn_tool(CustomTool(name="free"), enforced=True).parameters)

    assert schema["properties"]["input"]["pattern"] == "^(?:[0-9]{4}|never)$"
    assert free["properties"]["input"] == {"type": "string"}


@pytest.mark.parametrize(
    ("tool", "error", "field"),
    [
        (CustomTool(name="sql", syntax="gbnf", definition="start"), UnsupportedValue, "syntax"),
        (CustomTool(name="sql", syntax="lark"), MissingField, "definition"),
        (CustomTool(name="date", syntax="regex"), MissingField, "definition"),
    ],
)
def test_an_unsupported_grammar_is_refused(
    tool: CustomTool, error: type[DomainError], field: str
) -> None:
    with pytest.raises(error) as refused:
        check_tools((tool,))

    assert refused.value.field == f"tools[0].format.{field}"


@pytest.mark.parametrize("kind", [FunctionTool, CustomTool])
def test_descriptions_are_as_long_as_agents_write_them(
    kind: type[FunctionTool | CustomTool],
) -> None:
    """Codex has one of 6,000 characters; the limit is 65,536."""
    check_tools((kind(name="spawn_agent", description="x" * 65_536),))
    with pytest.raises(TooLong) as error:
        check_tools((kind(name="spawn_agent", description="x" * 65_537),))

    assert error.value.field.endswith(".description")


@pytest.mark.parametrize("choice", [REQUIRED, ToolChoice(allowed_names=("other",))])
def test_a_choice_of_a_missing_tool_is_refused(choice: ToolChoice) -> None:
    """A choice that requires a call, or names a tool, needs that tool."""
    check_choice(ToolChoice(), ())
    with pytest.raises(InvalidField) as error:
        check_choice(choice, ())

    assert error.value.field == "tool_choice"


@pytest.mark.parametrize(
    ("tools", "choice", "field"),
    [
        ((LARK,), REQUIRED, "tools[0].format.syntax"),
        ((DATE, LARK), replace(REQUIRED, allowed_names=("sql",)), "tools[1].format.syntax"),
        ((FileSearchTool(), DATE), REQUIRED, "tools[1].format"),
    ],
)
def test_a_grammar_that_cannot_be_enforced_is_refused(
    tools: tuple[Tool, ...], choice: ToolChoice | None, field: str
) -> None:
    """Lark is not enforced in JSON strings, and a call is unconstrained after a search."""
    with pytest.raises((InvalidField, UnsupportedValue)) as error:
        check_enforceable(tools, choice, None)

    assert error.value.field == field


def test_a_grammar_that_can_be_enforced_is_accepted() -> None:
    """With a required call, without calls, or with an output format other than text."""
    check_enforceable((DATE, FunctionTool(name="f")), REQUIRED, None)
    check_enforceable((DATE,), ToolChoice(mode=ChoiceMode.NONE), None)
    check_enforceable((DATE, FileSearchTool()), None, JSON)
    check_enforceable((DATE, LARK), replace(REQUIRED, allowed_names=("date",)), None)


@pytest.mark.parametrize("choice", [None, ToolChoice(), ToolChoice(allowed_names=("sql",))])
def test_a_grammar_that_no_choice_requires_is_only_read(choice: ToolChoice | None) -> None:
    """Codex offers such tools with every request; the gateway names them as ignored."""
    check_tools((DATE, LARK))
    check_enforceable((DATE, LARK, FileSearchTool()), choice, None)
    for tool in (DATE, LARK):
        text = json.loads(turn_tool(tool, enforced=False).parameters)["properties"]["input"]
        assert text["description"].endswith(tool.definition)
        assert "pattern" not in text


def test_a_filter_is_parsed() -> None:
    """Comparisons, and compounds of them; an empty text is no filter."""
    text = json.dumps(
        {
            "type": "and",
            "filters": [
                {"type": "eq", "key": "lang", "value": "de"},
                {"type": "in", "key": "year", "value": [2024, 2025]},
            ],
        }
    )

    assert filter_from_json("") is None
    assert filter_from_json(text) == Compound(
        Junction.AND,
        (
            Comparison("lang", Comparator.EQ, "de"),
            Comparison("year", Comparator.IN, (2024, 2025)),
        ),
    )


def nested_filter(depth: int) -> object:
    """A comparison within `depth` compounds."""
    inner: object = {"type": "eq", "key": "a", "value": 1}
    for _ in range(depth):
        inner = {"type": "or", "filters": [inner]}
    return inner


@pytest.mark.parametrize(
    ("filters", "error", "path"),
    [
        ([], InvalidType, ""),
        ({"type": "like"}, InvalidField, ".type"),
        ({"type": ["eq"]}, InvalidField, ".type"),
        ({"type": "and", "filters": []}, MissingField, ""),
        ({"type": "and"}, InvalidType, ".filters"),
        ({"type": "eq", "value": 1}, InvalidType, ".key"),
        ({"type": "eq", "key": "a"}, InvalidType, ".value"),
        ({"type": "eq", "key": "a", "value": [1]}, InvalidField, ".value"),
        ({"type": "in", "key": "a", "value": 1}, InvalidField, ".value"),
        (nested_filter(MAX_DEPTH), InvalidField, ""),
        (nested_filter(200), InvalidField, ""),
    ],
)
def test_an_invalid_filter_is_refused(filters: object, error: type[DomainError], path: str) -> None:
    """The error names the path within the filter."""
    tool = FileSearchTool(filters_json=json.dumps(filters))
    with pytest.raises(error) as caught:
        check_tools((tool,))

    assert caught.value.field == f"tools[0].file_search.filters{path}"


def test_a_filter_that_is_not_json_is_refused() -> None:
    with pytest.raises(InvalidJson):
        check_tools((FileSearchTool(filters_json="{"),))


def test_the_stores_of_a_search_tool_are_limited() -> None:
    """Each of them is searched."""
    check_tools([FileSearchTool(vector_store_ids=("vs_1",) * MAX_SEARCHED_STORES)])
    with pytest.raises(TooLong) as caught:
        check_tools([FileSearchTool(vector_store_ids=("vs_1",) * (MAX_SEARCHED_STORES + 1))])

    assert caught.value.field == "tools[0].file_search.vector_store_ids"
