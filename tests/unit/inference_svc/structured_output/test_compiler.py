"""From what is asked to a grammar, or to an error that names the place; without child processes."""

import json
from dataclasses import replace
from typing import Any

import pytest

from inference_svc.structured_output.compiler import GrammarCompiler, GrammarVocabulary
from inference_svc.structured_output.spec import (
    MAX_OUTPUT_FORMAT_BYTES,
    MAX_TOOL_SCHEMAS_BYTES,
    CallableTool,
    OutputFormat,
    OutputFormatKind,
    OutputSpec,
    Reasoning,
    ToolCallSpec,
    ToolCallSyntax,
)
from svc_kit.errors import DomainError, GrammarInvalid, SchemaInvalid, TooLong
from svc_kit.sandbox.frames import InlineJobs
from svc_kit.sandbox.jobs import FailureKind, Job, JobFailed

WORDS = GrammarVocabulary(400, {"<|end|>": 300, "[CALLS]": 301}, (300,))
DIGITS = OutputFormat(OutputFormatKind.REGEX, "[0-9]+", "constraint.regex")
WAY = ToolCallSyntax("[CALLS]", ":")
TOOL = CallableTool("f", '{"properties": {"a": {"type": "integer"}}}', True, "tools[0]")


class CountingJobs(InlineJobs):
    """Counts what it is asked."""

    def __init__(self) -> None:
        self.count = 0

    async def run(self, job: Job, payload: Any, *, key: str = "") -> Any:
        """Run a job here."""
        self.count += 1
        return await super().run(job, payload, key=key)


class FailingJobs(InlineJobs):
    """Every child dies."""

    def __init__(self, kind: FailureKind) -> None:
        self.kind = kind

    async def run(self, job: Job, payload: Any, *, key: str = "") -> Any:
        """Fail as a pool does."""
        raise JobFailed(self.kind, "it took longer than 1.5 s")


async def compiled(asked: OutputSpec) -> str:
    return await GrammarCompiler(InlineJobs()).compile(asked, WORDS)


async def refusal(asked: OutputSpec, jobs: InlineJobs | None = None) -> DomainError:
    with pytest.raises(DomainError) as caught:
        await GrammarCompiler(jobs or InlineJobs()).compile(asked, WORDS)
    return caught.value


def a_schema(schema: Any) -> OutputSpec:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return OutputSpec(
        OutputFormat(OutputFormatKind.JSON_SCHEMA, text, "constraint.json_schema"), None, None
    )


FAULTY: dict[str, tuple[Any, str, str]] = {
    "the root": ({"type": "wat"}, "#", "wat"),
    "a property": ({"properties": {"x": {}, "a": {"type": "wat"}}}, "#/properties/a", "wat"),
    "a keyword": ({"properties": {"a": {"not": {}}}}, "#/properties/a", "not"),
    "escapes": ({"properties": {"a/b~c": {"type": 1}}}, "#/properties/a~1b~0c", ""),
    "deep": (
        {"anyOf": [{"type": "null"}, {"type": "array", "items": {"pattern": "("}}]},
        "#/anyOf/1/items",
        "unclosed",
    ),
    "a definition": (
        {"$defs": {"t": {"type": "wat"}}, "properties": {"a": {"$ref": "#/$defs/t"}}},
        "#/$defs/t",
        "wat",
    ),
    "beside a good reference": (
        {"$defs": {"t": {}}, "allOf": [{"$ref": "#/$defs/t"}, {"minimum": "x"}]},
        "#/allOf/1",
        "",
    ),
    "below a good reference": (
        {
            "$defs": {"t": {}},
            "properties": {"a": {"anyOf": [{"$ref": "#/$defs/t"}], "items": {"type": "wat"}}},
        },
        "#/properties/a/items",
        "wat",
    ),
    "a missing reference": (
        {"properties": {"a": {"$ref": "#/$defs/none"}}},
        "#/properties/a",
        "/$defs/none",
    ),
    "a remote reference": (
        {"properties": {"a": {"$ref": "http://198.51.100.7/s"}}},
        "#/properties/a",
        "",
    ),
    "a range without numbers": (
        {"anyOf": [{"type": "integer", "minimum": 3, "maximum": 2}]},
        "#/anyOf/0",
        "",
    ),
    "no object": ("[1]", "#", "object"),
    "no JSON": ('{"a": ', "#", "JSON"),
    "half a character": ('{"const": "\\ud800"}', "#", ""),
    "a switch of the library": ({"x-guidance": {"lenient": True}, "not": {}}, "#", "not"),
    "a circle": ({"$ref": "#"}, "#", "nothing can satisfy it"),
    "too deep": ('{"items":' * 3000 + "{}" + "}" * 3000, "#", ""),
}


@pytest.mark.parametrize("case", FAULTY)
async def test_a_bad_schema_names_the_place(case: str) -> None:
    """SCHEMA_INVALID with the pointer to the deepest subschema that is wrong by itself."""
    schema, pointer, problem = FAULTY[case]
    error = await refusal(a_schema(schema))

    assert isinstance(error, SchemaInvalid)
    assert (error.metadata["field"], error.metadata["pointer"]) == (
        "constraint.json_schema",
        pointer,
    )
    assert problem in error.metadata["problem"]
    assert len(error.metadata["problem"]) <= 300


@pytest.mark.parametrize(
    ("kind", "text", "problem"),
    [
        (OutputFormatKind.REGEX, "a(", "unclosed"),
        (OutputFormatKind.REGEX, "(?=a)b", "look-around"),
        (OutputFormatKind.LARK, "start: A\nB: /b/", "A"),
        (OutputFormatKind.LARK, "", ""),
        (OutputFormatKind.GBNF, "root := 1", ""),
        (OutputFormatKind.GBNF, "root ::= ( ", ""),
        (OutputFormatKind.LARK, "start: <|none|>", "none"),
        (OutputFormatKind.REGEX, r"[^\s\S]", "nothing can satisfy it"),
        (OutputFormatKind.GBNF, "root ::= root", "nothing can satisfy it"),
        (OutputFormatKind.LARK, "start: A\nA: /a/ & /b/", "nothing can satisfy it"),
    ],
)
async def test_a_bad_grammar_says_what_is_wrong(
    kind: OutputFormatKind, text: str, problem: str
) -> None:
    """GRAMMAR_INVALID with the field and the library's words."""
    error = await refusal(OutputSpec(OutputFormat(kind, text, "constraint.x"), None, None))

    assert isinstance(error, GrammarInvalid)
    assert error.field == "constraint.x"
    assert problem in error.metadata["problem"]


async def test_tools_answer_for_their_own_schemas() -> None:
    """The error names the tool; only a strict one is refused for a keyword that is unknown."""
    bad = replace(
        TOOL, schema='{"properties": {"a": {"not": {}}}}', field="tools[1].parameters_json"
    )
    calls = ToolCallSpec((WAY,), (TOOL, bad), required=True, several=True)
    error = await refusal(OutputSpec(None, calls, None))

    assert isinstance(error, SchemaInvalid)
    assert error.metadata["field"] == "tools[1].parameters_json"
    assert error.metadata["pointer"] == "#/properties/a"
    await compiled(OutputSpec(None, replace(calls, tools=(replace(bad, strict=False),)), None))


async def test_markers_that_are_control_tokens_are_named_by_id() -> None:
    """Their text would never match the token."""
    calls = ToolCallSpec((WAY,), (TOOL,), required=True, several=False)
    thought = Reasoning("a[CALLS]b", "<|end|>", is_open=False)
    rules = json.loads(await compiled(OutputSpec(DIGITS, calls, thought)))["grammars"][0][
        "lark_grammar"
    ]

    assert 'call_0: <[301]> "f:" @arguments_0' in rules
    assert 'begun: "a" <[301]> "b" thinking' in rules
    assert "thinking: /(?s:.*)/ <[300]>" in rules


async def test_sizes_are_refused_before_anything_runs() -> None:
    """With the limit in the error."""
    jobs = CountingJobs()
    large = OutputFormat(
        OutputFormatKind.REGEX, "é" * (MAX_OUTPUT_FORMAT_BYTES // 2 + 1), "constraint.regex"
    )
    tools = tuple(replace(TOOL, schema=" " * (MAX_TOOL_SCHEMAS_BYTES // 4 + 1)) for _ in range(4))
    by_form = await refusal(OutputSpec(large, None, None), jobs)
    by_tools = await refusal(OutputSpec(None, ToolCallSpec((WAY,), tools, True, True), None), jobs)

    assert isinstance(by_form, TooLong)
    assert by_form.metadata["limit"] == str(MAX_OUTPUT_FORMAT_BYTES)
    assert isinstance(by_tools, TooLong)
    assert (by_tools.metadata["field"], by_tools.metadata["limit"]) == (
        "tools",
        str(MAX_TOOL_SCHEMAS_BYTES),
    )
    assert jobs.count == 0


async def test_what_passed_is_remembered() -> None:
    """One job for each form and vocabulary; refusals are looked at again."""
    jobs = CountingJobs()
    compiler = GrammarCompiler(jobs)
    asked = OutputSpec(DIGITS, None, None)
    first = await compiler.compile(asked, WORDS)

    assert await compiler.compile(asked, WORDS) == first
    assert jobs.count == 1
    await compiler.compile(asked, replace(WORDS, size=500))
    assert jobs.count == 2


@pytest.mark.parametrize("kind", [FailureKind.DEADLINE, FailureKind.CRASHED, FailureKind.MEMORY])
async def test_a_form_that_costs_a_child_is_a_bad_form(kind: FailureKind) -> None:
    """The caller's error, not ours: it would cost a child each time."""
    schema = await refusal(a_schema({}), FailingJobs(kind))
    grammar = await refusal(OutputSpec(DIGITS, None, None), FailingJobs(kind))

    assert isinstance(schema, SchemaInvalid)
    assert isinstance(grammar, GrammarInvalid)
    assert "longer than 1.5 s" in schema.metadata["problem"]
