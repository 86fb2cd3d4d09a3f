"""The rest of an output that has begun within a format, as a grammar in GBNF."""

import json
import re
from typing import Any, Final

import jsonschema  # type: ignore[import-untyped]  # it has no types
import pytest
from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from inference_svc.engine_client.continuation import MAX_TEXT, continuation
from inference_svc.output_format import OutputFormat, OutputFormatKind
from inference_svc.structured_output.compile_job import byte_tokenizer
from inference_svc.structured_output.matcher import build_matcher
from tests.support.grammar_walk import END, JSON_ENDINGS, SIZE, Walk

TREE: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "next": {"$ref": "#/$defs/tree"}},
    "additionalProperties": False,
}
RECORD: Final[dict[str, Any]] = {
    "type": "object",
    "title": "A record",
    "properties": {
        "city": {"type": "string"},
        "size": {"type": ["integer", "null"]},
        "tags": {"type": "array", "items": {"enum": ["a", "b c", 1, None]}},
        "value": {"anyOf": [{"type": "number"}, {"const": {"x": [1, "y"]}}]},
        "tree": {"$ref": "#/$defs/tree"},
        "any": {},
        "counts": {"type": "object", "additionalProperties": {"type": "boolean"}},
    },
    "required": ["city", "value"],
    "additionalProperties": False,
    "$defs": {"tree": TREE},
}
DOCUMENTS: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "all": (
        RECORD,
        ' {"city": "Zürich \\"\\u00e9\\n", "size": -120, "tags": ["a", "b c", 1, null], "value": '
        '{"x": [1, "y"]}, "tree": {"name": "", "next": {"next": {}}}, "any": [{"a": [-0.5e+3]}, '
        '"", true], "counts": {"one": true, "two": false}}',
    ),
    "few": (RECORD, '{\n  "city": "",\n  "value": 10.25\n}'),
    "compact": (RECORD, '{"city":"x","size":null,"value":{"x":[1,"y"]},"counts":{}}'),
    "any object": ({"type": "object"}, '{"a": {"b": []}, "c": 1e5}'),
    "any value": ({}, '["a", {"b": null}, 0]'),
    "no required": (TREE | {"$defs": {"tree": TREE}}, '{"next": {"name": "a"}}'),
    "no properties": ({"type": "object", "additionalProperties": False}, "{}"),
    "a scalar": ({"enum": ["yes", "yesterday", 12]}, '"yesterday"'),
}


def rest_of(schema: Any, text: str) -> str | None:
    form = OutputFormat(OutputFormatKind.JSON_SCHEMA, json.dumps(schema), "f")
    return continuation(form, text)


def lark(gbnf: str) -> str:
    """The document of llguidance, which engines make of it."""
    return json.dumps({"grammars": [{"lark_grammar": gbnf_to_lark(gbnf)}]})


def accepts(gbnf: str, text: str) -> bool:
    """Whether a text is one of the grammar, by llguidance."""
    matcher: LLMatcher = build_matcher(byte_tokenizer(SIZE, {}, [END]), lark(gbnf))
    tokens = list(text.encode())
    return matcher.validate_tokens(tokens) == len(tokens) and (
        matcher.consume_tokens(tokens) and matcher.is_accepting()
    )


@pytest.mark.parametrize(("schema", "document"), DOCUMENTS.values(), ids=DOCUMENTS)
def test_each_rest_of_a_document_may_follow_what_is_before_it(
    schema: dict[str, Any], document: str
) -> None:
    for length in range(0, len(document), 1 + len(document) // 60):
        rest = rest_of(schema, document[:length])
        assert rest
        assert accepts(rest, document[length:]), (document[:length], rest)
        assert not accepts(rest, document[length:] + "x")
    assert rest_of(schema, document) == ""


@pytest.mark.parametrize("seed", range(4))
def test_what_follows_makes_a_document_of_the_schema(seed: int) -> None:
    """Whatever of the rest is written."""
    schema, document = DOCUMENTS["all"]
    walk = Walk(JSON_ENDINGS, {}, seed)
    for length in range(seed, len(document), 29):
        rest = rest_of(schema, document[:length])
        assert rest is not None
        whole = document[:length] + walk.text(lark(rest))
        jsonschema.Draft202012Validator(schema).validate(json.loads(whole))


def test_the_rest_of_choices_is_that_of_those_that_begin_so() -> None:
    form = OutputFormat(OutputFormatKind.CHOICES, '["ab", "abc", "x\\"\\n", "été"]', "f")
    rests = {text: continuation(form, text) for text in ("", "a", "ab", "x", "ét", "abc", "b")}
    assert rests == {
        "": 'root ::= ("ab" | "abc" | "x\\"\\x0A" | "été")',
        "a": 'root ::= ("b" | "bc")',
        "ab": 'root ::= ("" | "c")',
        "x": 'root ::= "\\"\\x0A"',
        "ét": 'root ::= "é"',
        "abc": "",
        "b": None,
    }
    rest = continuation(form, "ab")
    assert rest is not None
    assert [accepts(rest, text) for text in ("", "c", "d")] == [True, True, False]


REGEXES: Final = {
    "a date": (r"[0-9]{4}-(0[1-9]|1[0-2])-\d{2}", "2026-11-30", "2026-13"),
    "words": (r"(?:[A-Z]\w*)(, [A-Z]\w*)*\.", "Anna, Bob, Cy.", "anna"),
    "an address": (r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+", "a.b+c@d-e.org", "a@@"),
    "characters of all scripts": (r"[^\x00-\x1f\"]{1,20}|\u00e9", "Größe 日本 🙂", "\n"),
    "lines": (r"(?P<key>\w+): \S+?(\n\s*\w+: .*)*", "a: 1.5é\n b: x y", "a:b"),
}


@pytest.mark.parametrize(("pattern", "text", "wrong"), REGEXES.values(), ids=REGEXES)
def test_each_rest_of_a_match_may_follow_what_is_before_it(
    pattern: str, text: str, wrong: str
) -> None:
    form = OutputFormat(OutputFormatKind.REGEX, pattern, "f")
    for length in range(len(text)):
        rest = continuation(form, text[:length])
        assert rest
        assert accepts(rest, text[length:]), (text[:length], rest)
        assert not accepts(rest, text[length:] + "\r")
    assert continuation(form, text) is not None
    assert continuation(form, wrong) is None


def test_the_rest_of_a_complete_match_is_empty() -> None:
    form = OutputFormat(OutputFormatKind.REGEX, "yes|no", "f")
    assert continuation(form, "yes") == ""


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("pattern", "text", "_"), REGEXES.values(), ids=REGEXES)
def test_what_follows_makes_a_match(pattern: str, text: str, _: str, seed: int) -> None:
    """Whatever of the rest is written, by Python's own expressions."""
    walk = Walk(({"."},), {}, seed)
    form = OutputFormat(OutputFormatKind.REGEX, pattern, "f")
    for length in range(seed % 2, len(text), 3):
        rest = continuation(form, text[:length])
        assert rest is not None
        assert re.fullmatch(pattern, text[:length] + walk.text(lark(rest)))


NONE: Final[dict[str, tuple[OutputFormatKind, Any, str]]] = {
    "a regular expression with anchors": (OutputFormatKind.REGEX, "^a+$", "a"),
    "a regular expression with a boundary": (OutputFormatKind.REGEX, r"a\b.*", "a"),
    "a regular expression with a category": (OutputFormatKind.REGEX, r"\p{L}+", "a"),
    "a regular expression with flags": (OutputFormatKind.REGEX, "(?i)a+", "a"),
    "a regular expression with a lookahead": (OutputFormatKind.REGEX, "(?=a)a+", "a"),
    "a regular expression with a reference": (OutputFormatKind.REGEX, r"(a)\1", "a"),
    "a regular expression with a possessive part": (OutputFormatKind.REGEX, "a++", "a"),
    "a regular expression with a nested class": (OutputFormatKind.REGEX, "[a[:digit:]]+", "a"),
    "a regular expression with the rest of a set": (OutputFormatKind.REGEX, r"[^\d]+", "a"),
    "a regular expression with a wrong range": (OutputFormatKind.REGEX, "[z-a]+", "a"),
    "a regular expression that is not closed": (OutputFormatKind.REGEX, "(a", "a"),
    "a regular expression with too many copies": (OutputFormatKind.REGEX, "a{101}", "a"),
    "a regular expression that is too deep": (
        OutputFormatKind.REGEX,
        "(" * 51 + "a" + ")" * 51,
        "",
    ),
    "a regular expression that is too long": (OutputFormatKind.REGEX, "a" * 4097, "a"),
    "a text that does not match": (OutputFormatKind.REGEX, "a+", "b"),
    "a regular expression with copies of copies": (OutputFormatKind.REGEX, "(a{50}){50}", "a"),
    "a regular expression with parts that double each other": (
        OutputFormatKind.REGEX,
        "(" * 49 + "a+" + ")+" * 49,
        "a",
    ),
    "a rest that takes too long": (OutputFormatKind.REGEX, "(a|aa){1,100}", "a" * 90),
    "a rest with many choices in each other": (OutputFormatKind.REGEX, "(a?){0,100}", "a" * 99),
    "a rest with long chains in one character": (OutputFormatKind.REGEX, "a?" * 2000, "a" * 999),
    "a grammar in Lark": (OutputFormatKind.LARK, 'start: "ab"', "a"),
    "a grammar in GBNF": (OutputFormatKind.GBNF, 'root ::= "ab"', "a"),
    "a keyword that engines ignore": (OutputFormatKind.JSON_SCHEMA, {"minimum": 1}, "1"),
    "another type": (OutputFormatKind.JSON_SCHEMA, {"type": "string"}, "1"),
    "properties in another order": (
        OutputFormatKind.JSON_SCHEMA,
        RECORD,
        '{"value": 1, "city": ',
    ),
    "properties that are not named": (OutputFormatKind.JSON_SCHEMA, RECORD, '{"town": '),
    "properties without a type": (
        OutputFormatKind.JSON_SCHEMA,
        {"properties": {"a": {"type": "null"}}},
        "{",
    ),
    "too long a text": (OutputFormatKind.JSON_SCHEMA, {}, '"' + "x" * MAX_TEXT),
    "too many properties": (
        OutputFormatKind.JSON_SCHEMA,
        {"type": "object", "properties": {f"p{number}": {} for number in range(65)}},
        "{",
    ),
    "too large a grammar": (
        OutputFormatKind.JSON_SCHEMA,
        {"type": "object", "properties": {f"p{number}" * 40: {} for number in range(60)}},
        "{",
    ),
    "a reference to itself": (
        OutputFormatKind.JSON_SCHEMA,
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        "{",
    ),
}


@pytest.mark.parametrize("case", NONE.values(), ids=NONE)
def test_a_rest_that_cannot_be_written_is_none(case: tuple[OutputFormatKind, Any, str]) -> None:
    kind, form, text = case
    written = form if isinstance(form, str) else json.dumps(form)
    assert continuation(OutputFormat(kind, written, "f"), text) is None
