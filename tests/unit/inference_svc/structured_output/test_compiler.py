"""Compilation of output specifications to grammars, without child processes."""

import cProfile
import json
from dataclasses import replace
from pstats import Stats
from typing import Any

import pytest

from inference_svc.structured_output.compile_job import MAX_CHECKED_CHARACTERS
from inference_svc.structured_output.compiler import (
    CompiledGrammar,
    GrammarCompiler,
    GrammarVocabulary,
)
from inference_svc.structured_output.plain_schema import plain_schema
from inference_svc.structured_output.spec import (
    MAX_OUTPUT_FORMAT_BYTES,
    MAX_TOOL_SCHEMAS_BYTES,
    ArgumentSyntax,
    CallableTool,
    OutputFormat,
    OutputFormatKind,
    OutputSpec,
    Reasoning,
    ToolCallSpec,
    ToolCallSyntax,
)
from svc_kit.errors import DomainError, GrammarInvalid, SchemaInvalid, TooLong
from svc_kit.sandbox.jobs import FailureKind, Job, JobFailed
from tests.support.sandbox_jobs import InlineJobs

VOCABULARY = GrammarVocabulary(400, {"<|end|>": 300, "[CALLS]": 301}, (300,))
SYNTAX = ToolCallSyntax("[CALLS]", ":")
TOOL = CallableTool("f", '{"properties": {"a": {"type": "integer"}}}', True, "tools[0]")


def make_spec(kind: OutputFormatKind, text: str) -> OutputSpec:
    return OutputSpec(OutputFormat(kind, text, f"constraint.{kind}"), None, None)


DIGITS = make_spec(OutputFormatKind.REGEX, "[0-9]+")


class CountingJobs(InlineJobs):
    """Counts the jobs, and fails them if it has a `failure`."""

    def __init__(self, failure: JobFailed | None = None) -> None:
        self.count = 0
        self._failure = failure

    async def run(self, job: Job, payload: Any, *, key: str = "") -> Any:
        self.count += 1
        if self._failure:
            raise self._failure
        return await super().run(job, payload, key=key)


async def compile_spec(spec: OutputSpec, jobs: InlineJobs | None = None) -> str:
    return (await GrammarCompiler(jobs or InlineJobs()).compile(spec, VOCABULARY)).text


async def compile_error(spec: OutputSpec, jobs: InlineJobs | None = None) -> DomainError:
    with pytest.raises(DomainError) as raised:
        await compile_spec(spec, jobs)
    return raised.value


INVALID_SCHEMAS: dict[str, tuple[Any, str, str]] = {
    "the root": ({"type": "wat"}, "#", "wat"),
    "a property": ({"properties": {"x": {}, "a": {"type": "wat"}}}, "#/properties/a", "wat"),
    "a keyword": ({"properties": {"a": {"not": {}}}}, "#/properties/a", "not"),
    "escapes": ({"properties": {"a/b~c": {"type": 1}}}, "#/properties/a~1b~0c", ""),
    "a nested subschema": (
        {"anyOf": [{"type": "null"}, {"type": "array", "items": {"pattern": "("}}]},
        "#/anyOf/1/items",
        "unclosed",
    ),
    "a backslash at the end": (
        {"properties": {"a": {"pattern": "a\\"}}},
        "#/properties/a",
        "incomplete escape",
    ),
    "a definition": (
        {"$defs": {"t": {"type": "wat"}}, "properties": {"a": {"$ref": "#/$defs/t"}}},
        "#/$defs/t",
        "wat",
    ),
    "beside a valid reference": (
        {"$defs": {"t": {}}, "allOf": [{"$ref": "#/$defs/t"}, {"minimum": "x"}]},
        "#/allOf/1",
        "",
    ),
    "below a valid reference": (
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
    "a long number below a keyword": (
        {"properties": {"a": {"patternProperties": {"^a": {"const": 9007199254740993}}}}},
        "#/properties/a",
        "patternProperties",
    ),
    "a multiple that is no decimal": (
        {"properties": {"a": {"type": "number", "multipleOf": 0.0700000000000000001}}},
        "#/properties/a",
        "multipleOf",
    ),
    "a negative multiple": (
        {"properties": {"a": {"type": "integer", "multipleOf": -5}}},
        "#/properties/a",
        "multipleOf",
    ),
    "a negative decimal": ({"type": "number", "multipleOf": -0.01}, "#", "multipleOf"),
    "a number of 500 digits": ('{"maximum": 1e500}', "#", "400 digits"),
    "not an object": ("[1]", "#", "object"),
    "not JSON": ('{"a": ', "#", "JSON"),
    "a lone surrogate": ('{"const": "\\ud800"}', "#", ""),
    "an option of llguidance": ({"x-guidance": {"lenient": True}, "not": {}}, "#", "not"),
    "a circular reference": ({"$ref": "#"}, "#", "nothing can satisfy it"),
    "too deep": ('{"items":' * 3000 + "{}" + "}" * 3000, "#", ""),
}


@pytest.mark.parametrize("case", INVALID_SCHEMAS)
async def test_an_invalid_schema_is_refused_with_a_pointer(case: str) -> None:
    """To the deepest subschema that is invalid by itself."""
    schema, pointer, problem = INVALID_SCHEMAS[case]
    text = schema if isinstance(schema, str) else json.dumps(schema)
    error = await compile_error(make_spec(OutputFormatKind.JSON_SCHEMA, text))

    assert isinstance(error, SchemaInvalid)
    assert error.metadata["field"] == "constraint.json_schema"
    assert error.metadata["pointer"] == pointer
    assert problem in error.metadata["problem"]
    assert len(error.metadata["problem"]) <= 300


@pytest.mark.parametrize(
    ("kind", "text", "problem"),
    [
        (OutputFormatKind.REGEX, "a(", "unclosed"),
        (OutputFormatKind.REGEX, "(?=a)b", "look-around"),
        (OutputFormatKind.REGEX, "a\\", "incomplete escape"),
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
async def test_an_invalid_grammar_is_refused_with_the_reason(
    kind: OutputFormatKind, text: str, problem: str
) -> None:
    """With the field and llguidance's message."""
    error = await compile_error(make_spec(kind, text))

    assert isinstance(error, GrammarInvalid)
    assert error.field == f"constraint.{kind}"
    assert problem in error.metadata["problem"]
    assert kind is not OutputFormatKind.REGEX or "start:" not in error.metadata["problem"]


async def test_an_invalid_tool_schema_is_an_error_of_that_tool() -> None:
    """The pointer tells where in its schema."""
    schema = '{"properties": {"a": {"not": {}}}}'
    unsupported = replace(TOOL, schema=schema, field="tools[1].parameters_json")
    calls = ToolCallSpec((SYNTAX,), (TOOL, unsupported), required=True, several=True)
    error = await compile_error(OutputSpec(None, calls, None))

    assert isinstance(error, SchemaInvalid)
    assert error.metadata["field"] == "tools[1].parameters_json"
    assert error.metadata["pointer"] == "#/properties/a"


@pytest.mark.parametrize(
    ("schema", "is_refused", "is_free"),
    [
        ('{"properties": {"a": {"type": "integer"}}}', False, False),
        ('{"properties": {"a": {"uniqueItems": true}, "b": {"type": "integer"}}}', True, False),
        ('{"type": "wat"}', True, True),
        ('{"type": "string"}', True, True),
        ("[]", True, True),
        ("{", True, True),
        (f'{{"description": "{"x" * MAX_TOOL_SCHEMAS_BYTES}"}}', True, True),
    ],
    ids=["valid", "keyword", "type", "no object", "an array", "no JSON", "too long"],
)
async def test_a_schema_that_cannot_be_enforced_is_an_error_only_of_a_strict_tool(
    schema: str, is_refused: bool, is_free: bool
) -> None:
    """Otherwise it is named: what can be enforced of it is, and failing that, any object is."""
    tool = replace(TOOL, name="g", schema=schema, strict=False, field="tools[1].parameters_json")
    calls = ToolCallSpec((SYNTAX,), (TOOL, tool), required=True, several=True)
    spec = OutputSpec(None, calls, None)
    compiled = await GrammarCompiler(InlineJobs()).compile(spec, VOCABULARY)
    _, *grammars = json.loads(compiled.text)["grammars"]
    types = [grammar["json_schema"].get("type") for grammar in grammars]

    assert compiled.ignored == (("tools[1].parameters_json",) if is_refused else ())
    assert "integer" in types
    assert ("object" in types) is is_free
    if is_refused:
        strict = replace(calls, tools=(TOOL, replace(tool, strict=True)))
        error = await compile_error(OutputSpec(None, strict, None))
        assert error.metadata["field"] in ("tools[1].parameters_json", "tools")


@pytest.mark.parametrize(
    ("num_tools", "members", "names"),
    [
        (1, ["~1/~0"], ["tools[0].parameters_json.properties.~1/~0"]),
        (
            1,
            ["a", "b" * 1000],
            ["tools[0].parameters_json", "tools[0].parameters_json.properties.a"],
        ),
        (9, list("abcdefgh"), [f"tools[{n}].parameters_json" for n in range(9)]),
    ],
)
async def test_names_of_what_is_not_enforced_are_bounded(
    num_tools: int, members: list[str], names: list[str]
) -> None:
    """A schema stands for members that are many or have long names; others have their own names."""
    schema = json.dumps({"properties": {name: {"type": "wat"} for name in members}})
    tools = tuple(
        replace(
            TOOL, name=f"g{n}", schema=schema, strict=False, field=f"tools[{n}].parameters_json"
        )
        for n in range(num_tools)
    )
    calls = ToolCallSpec((SYNTAX,), tools, required=True, several=True)
    compiled = await GrammarCompiler(InlineJobs()).compile(
        OutputSpec(None, calls, None), VOCABULARY
    )

    assert sorted(compiled.ignored) == names


TAGS = ToolCallSyntax("[CALLS]", ":", arguments=ArgumentSyntax("<", ">", "</>"))
OTHER = "?"
"""Stands for what is no schema."""
BAD = [
    ('{"pattern": "(?=x)y"}', ""),
    ('{"type": "wat"}', ""),
    ('{"$ref": "#/$defs/missing"}', ""),
    ('{"type": "array", "items": {"type": "string", "pattern": "(?<!x)y"}}', ".items"),
    ('{"anyOf": [{"type": "integer"}, {"pattern": "(?=x)y"}]}', ".anyOf.1"),
]


@pytest.mark.parametrize(("bad", "place"), BAD)
@pytest.mark.parametrize("syntax", [SYNTAX, TAGS])
async def test_a_member_that_cannot_be_enforced_frees_only_itself(
    bad: str, place: str, syntax: ToolCallSyntax
) -> None:
    """It is any JSON value and named, with its place where the grammar's compiler finds it; the
    members beside it stay enforced."""
    good = '{"enum": [1234567890]}'
    schema = f'{{"properties": {{"a": {bad}, "b": {good}, "c/d": {bad}}}, "required": ["b"]}}'
    tool = replace(TOOL, schema=schema, strict=False, field="tools[1].parameters_json")
    calls = ToolCallSpec((syntax,), (TOOL, tool), required=True, several=True)
    compiled = await GrammarCompiler(InlineJobs()).compile(
        OutputSpec(None, calls, None), VOCABULARY
    )
    error = await compile_error(
        OutputSpec(None, replace(calls, tools=(TOOL, replace(tool, strict=True))), None)
    )

    names = [f"tools[1].parameters_json.properties.{key}{place}" for key in ("a", "c/d")]
    if syntax is TAGS and "pattern" not in bad:
        assert compiled.ignored == ("tools[1].parameters_json",)
    else:
        assert list(compiled.ignored) == names
        assert error.metadata["pointer"] == "#/properties/a" + place.replace(".", "/")
    assert "1234567890" in compiled.text
    assert error.metadata["field"] == "tools[1].parameters_json"


@pytest.mark.parametrize("syntax", [SYNTAX, TAGS])
@pytest.mark.parametrize("other", [None, 7, [1], "x"])
@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"properties": {"a": OTHER}}, "/properties/a"),
        ({"properties": {"a": {"anyOf": [{"type": "null"}, OTHER]}}}, "/properties/a/anyOf/1"),
        ({"properties": {"a": {"prefixItems": [OTHER]}}}, "/properties/a/prefixItems/0"),
        ({"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"properties": {"y": OTHER}}}},
         "/$defs/x/properties/y"),
    ],
    ids=["property", "anyOf", "prefixItems", "reference"],
)  # fmt: skip
async def test_what_is_in_place_of_a_schema_is_refused_with_a_pointer(
    schema: Any, pointer: str, other: Any, syntax: ToolCallSyntax
) -> None:
    """A schema is an object or a boolean. A tool that is not strict has any JSON value there, and
    is named. Definitions that nothing refers to are harmless."""
    text = json.dumps(schema).replace(json.dumps(OTHER), json.dumps(other))
    tool = replace(TOOL, schema=text, strict=True, field="tools[0].parameters_json")
    calls = ToolCallSpec((syntax,), (tool,), required=True, several=False)
    loose = replace(calls, tools=(replace(tool, strict=False),))
    unused = replace(calls, tools=(replace(tool, schema=json.dumps({"$defs": {"x": other}})),))
    specs = (make_spec(OutputFormatKind.JSON_SCHEMA, text), OutputSpec(None, calls, None))
    errors = [await compile_error(spec) for spec in specs]
    compiled = [
        await GrammarCompiler(InlineJobs()).compile(OutputSpec(None, each, None), VOCABULARY)
        for each in (loose, unused)
    ]

    for error in errors:
        assert error.metadata["pointer"] == f"#{pointer}"
        assert "a schema must be an object or a boolean" in error.metadata["problem"]
    place = pointer.replace("/", ".")
    assert [each.ignored for each in compiled] == [(f"tools[0].parameters_json{place}",), ()]


@pytest.mark.parametrize("syntax", [SYNTAX, TAGS])
async def test_a_schema_that_no_finite_value_satisfies_is_found_before_generation(
    syntax: ToolCallSyntax,
) -> None:
    """A loose tool gets any object and is named, a strict one is refused; so is a format."""
    schema = '{"properties": {"a": {"$ref": "#/properties/a"}}, "required": ["a"]}'
    tool = replace(TOOL, schema=schema, strict=False, field="tools[0].parameters_json")
    calls = ToolCallSpec((syntax,), (tool, replace(TOOL, name="g")), required=True, several=True)
    compiled = await GrammarCompiler(InlineJobs()).compile(
        OutputSpec(None, calls, None), VOCABULARY
    )
    error = await compile_error(
        OutputSpec(None, replace(calls, tools=(replace(tool, strict=True),)), None)
    )

    assert compiled.ignored == ("tools[0].parameters_json",)
    assert error.metadata["field"] == "tools[0].parameters_json"
    assert "nothing can satisfy it" in error.message


def loose_calls(*schemas: str) -> ToolCallSpec:
    """Calls of tools t0, t1, … that are not strict."""
    tools = (
        CallableTool(f"t{at}", each, strict=False, field=f"tools[{at}]")
        for at, each in enumerate(schemas)
    )
    return ToolCallSpec((SYNTAX,), tuple(tools), required=True, several=True)


async def compile_calls(*schemas: str) -> CompiledGrammar:
    spec = OutputSpec(None, loose_calls(*schemas), None)
    return await GrammarCompiler(InlineJobs()).compile(spec, VOCABULARY)


LOOK_AHEAD = '{"pattern": "(?=x)y"}'


GOOD = '"b": {"enum": [77]}'


@pytest.mark.parametrize(
    ("members", "freed"),
    [
        (f'"": {LOOK_AHEAD}', ["properties."]),
        (f'"": {{"items": {LOOK_AHEAD}}}', ["properties..items"]),
        (f'"a": {{"$ref": "#/$defs/x"}}, "c": {LOOK_AHEAD}', ["$defs.y", "properties.c"]),
        (f'"a": {{"$ref": "#/properties/b"}}, "c": {LOOK_AHEAD}', ["properties.c"]),
        ('"a": {"$ref": "#/components/x"}', ["properties.a"]),
        (
            f'"a": {{"type": "wat", "properties": {{"x": {LOOK_AHEAD}}}}}',
            ["properties.a", "properties.a.properties.x"],
        ),
    ],
    ids=["no name", "no name inside", "definition", "outside", "unknown", "twice"],
)
async def test_the_invalid_parts_of_a_schema_are_found(members: str, freed: list[str]) -> None:
    """Whatever the names of members are, and however parts refer to each other; what refers to an
    invalid part stays enforced."""
    invalid = LOOK_AHEAD if "$defs" in members else "{}"
    definitions = f'"x": {{"items": {{"$ref": "#/$defs/y"}}}}, "y": {invalid}'
    compiled = await compile_calls(
        f'{{"properties": {{{members}, {GOOD}}}, "$defs": {{{definitions}}}}}'
    )

    assert list(compiled.ignored) == [f"tools[0].{each}" for each in freed]
    assert "77" in compiled.text


async def test_many_tools_with_an_invalid_member_each_keep_the_others() -> None:
    """Equal members of all of them are compiled once."""
    members = ", ".join(f'"m{at}": {{"type": "string"}}' for at in range(20))
    schemas = [
        f'{{"properties": {{{members}, "id": {{"enum": [{1000 + at}]}}, "bad": {LOOK_AHEAD}}}}}'
        for at in range(64)
    ]
    compiled = await compile_calls(*schemas)

    assert set(compiled.ignored) == {f"tools[{at}].properties.bad" for at in range(64)}
    assert all(str(1000 + at) in compiled.text for at in range(64))


@pytest.mark.parametrize(
    "keyword", [{"uniqueItems": True}, {"oneOf": [{"type": "array"}, {"items": {}}]}]
)
async def test_a_keyword_that_is_not_enforced_costs_one_more_compilation(keyword: Any) -> None:
    """That of the tool which has it, to name it; not one of each tool."""
    odd = json.dumps({"properties": {"a": {"type": "array", **keyword}}})
    with cProfile.Profile() as profile:
        compiled = await compile_calls(*[TOOL.schema] * 5, odd, *[TOOL.schema] * 58)
    calls = Stats(profile).get_stats_profile().func_profiles

    assert compiled.ignored == ("tools[5]",)
    assert calls["build_matcher"].ncalls == "2"


async def test_what_is_compiled_to_find_invalid_parts_is_bounded_for_a_request() -> None:
    """The tools behind the bound may get any object, as one with too many invalid parts."""
    num_members = MAX_CHECKED_CHARACTERS // 400
    schemas = []
    for tool in range(8):
        names = ", ".join(
            f'"m{at}": {{"enum": ["{tool}-{at}-{"x" * 64}"]}}' for at in range(num_members)
        )
        schemas.append(f'{{"properties": {{{names}, "bad": {{"pattern": "(?={tool})y"}}}}}}')
    many = ", ".join(f'"m{at}": {LOOK_AHEAD}' for at in range(17))
    compiled = await compile_calls(f'{{"properties": {{{many}}}}}', *schemas)

    assert {"tools[0]", "tools[1].properties.bad", "tools[8]"} <= {*compiled.ignored}


async def test_a_schema_that_fails_its_job_is_ignored_unless_its_tool_is_strict() -> None:
    """The tools are then offered with any object as arguments."""

    class FailingJobs(CountingJobs):
        async def run(self, job: Job, payload: Any, *, key: str = "") -> Any:
            if any("heavy" in tool["schema"] for tool in payload["asked"]["calls"]["tools"]):
                raise JobFailed(FailureKind.MEMORY, "it needed too much memory")
            return await super().run(job, payload, key=key)

    tool = replace(TOOL, schema='{"title": "heavy"}', strict=False)
    calls = ToolCallSpec((SYNTAX,), (tool,), required=True, several=True)
    compiled = await GrammarCompiler(FailingJobs()).compile(
        OutputSpec(None, calls, None), VOCABULARY
    )

    assert (compiled.ignored, "heavy" in compiled.text) == (("tools[0]",), False)


async def test_markers_that_are_control_tokens_are_matched_by_id() -> None:
    """Their text does not match the token."""
    calls = ToolCallSpec((SYNTAX,), (TOOL,), required=True, several=False)
    reasoning = Reasoning("a[CALLS]b", "<|end|>", is_open=False)
    grammar = json.loads(await compile_spec(OutputSpec(DIGITS.form, calls, reasoning)))
    rules = grammar["grammars"][0]["lark_grammar"]

    assert 'call_0: <[301]> "f:" "{" argument' in rules
    assert 'begun: "a" <[301]> "b" thinking' in rules
    assert "thinking: /(?s:.*)/ <[300]>" in rules


LARGE_TOOLS = (replace(TOOL, schema=" " * (MAX_TOOL_SCHEMAS_BYTES // 4 + 1)),) * 4


@pytest.mark.parametrize(
    ("spec", "field", "limit"),
    [
        (
            make_spec(OutputFormatKind.REGEX, "é" * (MAX_OUTPUT_FORMAT_BYTES // 2 + 1)),
            "constraint.regex",
            MAX_OUTPUT_FORMAT_BYTES,
        ),
        (
            OutputSpec(None, ToolCallSpec((SYNTAX,), LARGE_TOOLS, True, True), None),
            "tools",
            MAX_TOOL_SCHEMAS_BYTES,
        ),
    ],
    ids=["output format", "tools"],
)
async def test_size_limits_are_checked_before_a_job_runs(
    spec: OutputSpec, field: str, limit: int
) -> None:
    jobs = CountingJobs()
    error = await compile_error(spec, jobs)

    assert isinstance(error, TooLong)
    assert (error.metadata["field"], error.metadata["limit"]) == (field, str(limit))
    assert jobs.count == 0


async def test_compiled_grammars_are_cached() -> None:
    jobs = CountingJobs()
    compiler = GrammarCompiler(jobs)
    first = await compiler.compile(DIGITS, VOCABULARY)

    assert await compiler.compile(DIGITS, VOCABULARY) == first
    assert jobs.count == 1
    await compiler.compile(DIGITS, VOCABULARY._replace(size=500))
    assert jobs.count == 2


@pytest.mark.parametrize("is_strict", [True, False])
async def test_an_unknown_format_only_describes_and_is_named(is_strict: bool) -> None:
    schema = '{"properties": {"a": {"type": "string", "format": "phone"}}, "required": ["a"]}'
    tools = (replace(TOOL, schema=schema, strict=is_strict),)
    calls = ToolCallSpec((SYNTAX,), tools, required=True, several=False)
    compiler = GrammarCompiler(InlineJobs())
    called = await compiler.compile(OutputSpec(None, calls, None), VOCABULARY)
    formatted = await compiler.compile(make_spec(OutputFormatKind.JSON_SCHEMA, schema), VOCABULARY)

    assert called.ignored == ("tools[0]",)
    assert formatted.ignored == ("constraint.json_schema",)


@pytest.mark.parametrize("kind", [FailureKind.DEADLINE, FailureKind.CRASHED, FailureKind.MEMORY])
async def test_a_format_that_fails_its_job_is_invalid(kind: FailureKind) -> None:
    """It is the caller's error, since each attempt ends a child process."""
    jobs = CountingJobs(JobFailed(kind, "it took longer than 1.5 s"))
    schema_error = await compile_error(make_spec(OutputFormatKind.JSON_SCHEMA, "{}"), jobs)
    grammar_error = await compile_error(DIGITS, jobs)

    assert isinstance(schema_error, SchemaInvalid)
    assert isinstance(grammar_error, GrammarInvalid)
    assert "longer than 1.5 s" in schema_error.metadata["problem"]


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ('{"patternProperties": {"^a": {"type": "integer"}}}', "patternProperties"),
        (
            '{"$ref": "#/$defs/x", "$defs": {"x": {"dependentRequired": {"a": ["b"]}}}}',
            "dependentRequired",
        ),
    ],
)
async def test_a_keyword_that_tags_cannot_enforce_is_ignored_unless_its_tool_is_strict(
    schema: str, keyword: str
) -> None:
    """What concerns single arguments is enforced."""
    way = ToolCallSyntax("[CALLS]", ":", "!", arguments=ArgumentSyntax("<", ">", "."))
    tool = replace(TOOL, schema=schema, strict=False)
    calls = ToolCallSpec((way,), (tool,), required=True, several=False)
    compiled = await GrammarCompiler(InlineJobs()).compile(
        OutputSpec(None, calls, None), VOCABULARY
    )
    strict = replace(calls, tools=(replace(tool, strict=True),))
    error = await compile_error(OutputSpec(None, strict, None))

    assert compiled.ignored == ("tools[0]",)
    assert isinstance(error, SchemaInvalid)
    assert (error.field, keyword in error.problem) == ("tools[0]", True)


@pytest.mark.parametrize("names", [{"type": "string"}, {}, True])
def test_names_of_members_that_may_be_any_limit_nothing(names: object) -> None:
    """As zod writes records."""
    schema = {"propertyNames": names, "additionalProperties": {"type": "number"}}

    assert plain_schema(schema, json.dumps(schema)).schema == {
        "additionalProperties": {"type": "number"}
    }
