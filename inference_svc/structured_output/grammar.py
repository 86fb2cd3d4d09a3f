"""Builds grammars from JSON schemas, regular expressions, choices, GBNF and Lark, and locates
errors in schemas.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from llguidance import LLMatcher, grammar_from
from llguidance.gbnf_to_lark import is_lark_syntax

from inference_svc.structured_output.argument_rules import ArgumentRules
from inference_svc.structured_output.free_text import (
    ANYTHING,
    PLACEHOLDER_RULES,
    ControlTokens,
    Markers,
    free_rules,
)
from inference_svc.structured_output.schemas import combined_by, without_annotations
from inference_svc.structured_output.spec import (
    SPACE,
    CallableTool,
    OutputFormat,
    OutputFormatKind,
    OutputSpec,
    Reasoning,
    ToolCallSpec,
    ToolCallSyntax,
)

_MAX_CHECKS = 2000
_BY_NAME = ("$defs", "definitions", "properties", "patternProperties")
_LISTED = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SINGLE = ("items", "additionalProperties", "additionalItems")


def faulty_pointer(schema: Mapping[str, Any], find_problem: Callable[[Any], str | None]) -> str:
    """Return a JSON Pointer in its URI form ("#/properties/a") to the deepest subschema that alone
    has the same problem as the whole schema.

    `find_problem` returns the problem of a schema. The definitions of the root are added to each
    subschema, so that its references still resolve.
    """
    problem = find_problem(schema)
    shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    pointer, current, checks = "#", schema, 0
    while True:
        for step, child in _children(current):
            checks += 1
            if checks > _MAX_CHECKS:
                return pointer
            # Definitions are checked alone: otherwise every subschema would have their problem.
            alone = "/$defs/" in pointer + step or "/definitions/" in pointer + step
            if find_problem(child if alone else {**shared, **child}) == problem:
                pointer, current = pointer + step, child
                break
        else:
            return pointer


def _children(schema: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the direct subschemas with their pointer segments."""
    for keyword in _BY_NAME:
        named = schema.get(keyword)
        if isinstance(named, dict):
            yield from _objects(keyword, named.items())
    for keyword in _LISTED:
        listed = schema.get(keyword)
        if isinstance(listed, list):
            yield from _objects(keyword, enumerate(listed))
    for keyword in _SINGLE:
        if isinstance(schema.get(keyword), dict):
            yield f"/{keyword}", schema[keyword]


def _objects(keyword: str, items: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, child in items:
        if isinstance(child, dict):
            escaped = str(name).replace("~", "~0").replace("/", "~1")
            yield f"/{keyword}/{escaped}", child


# A text, a character class, a comment, or "."; an unclosed one extends to the end.
_PART = re.compile(r'"(?:\\.|[^"\\])*"?|\[(?:\\.|[^\]\\])*\]?|#[^\r\n]*|\.', re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", re.DOTALL)
_ANY_CHARACTER = "[\\x00-\U0010ffff]"


def gbnf_to_lark(text: str) -> str:
    """Convert a GBNF grammar to Lark; callers may also send Lark. Raises `ValueError`."""
    if not is_lark_syntax(text):
        text = _PART.sub(_convert_part, text)
    return grammar_from("gbnf", text)


def _convert_part(part: re.Match[str]) -> str:
    return _ANY_CHARACTER if part[0] == "." else _ESCAPE.sub(_convert_escape, part[0])


def _convert_escape(escape: re.Match[str]) -> str:
    """Unescape a character. ASCII stays escaped, since it may be syntax; invalid code points stay
    escaped so that the error shows them."""
    if len(escape[1]) == 1:
        return r"\x2d" if escape[1] == "-" else escape[0]
    code = int(escape[1][1:], 16)
    if code < 0x80:
        return f"\\x{code:02x}"
    is_character = code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF
    return chr(code) if is_character else escape[0]


Grammar = dict[str, Any]
_JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class OutputFormatInvalid(Exception):
    """An output format is invalid. `schema` is set for JSON Schemas, to locate the error."""

    def __init__(self, field: str, problem: str, schema: "dict[str, Any] | None" = None) -> None:
        super().__init__(field, problem)
        self.field = field
        self.problem = problem
        self.schema = schema


def schema_grammar(schema: Mapping[str, Any], *, strict: bool = True) -> Grammar:
    """The grammar of JSON text that matches a schema."""
    return {"json_schema": {**schema, "x-guidance": {**_JSON_STYLE, "lenient": not strict}}}


def parse_schema(text: str, field: str) -> dict[str, Any]:
    """Parse the text of a schema. Raises `OutputFormatInvalid`."""
    try:
        schema = json.loads(text)
    except RecursionError:
        raise OutputFormatInvalid(field, "it is nested too deeply", {}) from None
    except ValueError as problem:
        raise OutputFormatInvalid(field, f"it is not JSON: {problem}", {}) from None
    if not isinstance(schema, dict):
        raise OutputFormatInvalid(field, "it must be an object", {})
    return schema


def output_format_grammar(form: OutputFormat) -> Grammar:
    """The grammar of an output format. Raises `OutputFormatInvalid`."""
    match form.kind:
        case OutputFormatKind.JSON_SCHEMA:
            return schema_grammar(parse_schema(form.text, form.field))
        case OutputFormatKind.REGEX:
            grammar = json.loads(LLMatcher.grammar_from_regex(form.text))["grammars"][0]
            return {"lark_grammar": grammar["lark_grammar"]}
        case OutputFormatKind.LARK:
            return {"lark_grammar": form.text}
        case OutputFormatKind.GBNF:
            try:
                return {"lark_grammar": gbnf_to_lark(form.text)}
            except (ValueError, RecursionError) as problem:
                raise OutputFormatInvalid(form.field, str(problem)) from None
        case OutputFormatKind.CHOICES:
            texts = " | ".join(json.dumps(choice) for choice in json.loads(form.text))
            return {"lark_grammar": f"start: {texts}"}


def tool_grammar(tool: CallableTool) -> Grammar:
    """The grammar of a tool's arguments. Raises `OutputFormatInvalid`."""
    return schema_grammar(_tool_schema(tool), strict=tool.strict)


@lru_cache(maxsize=128)
def _tool_schema(tool: CallableTool) -> dict[str, Any]:
    if not tool.schema:
        return {"type": "object", "additionalProperties": False}
    try:
        schema = without_annotations(parse_schema(tool.schema, tool.field))
    except RecursionError:
        raise OutputFormatInvalid(tool.field, "it is nested too deeply", {}) from None
    kind = schema.get("type", "object")
    if kind != "object" and (not isinstance(kind, list) or "object" not in kind):
        raise OutputFormatInvalid(tool.field, "arguments are an object: type must be object", {})
    return {**schema, "type": "object"}


def only_tool(calls: ToolCallSpec, tool: CallableTool) -> str:
    """The grammar of calls of one tool. Raises `OutputFormatInvalid`."""
    alone = replace(calls, tools=(tool,), triggers=(), begin="", barred=())
    return whole_grammar(OutputSpec(None, alone, None), {})


def document(grammars: Sequence[Grammar]) -> str:
    """Join grammars, the first of which is the start, into the text that a matcher is built
    from."""
    return json.dumps({"grammars": grammars})


def whole_grammar(spec: OutputSpec, control: ControlTokens) -> str:
    """The grammar of an output: reasoning, then calls or the output format."""
    form = [] if spec.form is None else [{**output_format_grammar(spec.form), "name": "form"}]
    if spec.calls is None and spec.thought is None and not spec.opening:
        return document(form)
    lines = [*PLACEHOLDER_RULES, f"form_opening: {Markers(control).write(spec.opening)}"]
    arguments: list[Grammar] = []
    if spec.calls is not None and spec.calls.is_in_free_text:
        lines += free_rules(spec.calls, spec.thought, control)
    else:
        lines.append(f"start: {_reasoning_reference(spec.thought)}{_answer(spec)}")
        if spec.thought is not None:
            lines += _reasoning_rules(spec.thought, control)
    if spec.calls is not None:
        rules = ArgumentRules(control)
        lines += _call_rules(spec.calls, rules, control)
        arguments = [
            {**schema_grammar(schema, strict=strict), "name": name}
            for name, (schema, strict) in rules.schemas.items()
        ]
    return document([{"lark_grammar": "\n".join(lines)}, *form, *arguments])


def _answer(spec: OutputSpec) -> str:
    if spec.calls is None:
        return "form_opening @form"
    if spec.calls.required or spec.form is None:
        return "calls"
    return "(calls | form_opening @form)"


def _reasoning_reference(thought: Reasoning | None) -> str:
    if thought is None:
        return ""
    return "thinking after " if thought.is_open else "(begun after)? "


def _reasoning_rules(thought: Reasoning, control: ControlTokens) -> Iterator[str]:
    if any(token in thought.end for token in control):
        yield f"thinking: {ANYTHING} {Markers(control).write(thought.end)}"
    else:
        yield f"thinking[suffix={json.dumps(thought.end)}]: {ANYTHING}"
    yield f"after: {Markers(control).write(thought.after or SPACE)}"
    if not thought.is_open:
        yield f"begun: {Markers(control).write(thought.begin)} thinking"


def _call_rules(
    calls: ToolCallSpec, arguments: ArgumentRules, control: ControlTokens
) -> Iterator[str]:
    """Yield the rules of calls, in every syntax, and those after each trigger."""
    marker = Markers(control).write
    yield "calls: " + " | ".join(f"calls_{way}" for way in range(len(calls.ways)))
    for trigger in range(len(calls.triggers)):
        ways = _ways_from(calls, trigger)
        yield f"calls_from_{trigger}: " + " | ".join(f"calls_{way}" for way in ways)
    written: dict[str, list[str]] = {}
    for number, way in enumerate(calls.ways):
        own = written.get(repr(way.arguments))
        if own is None:
            own = written[repr(way.arguments)] = [
                _arguments(tool, way, arguments) for tool in calls.tools
            ]
        begin = next((each for each in calls.triggers if way.begin.startswith(each)), "")
        # The trigger is already written; calls without a `before` text are triggered one by one.
        repeats = calls.several and (bool(way.before) or not begin) and not way.ends_turn
        head = way.head if way.before else way.head.removeprefix(begin)
        before = marker(way.before.removeprefix(begin))
        between = marker(way.between)
        more = f"({between} call_{number})*" if repeats else ""
        yield f"calls_{number}: {before} call_{number} {more} {marker(way.after)}"
        tail = marker(way.tail)
        texts = (
            f"{marker(head + tool.name + way.middle)} {text} {tail}"
            for tool, text in zip(calls.tools, own, strict=True)
        )
        yield f"call_{number}: " + " | ".join(texts)
    yield from arguments.lines


def _ways_from(calls: ToolCallSpec, trigger: int) -> list[int]:
    text = calls.triggers[trigger]
    return [number for number, way in enumerate(calls.ways) if way.begin.startswith(text)]


def _arguments(tool: CallableTool, way: ToolCallSyntax, arguments: ArgumentRules) -> str:
    schema = _tool_schema(tool)
    keyword = "" if way.arguments is None else combined_by(schema)
    if keyword and tool.strict:
        problem = f"'{keyword}' of an object cannot be enforced in calls of this model"
        raise OutputFormatInvalid(tool.field, problem, {})
    try:
        return arguments.arguments(schema, way.arguments, strict=tool.strict)
    except (RecursionError, TypeError) as problem:
        raise OutputFormatInvalid(
            tool.field, f"a keyword has no valid value: {problem}", {}
        ) from None


def is_whole(tool: CallableTool) -> bool:
    """Whether the schema of a tool is one that calls without JSON enforce."""
    return not combined_by(_tool_schema(tool))
