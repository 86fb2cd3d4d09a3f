"""Builds grammars from JSON schemas, regular expressions, choices, GBNF and Lark, and locates
errors in schemas.
"""

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

from llguidance import LLMatcher, grammar_from
from llguidance.gbnf_to_lark import is_lark_syntax

from inference_svc.structured_output.argument_rules import MEMBER_NAME, ArgumentRules
from inference_svc.structured_output.free_text import (
    ANYTHING,
    PLACEHOLDER_RULES,
    ControlTokens,
    GrammarMarkers,
    anything_but,
    free_rules,
)
from inference_svc.structured_output.member_names import with_plain_names
from inference_svc.structured_output.numbers import parse_json
from inference_svc.structured_output.patterns import rust_pattern
from inference_svc.structured_output.plain_schema import PlainSchema, plain_schema
from inference_svc.structured_output.recursion import is_endless
from inference_svc.structured_output.schemas import find_reference
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

NO_SCHEMA = "a schema must be an object or a boolean"
_DEFINITIONS = ("$defs", "definitions")
_BY_NAME = (*_DEFINITIONS, "properties", "patternProperties")
_LISTED = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SINGLE = ("items", "additionalProperties", "additionalItems")


def faulty_parts(
    schema: Mapping[str, Any], is_faulty: Callable[[Any, Mapping[str, Any]], bool]
) -> Iterator[str]:
    """Yield JSON Pointers in their URI form ("#/properties/a") to the deepest subschemas of a
    faulty schema that are faulty alone; "#" if none is.

    `is_faulty` is asked about the direct subschemas of each faulty one; it also gets the
    definitions of the root, which these may refer to. If definitions are faulty, only their parts
    are yielded, since what refers to them is faulty too.
    """
    shared = {name: schema[name] for name in _DEFINITIONS if isinstance(schema.get(name), dict)}
    found = [each for each in _children(shared) if is_faulty(each[1], shared)]
    freed: Mapping[str, Any] = shared
    for step, _ in found:
        freed = without_part(freed, f"#{step}")
    # Some may only refer to the others.
    own = [each for each in found if is_faulty(each[1], freed)] or found
    for step, part in own:
        yield from _faulty_parts(f"#{step}", part, freed, is_faulty)
    if not own:
        yield from _faulty_parts("#", schema, shared, is_faulty)


def _faulty_parts(
    pointer: str,
    schema: Mapping[str, Any],
    shared: Mapping[str, Any],
    is_faulty: Callable[[Any, Mapping[str, Any]], bool],
) -> Iterator[str]:
    has_faulty = False
    for step, child in _children(schema):
        if is_faulty(child, shared):
            has_faulty = True
            yield from _faulty_parts(pointer + step, child, shared, is_faulty)
    if not has_faulty:
        yield pointer


def _children(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield the direct subschemas that are no booleans, with their pointer segments."""
    if not isinstance(schema, dict):
        return
    for keyword in _BY_NAME:
        named = schema.get(keyword)
        if isinstance(named, dict):
            yield from _parts(keyword, named.items())
    for keyword in _LISTED:
        listed = schema.get(keyword)
        if isinstance(listed, list):
            yield from _parts(keyword, enumerate(listed))
    for keyword in _SINGLE:
        if not isinstance(schema.get(keyword, True), bool | list):
            yield f"/{keyword}", schema[keyword]


def _parts(keyword: str, items: Any) -> Iterator[tuple[str, Any]]:
    for name, child in items:
        if not isinstance(child, bool):
            escaped = str(name).replace("~", "~0").replace("/", "~1")
            yield f"/{keyword}/{escaped}", child


def _has_only_schemas(schema: Any, root: Mapping[str, Any], seen: set[int]) -> bool:
    """Whether all that a schema applies to values is an object or a boolean, as a JSON Schema is.
    Definitions count where something refers to them."""
    if not isinstance(schema, dict):
        return isinstance(schema, bool)
    if id(schema) in seen:
        return True
    seen.add(id(schema))
    reference = schema.get("$ref")
    target = find_reference(reference, root) if isinstance(reference, str) else None
    applied = {keyword: each for keyword, each in schema.items() if keyword not in _DEFINITIONS}
    parts = [part for _, part in _children(applied)] + ([] if target is None else [target])
    return all(_has_only_schemas(part, root, seen) for part in parts)


def _check_parts(plain: PlainSchema, field: str) -> None:
    """Raise `OutputFormatInvalid` for a part that is no schema; llguidance accepts some."""
    if plain.may_have_others and not _has_only_schemas(plain.schema, plain.schema, set()):
        raise OutputFormatInvalid(field, NO_SCHEMA, plain.schema)


def without_part(schema: Any, pointer: str) -> Any:
    """The schema with one that everything matches at a pointer of `faulty_parts`."""
    return _without_part(schema, pointer.split("/")[1:])


def _without_part(schema: Any, steps: list[str]) -> Any:
    if not steps:
        return {}
    first, *rest = steps
    if isinstance(schema, list):
        index = int(first)
        return [*schema[:index], _without_part(schema[index], rest), *schema[index + 1 :]]
    name = first.replace("~1", "/").replace("~0", "~")
    return {**schema, name: _without_part(schema[name], rest)}


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
_REPEATED = "'minProperties' of members whose names may repeat"
_JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class OutputFormatInvalid(Exception):
    """An output format is invalid. `schema` is set for JSON Schemas, to locate the error."""

    def __init__(self, field: str, problem: str, schema: "dict[str, Any] | None" = None) -> None:
        super().__init__(field, problem)
        self.field = field
        self.problem = problem
        self.schema = schema


def schema_grammar(schema: dict[str, Any], *, strict: bool = True) -> Grammar:
    """The grammar of JSON text that matches a schema."""
    named, escapes = with_plain_names(schema)
    options = {**_JSON_STYLE, **escapes, "lenient": not strict}
    return {"json_schema": {**named, "x-guidance": options}}


def parse_schema(text: str, field: str) -> dict[str, Any]:
    """Parse the text of a schema. Raises `OutputFormatInvalid`."""
    try:
        schema = parse_json(text)
    except RecursionError:
        raise OutputFormatInvalid(field, "it is nested too deeply", {}) from None
    except ValueError as problem:
        raise OutputFormatInvalid(field, f"it is not JSON: {problem}", {}) from None
    if not isinstance(schema, dict):
        raise OutputFormatInvalid(field, "it must be an object", {})
    return schema


def output_format_grammars(form: OutputFormat) -> list[Grammar]:
    """The grammar of an output format and those that it refers to. Raises `OutputFormatInvalid`."""
    match form.kind:
        case OutputFormatKind.JSON_SCHEMA:
            return value_grammars(_form_schema(form.text, form.field), form.field)
        case OutputFormatKind.REGEX:
            whole = json.loads(LLMatcher.grammar_from_regex(rust_pattern(form.text)))
            return [{"lark_grammar": whole["grammars"][0]["lark_grammar"]}]
        case OutputFormatKind.LARK:
            return [{"lark_grammar": form.text}]
        case OutputFormatKind.GBNF:
            try:
                return [{"lark_grammar": gbnf_to_lark(form.text)}]
            except (ValueError, RecursionError) as problem:
                raise OutputFormatInvalid(form.field, str(problem)) from None
        case OutputFormatKind.CHOICES:
            texts = " | ".join(json.dumps(choice) for choice in json.loads(form.text))
            return [{"lark_grammar": f"start: {texts}"}]


def value_grammars(plain: PlainSchema, field: str, *, strict: bool = True) -> list[Grammar]:
    """The grammars of JSON text that matches a schema. Raises `OutputFormatInvalid`."""
    _check_parts(plain, field)
    if plain.counts_repeated and strict:
        raise OutputFormatInvalid(field, f"{_REPEATED} cannot be enforced", plain.schema)
    if plain.is_rounded:
        return _exact_grammars(plain, field, strict=strict)
    if plain.is_narrowed:
        with contextlib.suppress(OutputFormatInvalid):
            return _exact_grammars(plain._replace(is_rounded=True), field, strict=True)
    return [schema_grammar(plain.schema, strict=strict)]


def _exact_grammars(plain: PlainSchema, field: str, *, strict: bool) -> list[Grammar]:
    rules = ArgumentRules({})

    def refuse(subject: str) -> None:
        if strict:
            raise OutputFormatInvalid(field, f"{subject} cannot be enforced", plain.schema)

    with _named_errors(field, plain.schema):
        start = rules.value(plain, refuse, strict=strict)
    return [{"lark_grammar": "\n".join([f"start: {start}", *rules.lines])}, *_json_grammars(rules)]


def form_schema(form: OutputFormat) -> PlainSchema | None:
    """The schema of an output format, if it has one. Raises `OutputFormatInvalid`."""
    if form.kind is not OutputFormatKind.JSON_SCHEMA:
        return None
    return _form_schema(form.text, form.field)


@lru_cache(maxsize=8)
def _form_schema(text: str, field: str) -> PlainSchema:
    with _named_errors(field, {}):
        plain = plain_schema(parse_schema(text, field), text)
    if is_endless(plain.schema, text):
        raise OutputFormatInvalid(field, "nothing can satisfy it", plain.schema)
    return plain


def _json_grammars(rules: ArgumentRules) -> list[Grammar]:
    return [
        {**schema_grammar(schema, strict=strict), "name": name}
        for name, (schema, strict) in rules.schemas.items()
    ]


@contextmanager
def _named_errors(field: str, schema: dict[str, Any]) -> Iterator[None]:
    """Convert the errors of malformed schemas."""
    try:
        yield
    except RecursionError:
        raise OutputFormatInvalid(field, "it is nested too deeply", {}) from None
    except (TypeError, ValueError, ArithmeticError) as problem:
        text = f"a keyword has no valid value: {problem}"
        raise OutputFormatInvalid(field, text, schema) from None


def tool_grammars(tool: CallableTool) -> list[Grammar]:
    """The grammars of a tool's arguments as JSON. Raises `OutputFormatInvalid`."""
    return value_grammars(tool_schema(tool), tool.field, strict=tool.strict)


@lru_cache(maxsize=128)
def tool_schema(tool: CallableTool) -> PlainSchema:
    """The schema of a tool's arguments. Raises `OutputFormatInvalid`."""
    if not tool.schema:
        return PlainSchema({"type": "object", "additionalProperties": False})
    with _named_errors(tool.field, {}):
        plain = plain_schema(parse_schema(tool.schema, tool.field), tool.schema, annotations=False)
    kind = plain.schema.get("type", "object")
    if kind != "object" and (not isinstance(kind, list) or "object" not in kind):
        raise OutputFormatInvalid(tool.field, "arguments are an object: type must be object", {})
    schema = {**plain.schema, "type": "object"}
    if is_endless(schema, tool.schema):
        raise OutputFormatInvalid(tool.field, "nothing can satisfy it", schema)
    return plain._replace(schema=schema)


def only_tool(calls: ToolCallSpec, tool: CallableTool) -> str:
    """The grammar of calls of one tool. Raises `OutputFormatInvalid`."""
    alone = replace(calls, tools=(tool,), triggers=(), begin="", excludes=())
    return whole_grammar(OutputSpec(None, alone, None), {})


def document(grammars: Sequence[Grammar]) -> str:
    """Join grammars, the first of which is the start, into the text that a matcher is built
    from."""
    return json.dumps({"grammars": grammars}, default=float)


def whole_grammar(spec: OutputSpec, control: ControlTokens, ignored: set[str] | None = None) -> str:
    """The grammar of an output: reasoning, then calls or the output format. The fields of schemas
    that it does not wholly enforce are added to `ignored`."""
    form = [] if spec.form is None else output_format_grammars(spec.form)
    if spec.calls is None and spec.thought is None and not spec.opening:
        return document(form)
    form = [{**each, "name": "form"} if each is form[0] else each for each in form]
    arguments, calls = ArgumentRules(control), spec.calls
    call_lines: list[str] = []
    if calls is not None:
        calls, call_lines = _call_rules(
            calls, arguments, control, set() if ignored is None else ignored
        )
    lines = [*PLACEHOLDER_RULES, f"form_opening: {GrammarMarkers(control).write(spec.opening)}"]
    if calls is not None and calls.is_in_free_text:
        lines += free_rules(calls, spec.thought, control)
    else:
        lines.append(f"start: {_reasoning_reference(spec.thought)}{_answer(spec)}")
        if spec.thought is not None:
            lines += _reasoning_rules(spec.thought, control)
    lines += call_lines
    return document([{"lark_grammar": "\n".join(lines)}, *form, *_json_grammars(arguments)])


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
    text = "THOUGHT" if thought.excludes else ANYTHING
    if thought.excludes:
        yield f"THOUGHT: {anything_but(thought.excludes)}"
    if any(token in thought.end for token in control):
        yield f"thinking: {text} {GrammarMarkers(control).write(thought.end)}"
    else:
        yield f"thinking[suffix={json.dumps(thought.end)}]: {text}"
    yield f"after: {GrammarMarkers(control).write(thought.after or SPACE)}"
    if not thought.is_open:
        yield f"begun: {GrammarMarkers(control).write(thought.begin)} thinking"


def _call_rules(
    calls: ToolCallSpec, arguments: ArgumentRules, control: ControlTokens, ignored: set[str]
) -> tuple[ToolCallSpec, list[str]]:
    """The rules of calls, in every syntax, and those after each trigger. A syntax in which a tool
    cannot be written has calls of the other tools only; one without tools is left out, and must not
    begin."""
    marker = GrammarMarkers(control).write
    lines, used = [], []
    written: dict[str, dict[CallableTool, str]] = {}
    for number, syntax in enumerate(calls.syntaxes):
        own = written.get(repr(syntax.arguments))
        if own is None:
            own = written[repr(syntax.arguments)] = _arguments(calls, syntax, arguments, ignored)
        if not own:
            continue
        used.append(number)
        begin = next((each for each in calls.triggers if syntax.begin.startswith(each)), "")
        # The trigger is already written; calls without a `before` text are triggered one by one.
        repeats = calls.several and (bool(syntax.before) or not begin) and not syntax.ends_turn
        head = syntax.head if syntax.before else syntax.head.removeprefix(begin)
        before = marker(syntax.before.removeprefix(begin))
        between = marker(syntax.between)
        more = f"({between} call_{number})*" if repeats else ""
        lines.append(f"calls_{number}: {before} call_{number} {more} {marker(syntax.after)}")
        tail = marker(syntax.tail)
        texts = (f"{marker(head + tool.name + syntax.middle)} {own[tool]} {tail}" for tool in own)
        lines.append(f"call_{number}: " + " | ".join(texts))
    lines.append("calls: " + " | ".join(f"calls_{each}" for each in used))
    following = {
        text: [each for each in _syntaxes_from(calls, text) if each in used]
        for text in calls.triggers
    }
    triggers = [each for each in calls.triggers if following[each]]
    for number, trigger in enumerate(triggers):
        alternatives = " | ".join(f"calls_{each}" for each in following[trigger])
        lines.append(f"calls_from_{number}: {alternatives}")
    unused = [each for each in calls.triggers if each not in triggers]
    calls = replace(calls, triggers=tuple(triggers), excludes=(*calls.excludes, *unused))
    return calls, [*lines, *arguments.lines]


def _syntaxes_from(calls: ToolCallSpec, trigger: str) -> list[int]:
    return [
        number for number, syntax in enumerate(calls.syntaxes) if syntax.begin.startswith(trigger)
    ]


def _arguments(
    calls: ToolCallSpec, syntax: ToolCallSyntax, arguments: ArgumentRules, ignored: set[str]
) -> dict[CallableTool, str]:
    """The rules of the arguments of the tools that a syntax can express. A strict tool that it
    cannot, or one with names that it cannot, is left to a syntax with JSON. Without one, a strict
    tool is refused, another one named."""
    has_json = any(each.arguments is None for each in calls.syntaxes)
    found = {}
    for tool in calls.tools:
        schema = tool_schema(tool)
        problems = [_REPEATED] if schema.counts_repeated else []
        _check_parts(schema, tool.field)
        with _named_errors(tool.field, {}):
            rule = arguments.arguments(
                schema, syntax.arguments, problems.append, strict=tool.strict
            )
        weighty = [each for each in problems if tool.strict or each.startswith(MEMBER_NAME)]
        if weighty and syntax.arguments is not None and has_json:
            continue
        if problems and tool.strict:
            raise OutputFormatInvalid(
                tool.field, f"{problems[0]} cannot be enforced in calls of this model", {}
            )
        ignored.update({tool.field} if problems else ())
        found[tool] = rule
    return found
