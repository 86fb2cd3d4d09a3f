"""Grammar rules of arguments that are not a JSON object (`ArgumentSyntax`), and of JSON values with
numbers that llguidance would round, from JSON schemas."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from inference_svc.structured_output.free_text import (
    ANYTHING,
    ControlTokens,
    GrammarMarkers,
    escape,
)
from inference_svc.structured_output.numbers import is_narrowed, is_rounded, write_json
from inference_svc.structured_output.plain_schema import PlainSchema
from inference_svc.structured_output.rule_set import RuleSet, schema_key, write_text
from inference_svc.structured_output.schemas import (
    Alternative,
    Report,
    alternatives,
    differ_in_types,
    members,
    plain_object,
    required,
)
from inference_svc.structured_output.spec import SPACE, ArgumentSyntax
from inference_svc.structured_output.texts import (
    number_option_terms,
    scalar_terms,
    string_option_terms,
    write_literal,
)

MEMBER_NAME = "the member name"
"""What begins the report of a member that has no place in a syntax."""
_NO_JSON = r"~/\s*[\[{](?s:.*)/"
_SINGLE_QUOTED = r"/'(\\['\\nrt]|[^'\\\x00-\x1f])*'/"
_JSON_STRING = r'/"(\\["\\bfnrt]|[^"\\\x00-\x1f])*"/'
_JSON = ArgumentSyntax(begin="", key_end=": ", between=", ", quotes=None, quotes_keys=True)
_MAX_DEPTH = 6
_ANY_KIND = ("string", "number", "boolean", "null", "object", "array")
_MEMBER_WORDS = frozenset(
    ("type", "properties", "required", "additionalProperties", "$defs", "definitions")
)
_VALUES = {"boolean": (True, False), "null": (None,)}


class _Place(NamedTuple):
    """Where a value is: in which document, written how, and in how many others."""

    root: dict[str, Any]
    syntax: ArgumentSyntax
    scope: int  # the syntax outside of all others
    depth: int = 0


_Write = Callable[[str], str]
"""Writes an item after a separator."""


class ArgumentRules:
    """Collects the rules and the grammars of JSON values of all tools; equal ones are shared."""

    def __init__(self, control: ControlTokens) -> None:
        self._control = control
        self._strict = True
        self._is_rounded = False
        self._reported: list[str] = []
        self._report: Report = self._reported.append
        self._marker = GrammarMarkers(control).write
        self._rules = RuleSet()
        self._num_documents = 0
        self._values: dict[tuple[str, int, str, bool, int, int], tuple[str, list[str]]] = {}
        """Rules of values, and what was reported of them."""

    @property
    def lines(self) -> Iterable[str]:
        return self._rules.lines

    @property
    def schemas(self) -> Mapping[str, tuple[dict[str, Any], bool]]:
        """The schemas of JSON values, and whether they are strict, by the names of grammars."""
        return self._rules.schemas

    def arguments(
        self,
        plain: PlainSchema,
        syntax: ArgumentSyntax | None,
        report: Report,
        *,
        strict: bool,
    ) -> str:
        """Add the arguments of a tool; returns their reference. Without a syntax, they are JSON:
        if the schema only describes members, each in a rule, since equal ones are then shared.
        `report` receives what the rules do not enforce."""
        self._begin(plain, report, strict=strict)
        schema = plain.schema
        if syntax is None:
            top = self._described(schema)
            if top is None:
                return self._json(schema, schema)
            return f'"{{" {self._members(top, _Place(schema, _JSON, id(_JSON)))} "}}"'
        at = _Place(schema, syntax, id(syntax))
        texts, options = [], alternatives(schema, schema, self._report)
        tells_types = "{" in syntax.key_end or not syntax.has_bare_strings
        levels = 0 if tells_types else _MAX_DEPTH if syntax.item else 1
        if differ_in_types(options, schema, levels):
            self._report("'anyOf' of all arguments")
        for option in options:
            if option.kind in ("", "object"):
                if option.combining or option.values is not None:
                    self._report(f"'{option.combining or 'enum'}' of all arguments")
                texts.append(self._members(plain_object(option.schema), at))
        return self._rules.rule(" | ".join(dict.fromkeys(texts)))

    def value(self, plain: PlainSchema, report: Report, *, strict: bool = True) -> str:
        """Add a JSON value; returns its reference."""
        self._begin(plain, report, strict=strict)
        return self._json(plain.schema, plain.schema)

    def _begin(self, plain: PlainSchema, report: Report, *, strict: bool) -> None:
        def note(subject: str) -> None:
            self._reported.append(subject)
            report(subject)

        self._report = note
        self._strict = strict
        self._num_documents += 1
        self._is_rounded = plain.is_rounded

    def _described(self, schema: dict[str, Any]) -> dict[str, Any] | None:
        """The schema of an object that only describes its members, and allows no others."""
        option = Alternative("object", schema)
        if schema.get("type") != "object" or not schema.keys() <= _MEMBER_WORDS:
            problems: list[str] = []
            options = alternatives(schema, schema, problems.append)
            if problems or len(options) != 1 or options[0].kind != "object":
                return None
            option = options[0]
            if option.values is not None or option.combining:
                return None
        top = option.schema
        has_others = top.get("additionalProperties", not members(top)) is not False
        return None if has_others else top

    def _members(self, schema: dict[str, Any], at: _Place, *, needs_one: bool = False) -> str:
        """Add the members of an object in the order of the schema."""
        syntax = at.syntax
        known, needed = members(schema), required(schema)
        if any(known[key] is False for key in needed):
            self._report("a required member that nothing matches")
        keys = sorted(known) if syntax.sorts_keys else list(known)
        items: list[tuple[_Write, str]] = [
            (partial(self._member, written, key, known[key], at), "" if key in needed else "?")
            for key in keys
            if known[key] is not False and (written := self._key(key, syntax)) is not None
        ]
        extra = schema.get("additionalProperties", not known)
        # Tags that nest repeat the key at the end, which only a known one can.
        has_extra = not syntax.item and (not known or "additionalProperties" in schema)
        if has_extra and extra is not False:
            inner = extra if isinstance(extra, dict) else {}
            items.append((partial(self._extra, keys, inner, at), "*"))
        if syntax.between or needs_one:
            return self._separated(items, syntax.between, needs_one=needs_one)
        return self._rules.rule(" ".join(write("") + times for write, times in items))

    def _key(self, key: str, syntax: ArgumentSyntax) -> str | None:
        """How a key is written, if it can be."""
        if syntax.quotes_keys:
            return write_text(key)
        if re.fullmatch(syntax.key, key):
            return key
        if syntax.quotes_other_keys:
            return write_text(key)
        self._report(f"{MEMBER_NAME} {write_text(key)}")
        return None

    def _separated(
        self, items: "list[tuple[_Write, str]]", between: str, *, needs_one: bool
    ) -> str:
        """Add a sequence with separators. Each item has "", "?" or "*", as in a grammar."""
        later = [write(between) + times for write, times in items]
        num_optional = next((i for i, (_, times) in enumerate(items) if not times), len(items))
        begins, more = ([] if needs_one else ['""']), ""
        if num_optional < len(items):
            more = " ".join(later[num_optional:])
            begins = [" ".join([items[num_optional][0](""), *later[num_optional + 1 :]])]
        # Any item before the first necessary one may be the first that is written.
        for number in reversed(range(num_optional)):
            write, times = items[number]
            following = self._rules.rule(f"{later[number] if times == '*' else ''} {more}")
            begins.append(f"{write('')} {following}")
            more = f"{later[number]} {following}"
        return self._rules.rule(" | ".join(begins or ['"{}"']))

    def _member(self, written: str, key: str, schema: Any, at: _Place, before: str) -> str:
        return self._keyed(before + at.syntax.begin + written, key, schema, at)

    def _extra(self, keys: Sequence[str], schema: dict[str, Any], at: _Place, before: str) -> str:
        """A member with another key."""
        is_quoted = at.syntax.quotes_keys
        taken = "|".join(escape(write_text(key) if is_quoted else key) for key in keys)
        others = f" & ~/{taken}/" if keys else ""
        body = f"{_JSON_STRING if is_quoted else f'/{at.syntax.extra_key}/'}{others}"
        name = self._rules.terminal(body)
        begin = self._marker(before + at.syntax.begin)
        return f"({begin} {name} {self._keyed('', '', schema, at)})"

    def _keyed(self, written: str, key: str, schema: Any, at: _Place) -> str:
        """What is written up to a key, its value and its end. If the key's end has the type, each
        type is an alternative."""
        key_end = at.syntax.key_end
        end, has_key, rest = at.syntax.end.partition("{key}")
        closing = self._marker(key + rest) if has_key else ""
        if "{" not in key_end:
            key_end, gap, opening = key_end.partition(SPACE)
            value = self._known_value(schema, gap + opening, end, at)
            return f"({self._marker(written + key_end)} {value} {closing})"
        texts = (
            f"{self._marker(written + _key_end(key_end, option.kind))}"
            f" {self._value([option], end, at)}"
            for option in _typed(self._options(schema, at.root))
        )
        return f"(({' | '.join(texts)}) {closing})"

    def _known_value(self, schema: Any, opening: str, end: str, at: _Place) -> str:
        """The rule of a value after `opening`, which equal schemas share."""
        if at.syntax is _JSON:
            return self._json(schema if isinstance(schema, dict) else {}, at.root)
        key = schema_key(schema)
        document = self._num_documents if "$ref" in key else 0
        known = (key, document, end, self._strict, at.depth, at.scope)
        if known in self._values:
            rule, reported = self._values[known]
            for subject in reported:
                self._report(subject)
            return rule
        num_reported = len(self._reported)
        value = self._value(self._options(schema, at.root), end, at)
        rule = self._rules.rule(f"{self._marker(opening)} {value}") if opening else value
        self._values[known] = rule, list(dict.fromkeys(self._reported[num_reported:]))
        return rule

    def _options(self, schema: Any, root: dict[str, Any]) -> list[Alternative]:
        options = alternatives(schema, root, self._report)
        if not options:
            self._report("a schema that nothing matches")
        return options or [Alternative("", {})]

    def _value(self, options: list[Alternative], end: str, at: _Place) -> str:
        """The rule of a value and its `end`."""
        if at.syntax.has_bare_strings:
            texts = self._unquoted(options, end, at)
        else:
            closing = self._marker(end)
            texts = [f"{self._quoted(option, at)} {closing}" for option in _typed(options)]
        return self._rules.rule(" | ".join(dict.fromkeys(texts)))

    def _unquoted(self, options: list[Alternative], end: str, at: _Place) -> list[str]:
        """A value whose strings are not quoted. Strings and other types without brackets are one
        terminal, because the lexer could not tell them apart."""
        strings = [option for option in options if option.kind in ("", "string")]
        others = [option for option in options if option.kind in ("object", "array")]
        scalars = [option for option in options if option not in strings and option not in others]
        texts: list[str] = []
        if not strings:
            others = options
        elif len(options) == 1 and strings[0].values and not strings[0].schema:
            texts.append(self._listed(strings[0].values, end, at.syntax))
        else:
            terms = [_NO_JSON] if others and all(option.kind for option in strings) else []
            if all(option.kind for option in strings):
                terms += scalar_terms(strings, scalars, self._report)
            texts += self._texts(at.syntax, end, terms)
        if at.syntax.item and differ_in_types(others, at.root, _MAX_DEPTH):
            at = at._replace(syntax=replace(at.syntax, item=None))  # in JSON, which tells types
        for option in others:
            value = self._other(option, at)
            if option.kind in ("object", "array") and at.syntax.item:
                texts.append(f"{value} {self._marker(end)}")
            else:
                texts.append(f"{self._marker(SPACE)} {value} {self._marker(SPACE + end)}")
        return texts

    def _listed(self, values: Sequence[str], end: str, syntax: ArgumentSyntax) -> str:
        """One of some strings. A line break at the start of one would be taken for padding."""
        stops = [text for text in (end.partition(SPACE)[0], *syntax.excludes) if text]
        if any(stop in value for value in values for stop in stops):
            self._report("a value of 'enum' with a marker of calls in it")
        closing, written = self._marker(end), " | ".join(map(write_text, values))
        if not syntax.padded:
            return f"({written}) {closing}"
        bare = " | ".join(write_text(each) for each in values if not each.startswith("\n"))
        padded = f'"\\n" ({written}) "\\n" {closing}'
        return f"({padded} | ({bare}) {closing})" if bare else padded

    def _texts(self, syntax: ArgumentSyntax, end: str, limits: list[str]) -> Iterator[str]:
        """A string until `end`, and one in quotes."""
        terms = list(limits)
        for begin, quote in syntax.quotes or ():
            yield f"{self._marker(begin)} {self._until(quote, limits)} {self._marker(end)}"
            terms.append(f"~/{escape(begin)}(?s:.*)/")
        if syntax.padded and limits:
            excludes = (*syntax.excludes, end.partition(SPACE)[0])
            yield f'"\\n" {self._until(f"{chr(10)}{end}", limits, excludes)}'
            terms.append(r"~/\n(?s:.*)/")
        yield self._until(end, terms, syntax.excludes)

    def _until(self, end: str, terms: list[str], others: Sequence[str] = ()) -> str:
        """Text that fulfils all terms, and its end. A control token ends it by itself."""
        end, gap, _ = end.partition(SPACE)
        excludes = [text for text in (end, *others) if not self._has_control(text)]
        excluded = f"~/(?s:.*)({'|'.join(map(escape, excludes))})(?s:.*)/"
        body = " & ".join([ANYTHING, *([excluded] if excludes else []), *terms])
        plain = self._rules.terminal(body)
        if self._has_control(end):
            return f"{plain} {self._marker(end + gap)}"
        ended = self._rules.name(f"ended {body} {end}")
        self._rules.add(f"{ended}[lazy]: {plain} {write_text(end)}")
        return f"{ended} {self._marker(gap)}"

    def _quoted(self, option: Alternative, at: _Place) -> str:
        quotes = at.syntax.quotes
        if option.kind != "string":
            return self._other(option, at)
        if quotes is None:
            text = self._json(option.whole, at.root)
            if option.values is not None or option.schema or not at.syntax.words:
                return text
            self._rules.add(f"SINGLE_QUOTED: {_SINGLE_QUOTED}")
            return f"({text} | SINGLE_QUOTED)"
        texts = (self._between(begin, end, option) for begin, end in quotes)
        return f"({' | '.join(texts)})"

    def _between(self, begin: str, end: str, option: Alternative) -> str:
        """A string between quotes."""
        if any(end in value for value in option.values or ()):
            self._report("a value of 'enum' with a marker of calls in it")
        terms = string_option_terms(option, self._report)
        return f"{self._marker(begin)} {self._until(end, terms)}"

    def _other(self, option: Alternative, at: _Place) -> str:
        """A value that is not a string, without its end."""
        syntax = at.syntax
        has_syntax = syntax.brackets or syntax.item is not None
        if has_syntax and at.depth < _MAX_DEPTH and _is_described(option, syntax):
            inner = replace(syntax, padded=False)
            if syntax.quotes is None:
                inner = replace(inner, key_end=": ", quotes_keys=True)
            write = self._object if option.kind == "object" else self._list
            return write(option.schema, _Place(at.root, inner, at.scope, at.depth + 1))
        text = self._json(option.whole, at.root)
        values = option.values if option.values is not None else _VALUES.get(option.kind, ())
        words = [syntax.words[each] for each in map(write_json, values) if each in syntax.words]
        return f"({' | '.join([text, *map(write_text, words)])})" if words else text

    def _object(self, schema: dict[str, Any], at: _Place) -> str:
        if at.syntax.item:
            inside = self._members(schema, at, needs_one=True)
            return inside if required(schema) else f'({inside} | "{{}}")'
        return f'"{{" {self._members(schema, at)} "}}"'

    def _list(self, schema: dict[str, Any], at: _Place) -> str:
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        options = alternatives(schema.get("items", {}), at.root, self._report)
        if not options:
            most = 0
        if most is not None and most < least:
            self._report("'minItems' that nothing matches")
        if most == 0:
            return '"[" "]"'
        if at.syntax.item:
            begin, end = at.syntax.item
            item = f"{self._marker(begin)} {self._value(options, end, at)}"
            filled = f"({item}){_times(max(least, 1), most)}"
            return filled if least else f'({filled} | "[]")'
        item, between = self._value(options, "", at), self._marker(at.syntax.between)
        more = f"({between} {item}){_times(max(least - 1, 0), most, taken=1)}"
        return f'"[" ({item} {more}){"" if least else "?"} "]"'

    def _json(self, schema: dict[str, Any], root: dict[str, Any]) -> str:
        """Add a JSON value; returns the name of its rule."""
        if self._is_rounded and (
            is_rounded(schema) or is_narrowed(schema) or "$ref" in write_text(schema)
        ):
            return self._exact(schema, root)
        return self._rules.json(schema, root, strict=self._strict)

    def _exact(self, schema: dict[str, Any], root: dict[str, Any]) -> str:
        """Add a JSON value that has, or refers to, numbers which llguidance would change."""
        content = f"exact {self._num_documents} {write_text(schema)}"
        is_new = content not in self._rules
        name = self._rules.name(content)
        if is_new:
            at = _Place(root, _JSON, id(_JSON))
            texts = (self._exact_value(option, at) for option in self._options(schema, root))
            self._rules.add(f"{name}: {' | '.join(dict.fromkeys(texts))}")
        return name

    def _exact_value(self, option: Alternative, at: _Place) -> str:
        if option.values is not None and not option.schema:
            return f"({' | '.join(map(write_literal, option.values))})"
        if option.kind in ("number", "integer"):
            return self._rules.terminal(" & ".join(number_option_terms(option, self._report)))
        if option.kind not in ("object", "array"):
            return self._json(option.whole, at.root)
        if option.combining:
            self._report(f"'{option.combining}' beside a number of so many digits")
            return self._json({"type": option.kind}, at.root)
        if option.kind == "array":
            return self._list(option.schema, at)
        return self._object({"additionalProperties": True, **option.schema}, at)

    def _has_control(self, text: str) -> bool:
        return any(token in text for token in self._control)


def _key_end(text: str, kind: str) -> str:
    written = {"integer": "number"}.get(kind, kind)
    is_string = "true" if kind == "string" else "false"
    return text.replace("{type}", written).replace("{is_string}", is_string)


def _typed(options: list[Alternative]) -> Iterator[Alternative]:
    """The alternatives with a type each."""
    for option in options:
        if option.kind:
            yield option
        else:
            for kind in _ANY_KIND:
                yield Alternative(kind, option.schema)


def _is_described(option: Alternative, syntax: ArgumentSyntax) -> bool:
    """Whether the schema has members or items that can be written in a syntax one by one."""
    if option.values is not None or option.combining:
        return False
    keys = members(option.schema)
    if syntax.item and any(key == "item" or not re.fullmatch(r"[^<>/][^<>]*", key) for key in keys):
        return False
    return bool(keys or option.schema.get("items"))


def _times(least: int, most: int | None, *, taken: int = 0) -> str:
    if most is None:
        return "*" if least == 0 else f"{{{least},}}"
    return f"{{{least},{max(most - taken, 0)}}}"
