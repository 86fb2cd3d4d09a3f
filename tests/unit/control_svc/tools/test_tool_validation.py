"""Validation of tools, tool choices and filters: what cannot be carried out is refused."""

import json
import math
from dataclasses import replace

import pytest
from corral.control.v1 import response_pb2, run_service_pb2
from corral.control.v1 import tool_pb2 as pb
from google.protobuf.message import Message

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
from control_svc.tools.tool_validation import check_choice, check_enforceable, check_tools
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
    OutOfRange,
    TooLong,
    UnsupportedValue,
)
from svc_kit.rpc.field_limits import check_limits

LARK = CustomTool(name="sql", syntax="lark", definition='start: "x"')
DATE = CustomTool(name="date", syntax="regex", definition="[0-9]{4}|never")
REQUIRED = ToolChoice(mode=ChoiceMode.REQUIRED)
KINDS = pb.Tool.DESCRIPTOR.fields
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


@pytest.mark.parametrize(
    ("valid", "invalid", "field"),
    [  # Codex has a description of 6,000 characters; each store is searched
        (pb.FunctionTool(description="x" * 65_536), "x" * 65_537, "description"),
        (pb.CustomTool(description="x" * 65_536), "x" * 65_537, "custom.description"),
        (pb.FunctionTool(parameters_json="x" * 131_072), "\u00e9" * 65_537, "parameters"),
        (pb.CustomTool(definition="x" * 131_072), "x" * 131_073, "format.definition"),
        (pb.FileSearchTool(vector_store_ids=["vs_1"] * 16), ["vs_1"] * 17, "vector_store_ids"),
        (pb.FileSearchTool(max_results=50), 0, "max_num_results"),
        (pb.FileSearchTool(score_threshold=1), math.nan, "ranking_options.score_threshold"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 99 else "",
)
def test_a_tool_is_limited(valid: Message, invalid: object, field: str) -> None:
    """The error names the field as the Assistants API does."""
    [kind] = [each.name for each in KINDS if each.message_type is valid.DESCRIPTOR]
    [(changed, _)] = valid.ListFields()
    tool = pb.Tool()
    getattr(tool, kind).CopyFrom(valid)
    check_limits(tool, "tools[0].")
    getattr(tool, kind).CopyFrom(type(valid)(**{changed.name: invalid}))
    with pytest.raises((TooLong, OutOfRange)) as caught:
        check_limits(tool, "tools[0].")

    shown = field if kind == "custom" else f"{kind}.{field}"
    assert caught.value.field == f"tools[0].{shown}"


def test_the_schema_of_a_format_is_limited() -> None:
    """Errors name it as the API does in which it came."""
    limit, kind = 131_072, pb.AnswerFormat.KIND_JSON_SCHEMA
    for format_field, request in (
        ("text.format", response_pb2.ResponseSettings()),
        ("response_format", run_service_pb2.RunOptions(assistant_id="asst_1")),
    ):
        target = getattr(request, format_field.removeprefix("text."))
        target.MergeFrom(pb.AnswerFormat(kind=kind, schema_json="x" * limit))
        check_limits(request)
        target.schema_json += "x"
        with pytest.raises(TooLong) as caught:
            check_limits(request)

        assert caught.value.field == f"{format_field}.json_schema.schema"


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
