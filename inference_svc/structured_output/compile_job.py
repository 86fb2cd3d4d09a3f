"""Compiles a grammar in a sandboxed child process before the engine does, since a schema of a few
hundred bytes can take seconds and gigabytes.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass, replace
from functools import lru_cache
from itertools import islice
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from inference_svc.structured_output.grammar import (
    NO_SCHEMA,
    OutputFormatInvalid,
    document,
    faulty_parts,
    form_schema,
    only_tool,
    output_format_grammars,
    tool_grammars,
    tool_schema,
    value_grammars,
    whole_grammar,
    without_part,
)
from inference_svc.structured_output.matcher import GrammarUnusable, build_matcher, check_usable
from inference_svc.structured_output.member_names import counts_repeated_names
from inference_svc.structured_output.numbers import is_rounded, write_json
from inference_svc.structured_output.plain_schema import PlainSchema
from inference_svc.structured_output.schemas import find_reference
from inference_svc.structured_output.spec import (
    ANY_OBJECT,
    CallableTool,
    OutputFormatKind,
    OutputSpec,
)

_MAX_CACHED_TOKENIZERS = 8
_MAX_PROBLEM_CHARACTERS = 300
_MAX_FREED = 16
MAX_CHECKED_CHARACTERS = 128 * 1024
"""Of parts of schemas that are compiled to find invalid ones, in all schemas of a request. They
take about half a second."""
_CHECK_CHARACTERS = 50  # how many take as long as the compilation of an empty part
_UNENFORCED = re.compile(r'(?<=")[\w$]+(?=")|\boneOf\b')
"""The keywords that llguidance's warnings name."""
_REGEX_ERROR = re.compile(r"regex parse error:.*?^error: [^\n]*", re.DOTALL | re.MULTILINE)
"""The error of a regular expression in a message of llguidance, which then repeats the grammar."""
_OUTER_REFERENCE = re.compile(r'"\$ref": "(#/(?!\$defs/|definitions/)[^"]*)"')


def compile_grammar(payload: dict[str, Any]) -> dict[str, Any]:
    """Compile the grammar of an output.

    `payload` has "asked" (an `OutputSpec` as a dict) and "vocabulary", with "size", "control"
    (tokens by text) and "ends". The result has "grammar" and "ignored", the fields of schemas that
    it does not or only partly enforce; or else "field", "problem" and, for a JSON Schema,
    "pointer".
    """
    vocabulary = payload["vocabulary"]
    tokenizer = _tokenizer(json.dumps(vocabulary))
    spec: OutputSpec = _decode(OutputSpec, payload["asked"])
    is_regex = spec.form is not None and spec.form.kind is OutputFormatKind.REGEX
    try:
        return _compile(spec, vocabulary["control"], tokenizer)
    except OutputFormatInvalid as invalid:
        found = _REGEX_ERROR.search(invalid.problem) if is_regex else None
        return _error_result(invalid, found[0] if found else invalid.problem, tokenizer)


def _compile(spec: OutputSpec, control: dict[str, int], tokenizer: LLTokenizer) -> dict[str, Any]:
    freed = set[str]()
    ways_to_free = iter((_free_parts, _free_tools))
    while True:
        ignored = set[str]()
        try:
            grammar = whole_grammar(spec, control, ignored)
            matcher = _check(grammar, tokenizer, _field(spec))
            break
        except OutputFormatInvalid:
            free = next(ways_to_free, None)
            if free is None:
                raise
            spec = free(spec, tokenizer, freed)
    ignored |= freed
    schema = None if spec.form is None else form_schema(spec.form)
    if spec.form is not None and schema is not None and schema.has_other_formats:
        ignored.add(spec.form.field)
    if spec.calls is not None:
        words = _UNENFORCED.findall(" ".join(matcher.get_grammar_warnings()))
        ignored |= {
            tool.field
            for tool in spec.calls.tools
            if tool_schema(tool).has_other_formats
            or (not tool.strict and _has_any(tool, words) and not _is_enforced(tool, tokenizer))
        }
    return {"grammar": grammar, "ignored": sorted(ignored)}


def _free_parts(spec: OutputSpec, tokenizer: LLTokenizer, freed: set[str]) -> OutputSpec:
    """Compile each schema alone, so that an error names the invalid part. Returns the spec without
    the invalid parts of schemas of tools that are not strict; `freed` gets the fields of these."""
    if spec.form is not None:
        grammars, schema = output_format_grammars(spec.form), form_schema(spec.form)
        located = None if schema is None else schema.schema
        _check(document(grammars), tokenizer, spec.form.field, located)
    if spec.calls is None:
        return spec
    parts = _SchemaParts(tokenizer)
    tools = tuple(_enforceable(tool, parts, tokenizer, freed) for tool in spec.calls.tools)
    return replace(spec, calls=replace(spec.calls, tools=tools))


def _free_tools(spec: OutputSpec, tokenizer: LLTokenizer, freed: set[str]) -> OutputSpec:
    """The spec with any object as arguments of each tool whose calls cannot be enforced, although
    its schema is valid. Raises `OutputFormatInvalid` for a strict tool."""
    if spec.calls is None:
        return spec
    tools = []
    for tool in spec.calls.tools:
        try:
            _check(only_tool(spec.calls, tool), tokenizer, tool.field)
            tools.append(tool)
        except OutputFormatInvalid:
            if tool.strict:
                raise
            freed.add(tool.field)
            tools.append(replace(tool, schema=ANY_OBJECT))
    return replace(spec, calls=replace(spec.calls, tools=tuple(tools)))


def _enforceable(
    tool: CallableTool, parts: "_SchemaParts", tokenizer: LLTokenizer, freed: set[str]
) -> CallableTool:
    """The tool, whose schema allows any JSON value in each place that is invalid, and any object if
    there are more than `_MAX_FREED`. Their fields are added to `freed`. Raises
    `OutputFormatInvalid` for a strict tool."""
    fields = set[str]()
    whole = replace(tool, schema=ANY_OBJECT)
    while tool != whole:
        try:
            _check_tool(tool, tokenizer)
            break
        except OutputFormatInvalid as invalid:
            if tool.strict:
                raise
            schema = invalid.schema or {}
            pointers = parts.faulty(schema, strict=False, limit=_MAX_FREED + 1 - len(fields))
        fields |= {tool.field + pointer[1:].replace("/", ".") for pointer in pointers}
        if "#" in pointers or len(fields) > _MAX_FREED:
            tool, fields = whole, {tool.field}
            continue
        if tool_schema(tool).has_other_formats:
            freed.add(tool.field)
        for pointer in pointers:
            schema = without_part(schema, pointer)
        tool = replace(tool, schema=write_json(schema))
    freed |= fields
    return tool


class _SchemaParts:
    """Finds the invalid parts of schemas. It compiles each part once, and no more than
    `MAX_CHECKED_CHARACTERS` of them all: what is beyond that counts as valid alone."""

    def __init__(self, tokenizer: LLTokenizer) -> None:
        self._tokenizer = tokenizer
        self._num_left = MAX_CHECKED_CHARACTERS
        self._problems: dict[tuple[str, bool], str | None] = {}

    def faulty(self, schema: dict[str, Any], *, strict: bool, limit: int) -> list[str]:
        """The pointers to the invalid parts of an invalid schema, up to so many; "#" for all of
        it. Of a strict one, the parts that have the problem that is reported."""
        try:
            problem = self._problem(schema, {}, strict=strict)

            def is_faulty(part: Any, shared: Mapping[str, Any]) -> bool:
                found = self._problem(part, shared, strict=strict)
                if found is None or found == problem:
                    return found is not None
                return not strict and not _refers_outside(part, schema)

            return list(islice(faulty_parts(schema, is_faulty), limit))
        except RecursionError:
            return ["#"]

    def _problem(self, part: Any, shared: Mapping[str, Any], *, strict: bool) -> str | None:
        if not isinstance(part, dict):
            return NO_SCHEMA
        text = _key(part)
        if '"$ref": ' in text:
            part = {**shared, **part}
            text = _key(part)
        key = (text, strict)
        if key not in self._problems:
            self._num_left -= len(text) + _CHECK_CHARACTERS
            self._problems[key] = self._compile(part, strict) if self._num_left >= 0 else None
        return self._problems[key]

    def _compile(self, part: dict[str, Any], strict: bool) -> str | None:
        try:
            repeated = counts_repeated_names(part)
            plain = PlainSchema(
                part, is_rounded(part), may_have_others=True, counts_repeated=repeated
            )
            grammars = value_grammars(plain, "", strict=strict)
            build_matcher(self._tokenizer, document(grammars))
        except GrammarUnusable as problem:
            return str(problem)
        except OutputFormatInvalid as invalid:
            return invalid.problem
        return None


def _key(schema: dict[str, Any]) -> str:
    return json.dumps(schema, ensure_ascii=False, default=repr)


def _refers_outside(part: dict[str, Any], schema: dict[str, Any]) -> bool:
    """Whether a part refers to something in the schema that it does not have when it is alone."""
    references = _OUTER_REFERENCE.findall(_key(part))
    return any(find_reference(each, schema) is not None for each in references)


def _check_tool(tool: CallableTool, tokenizer: LLTokenizer) -> LLMatcher:
    return _check(document(tool_grammars(tool)), tokenizer, tool.field, tool_schema(tool).schema)


def _has_any(tool: CallableTool, words: Sequence[str]) -> bool:
    """Whether a schema has one of these keywords, which alone can be slow to find out."""
    return bool(words) and any(f'"{word}": ' in _key(tool_schema(tool).schema) for word in words)


def _is_enforced(tool: CallableTool, tokenizer: LLTokenizer) -> bool:
    """Whether all of a schema can be enforced, as that of a strict tool must be."""
    try:
        return not _check_tool(replace(tool, strict=True), tokenizer).get_grammar_warnings()
    except OutputFormatInvalid:
        return False


def _check(
    grammar: str, tokenizer: LLTokenizer, field: str, schema: dict[str, Any] | None = None
) -> LLMatcher:
    try:
        matcher = build_matcher(tokenizer, grammar)
        matcher.compute_bitmask()
        check_usable(matcher)
    except GrammarUnusable as problem:
        raise OutputFormatInvalid(field, str(problem), schema) from None
    return matcher


def _field(spec: OutputSpec) -> str:
    return spec.form.field if spec.form is not None else "tools"


def _error_result(
    invalid: OutputFormatInvalid, problem: str, tokenizer: LLTokenizer
) -> dict[str, str]:
    # The message starts with the location of the error, then repeats the grammar.
    problem = " ".join(problem.split())[:_MAX_PROBLEM_CHARACTERS]
    if invalid.schema is None:
        return {"field": invalid.field, "problem": problem}

    (pointer,) = _SchemaParts(tokenizer).faulty(invalid.schema, strict=True, limit=1)
    return {"field": invalid.field, "problem": problem, "pointer": pointer}


def _decode(kind: Any, value: Any) -> Any:
    """A value of a type of `spec.py` from what `asdict` and JSON made of it."""
    if isinstance(kind, UnionType):
        kind = get_args(kind)[0]
    if value is None:
        return None
    if get_origin(kind) is tuple:
        return tuple(_decode(get_args(kind)[0], each) for each in value)
    if isinstance(kind, type) and is_dataclass(kind):
        kinds = _field_types(kind)
        return kind(**{name: _decode(kinds[name], each) for name, each in value.items()})
    return OutputFormatKind(value) if kind is OutputFormatKind else value


_field_types = lru_cache(get_type_hints)


class _ByteTokenizer:
    """A vocabulary of 256 bytes and the control tokens of a model, with their ids."""

    def __init__(self, size: int, control: dict[str, int], ends: list[int]) -> None:
        self.eos_token_id = ends[0] if ends else 0
        self.bos_token_id = None
        self.tokens = [b""] * size
        for text, token in control.items():
            self.tokens[token] = b"\xff" + text.encode()
        used = {*control.values(), *ends}
        self._ids = [token for token in range(size) if token not in used][:256]
        for byte, token in enumerate(self._ids):
            self.tokens[token] = bytes([byte])

    def __call__(self, text: bytes | str) -> list[int]:
        data = text if isinstance(text, bytes) else text.encode()
        return [self._ids[byte] for byte in data]


@lru_cache(maxsize=_MAX_CACHED_TOKENIZERS)
def _tokenizer(vocabulary: str) -> LLTokenizer:
    return byte_tokenizer(**json.loads(vocabulary))


def byte_tokenizer(size: int, control: dict[str, int], ends: list[int]) -> LLTokenizer:
    """Create a tokenizer for single bytes and control tokens."""
    wrapper = TokenizerWrapper(_ByteTokenizer(size, control, ends))
    return LLTokenizer(wrapper, n_vocab=size, eos_token=ends or None)
