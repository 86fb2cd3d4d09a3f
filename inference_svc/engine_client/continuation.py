"""The rest of a constrained output that has begun, as a grammar of its own, since engines begin a
grammar at the first new token.

Choices have one, regular expressions (`regex_tree`), and JSON with the keywords that all engines
enforce (`form_schema`). It may be narrower than the format: names of properties in the order of the
schema, and no others.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from inference_svc.engine_client.form_schema import unenforced_part
from inference_svc.output_format import OutputFormat, OutputFormatKind
from inference_svc.structured_output.derivative import (
    EMPTY,
    NOTHING,
    Character,
    Language,
    Node,
    Repeated,
    Rule,
    Text,
    chain,
    choice,
    optional,
)
from inference_svc.structured_output.regex_tree import regex_tree

MAX_TEXT: Final = 8 * 1024
"""Characters of an output that goes on: each takes about 30 µs."""
_MAX_GRAMMAR: Final = 64 * 1024
_MAX_PROPERTIES: Final = 64
_SPACE: Final = Rule("ws")
_DIGITS: Final = chain(Character((("0", "9"),)), Repeated(Character((("0", "9"),))))
_HEX: Final = Character((("0", "9"), ("A", "F"), ("a", "f")))
_ESCAPED: Final = choice(
    *(Text(each) for each in '"\\/bfnrt'), chain(Text("u"), _HEX, _HEX, _HEX, _HEX)
)
_PLAIN: Final = Character((("\0", "\x1f"), ('"', '"'), ("\\", "\\")), is_negated=True)
_STRING: Final = chain(Text('"'), Repeated(choice(_PLAIN, chain(Text("\\"), _ESCAPED))), Text('"'))
_INTEGER: Final = chain(
    optional(Text("-")),
    choice(Text("0"), chain(Character((("1", "9"),)), Repeated(Character((("0", "9"),))))),
)
_EXPONENT: Final = chain(
    choice(Text("e"), Text("E")), optional(choice(Text("+"), Text("-"))), _DIGITS
)
_NUMBER: Final = chain(_INTEGER, optional(chain(Text("."), _DIGITS)), optional(_EXPONENT))


def _listed(begin: str, item: Node, end: str) -> Node:
    """Items between brackets, with commas between them."""
    more = Repeated(chain(Text(","), _SPACE, item, _SPACE))
    return chain(Text(begin), _SPACE, optional(chain(item, _SPACE, more)), Text(end))


def _member(name: Node, value: Node) -> Node:
    return chain(name, _SPACE, Text(":"), _SPACE, value)


_JSON: Final[Mapping[str, Node]] = {
    "ws": Repeated(Character(((" ", " "), ("\t", "\n"), ("\r", "\r")))),
    "string": _STRING,
    "integer": _INTEGER,
    "number": _NUMBER,
    "boolean": choice(Text("true"), Text("false")),
    "null": Text("null"),
    "array": _listed("[", Rule("value"), "]"),
    "object": _listed("{", _member(Rule("string"), Rule("value")), "}"),
    "value": choice(
        *map(Rule, ("object", "array", "string", "number", "boolean", "null")),
    ),
}


def may_continue(form: OutputFormat) -> bool:
    """Whether the rest of an output may be written at all."""
    match form.kind:
        case OutputFormatKind.JSON_SCHEMA:
            return not unenforced_part(form.text)
        case OutputFormatKind.REGEX:
            return regex_tree(form.text) is not None
    return form.kind is OutputFormatKind.CHOICES


def continuation(form: OutputFormat, text: str) -> str | None:
    """The GBNF of what may follow a text that begins an output; empty if nothing may. None if it
    cannot be written. Takes up to a second."""
    if len(text) > MAX_TEXT or not may_continue(form):
        return None
    rules = dict(_JSON)
    try:
        root = _root(form, rules)
        language = Language(rules)
        rest = NOTHING if root is None else language.after(root, text)
        if rest == NOTHING:
            return None
        return "" if rest == EMPTY else language.gbnf(rest, _MAX_GRAMMAR)
    except RecursionError:  # a schema that is only a reference to itself
        return None


def _root(form: OutputFormat, rules: dict[str, Node]) -> Node | None:
    match form.kind:
        case OutputFormatKind.CHOICES:
            return choice(*map(Text, json.loads(form.text)))
        case OutputFormatKind.JSON_SCHEMA:
            value = _SchemaReader(json.loads(form.text), rules).root()
            return None if value is None else chain(_SPACE, value)
        case OutputFormatKind.REGEX:
            return regex_tree(form.text)
    return None


class _SchemaReader:
    """Reads a schema that has no other keywords than those of `form_schema`. Its definitions become
    `rules`."""

    def __init__(self, schema: dict[str, Any], rules: dict[str, Node]) -> None:
        self._schema = schema
        self._rules = rules
        self._names: dict[str, str] = {}

    def root(self) -> Node | None:
        return self._read(self._schema)

    def _read(self, schema: dict[str, Any]) -> Node:
        if "$ref" in schema:
            return self._refer(schema["$ref"])
        if "anyOf" in schema:
            return choice(*map(self._read, schema["anyOf"]))
        if "const" in schema:
            return _literal(schema["const"])
        if "enum" in schema:
            return choice(*map(_literal, schema["enum"]))
        if "type" not in schema:
            is_any = schema.keys().isdisjoint(("properties", "items", "additionalProperties"))
            return Rule("value") if is_any else NOTHING
        types = schema["type"]
        return choice(*(self._type(each, schema) for each in _listed_types(types)))

    def _refer(self, reference: str) -> Node:
        if reference not in self._names:
            name = self._names[reference] = f"definition{len(self._names)}"
            group, key = reference.split("/")[1:]
            self._rules[name] = self._read(self._schema[group][key])
        return Rule(self._names[reference])

    def _type(self, name: str, schema: dict[str, Any]) -> Node:
        if name == "array" and "items" in schema:
            return _listed("[", self._read(schema["items"]), "]")
        if name != "object":
            return Rule(name)
        properties = schema.get("properties", {})
        if properties:
            return self._object(properties, frozenset(schema.get("required", ())))
        match schema.get("additionalProperties", True):
            case True:
                return Rule("object")
            case False:
                return chain(Text("{"), _SPACE, Text("}"))
            case other:
                return _listed("{", _member(Rule("string"), self._read(other)), "}")

    def _object(self, properties: Mapping[str, Any], required: frozenset[str]) -> Node:
        """Its properties in their order, of which those that are not required may be missing."""
        if len(properties) > _MAX_PROPERTIES:
            return NOTHING
        members = {
            name: chain(_member(_literal(name), self._read(each)), _SPACE)
            for name, each in properties.items()
        }
        return chain(Text("{"), _SPACE, choice(*_firsts(members, required)), Text("}"))


def _firsts(members: Mapping[str, Node], required: frozenset[str]) -> Iterator[Node]:
    """The members from each that may be the first one on."""
    names = list(members)
    for index, name in enumerate(names):
        others = (_following(members[each], each in required) for each in names[index + 1 :])
        yield chain(members[name], *others)
        if name in required:
            return
    yield EMPTY


def _following(member: Node, is_required: bool) -> Node:
    after_comma = chain(Text(","), _SPACE, member)
    return after_comma if is_required else optional(after_comma)


def _literal(value: Any) -> Node:
    """A value, with spaces inside of it or without."""
    texts = (json.dumps(value, ensure_ascii=False, separators=each) for each in _SEPARATORS)
    return choice(*map(Text, texts))


_SEPARATORS: Final = ((", ", ": "), (",", ":"))


def _listed_types(types: str | Iterable[str]) -> Iterable[str]:
    return [types] if isinstance(types, str) else types
