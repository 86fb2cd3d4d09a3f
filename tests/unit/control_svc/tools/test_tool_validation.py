"""What a tool asks for is done or refused, never passed over."""

import json

import pytest

from control_svc.agent.turn import turn_tool
from control_svc.inference.turns import ChoiceMode
from control_svc.tools.model import (
    CustomTool,
    FileSearchTool,
    FormatKind,
    FunctionTool,
    ResponseFormat,
    ToolChoice,
)
from control_svc.tools.tool_validation import (
    MAX_SEARCHED,
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

DATE = CustomTool(name="date", syntax="regex", definition="[0-9]{4}|never")
REQUIRED = ToolChoice(mode=ChoiceMode.REQUIRED)
JSON = ResponseFormat(kind=FormatKind.JSON_OBJECT)


def test_a_grammar_becomes_a_pattern_of_the_whole_text() -> None:
    """A pattern of JSON Schema may be found anywhere; a grammar is all that there is."""
    schema = json.loads(turn_tool(DATE).parameters)
    free = json.loads(turn_tool(CustomTool(name="free")).parameters)

    assert schema["properties"]["input"]["pattern"] == "^(?:[0-9]{4}|never)$"
    assert free["properties"]["input"] == {"type": "string"}


def test_a_grammar_that_calls_cannot_be_held_to_is_refused() -> None:
    """Within a JSON string there is no lark."""
    lark = CustomTool(name="sql", syntax="lark", definition='start: "a"')
    with pytest.raises(UnsupportedValue) as error:
        check_tools((lark,))

    assert error.value.field == "tools[0].format.syntax"
    with pytest.raises(MissingField):
        check_tools((CustomTool(name="date", syntax="regex"),))


@pytest.mark.parametrize("choice", [REQUIRED, ToolChoice(allowed_names=("other",))])
def test_a_choice_without_its_tools_is_refused(choice: ToolChoice) -> None:
    """A call that cannot be made is no choice."""
    check_choice(ToolChoice(), ())
    with pytest.raises(InvalidField) as error:
        check_choice(choice, ())

    assert error.value.field == "tool_choice"


@pytest.mark.parametrize("choice", [None, ToolChoice()])
def test_a_grammar_is_refused_where_the_model_is_free(choice: ToolChoice | None) -> None:
    """A model that may answer as well writes its calls as it likes."""
    with pytest.raises(InvalidField) as error:
        check_enforceable((DATE,), choice, None)

    assert error.value.field == "tool_choice"


def test_a_grammar_is_refused_where_later_turns_are_free() -> None:
    """Behind a search the choice is the model's again."""
    with pytest.raises(InvalidField) as error:
        check_enforceable((FileSearchTool(), DATE), REQUIRED, None)

    assert error.value.field == "tools[1].format"


def test_a_grammar_is_taken_where_it_is_followed() -> None:
    """A call is required, there is none, or it is told from an answer with a form."""
    check_enforceable((DATE, FunctionTool(name="f")), REQUIRED, None)
    check_enforceable((DATE,), ToolChoice(mode=ChoiceMode.NONE), None)
    check_enforceable((DATE, FileSearchTool()), None, JSON)


def test_a_filter_is_read_as_it_is_written() -> None:
    """Conditions, and conditions of conditions."""
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


def deep(depth: int) -> object:
    """Conditions that stand in each other."""
    inner: object = {"type": "eq", "key": "a", "value": 1}
    for _ in range(depth):
        inner = {"type": "or", "filters": [inner]}
    return inner


@pytest.mark.parametrize(
    ("written", "error", "field"),
    [
        ([], InvalidType, "tools[0].file_search.filters"),
        ({"type": "like"}, InvalidField, "tools[0].file_search.filters.type"),
        ({"type": ["eq"]}, InvalidField, "tools[0].file_search.filters.type"),
        ({"type": "and", "filters": []}, MissingField, "tools[0].file_search.filters"),
        ({"type": "and"}, InvalidType, "tools[0].file_search.filters.filters"),
        ({"type": "eq", "value": 1}, InvalidType, "tools[0].file_search.filters.key"),
        ({"type": "eq", "key": "a"}, InvalidType, "tools[0].file_search.filters.value"),
        (
            {"type": "eq", "key": "a", "value": [1]},
            InvalidField,
            "tools[0].file_search.filters.value",
        ),
        (
            {"type": "in", "key": "a", "value": 1},
            InvalidField,
            "tools[0].file_search.filters.value",
        ),
        (deep(MAX_DEPTH), InvalidField, "tools[0].file_search.filters"),
        (deep(200), InvalidField, "tools[0].file_search.filters"),
    ],
)
def test_a_filter_that_means_nothing_is_refused(
    written: object, error: type[DomainError], field: str
) -> None:
    """By the name of its place."""
    tool = FileSearchTool(filters_json=json.dumps(written))
    with pytest.raises(error) as caught:
        check_tools((tool,))

    assert caught.value.field == field


def test_a_filter_that_is_no_json_is_refused() -> None:
    """Whatever its text is."""
    with pytest.raises(InvalidJson):
        check_tools((FileSearchTool(filters_json="{"),))


def test_one_tool_searches_so_many_stores() -> None:
    """Each is read and searched whole."""
    check_tools([FileSearchTool(vector_store_ids=("vs_1",) * MAX_SEARCHED)])
    with pytest.raises(TooLong) as caught:
        check_tools([FileSearchTool(vector_store_ids=("vs_1",) * (MAX_SEARCHED + 1))])

    assert caught.value.field == "tools[0].file_search.vector_store_ids"
