"""Grammar rules of arguments that are not a JSON object (`ArgumentSyntax`), from JSON schemas."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from inference_svc.structured_output.free_text import ANYTHING, ControlTokens, Markers, escape
from inference_svc.structured_output.schemas import (
    Alternative,
    alternatives,
    combined_by,
    members,
    required,
    resolve,
)
from inference_svc.structured_output.spec import SPACE, ArgumentSyntax

_NO_JSON = r"~/\s*[\[{](?s:.*)/"
_SINGLE_QUOTED = r"/'(\\['\\nrt]|[^'\\\x00-\x1f])*'/"
_KEY = r"/[^<>\"\n:=,{}\[\]() ]+/"
_DATE, _TIME = r"[0-9]{4}-[01][0-9]-[0-3][0-9]", r"[0-2][0-9]:[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?"
_ZONE = r"(Z|[+-][0-2][0-9]:[0-5][0-9])"
_FORMATS = {
    "date": _DATE,
    "time": f"{_TIME}{_ZONE}",
    "date-time": f"{_DATE}T{_TIME}{_ZONE}",
    "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "email": r"[A-Za-z0-9._+-]{1,64}@[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63}){1,4}",
    "ipv4": r"[0-9]{1,3}(\.[0-9]{1,3}){3}",
}
"""Formats of strings without quotes; others are not enforced."""
_JSON = ArgumentSyntax(begin="", key_end=": ", between=", ", quotes=None, quotes_keys=True)
_write = json.JSONEncoder(ensure_ascii=False).encode
_MAX_DEPTH = 6
_ANY_KIND = ("string", "number", "boolean", "null", "object", "array")
_VALUES = {"boolean": (True, False), "null": (None,)}
_REFERENCE = '"$ref": "#'
_OTHER_REFERENCE = re.compile(re.escape(_REFERENCE) + r"(?!/(\$defs|definitions)/)")
_PATTERN_PART = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|.", re.DOTALL)


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
        self._names: dict[str, str] = {}
        self._marker = Markers(control).write
        self._num_documents = 0
        self._values: dict[tuple[str, int, str, bool, int, int], str] = {}
        self._lines: dict[str, None] = {}
        self.schemas: dict[str, tuple[dict[str, Any], bool]] = {}
        """The schemas of JSON values, and whether they are strict, by the names of grammars."""

    @property
    def lines(self) -> Iterable[str]:
        """The rules."""
        return self._lines

    def arguments(
        self, schema: dict[str, Any], syntax: ArgumentSyntax | None, *, strict: bool
    ) -> str:
        """Add the arguments of a tool; returns their reference. Without a syntax, they are JSON:
        if the schema only describes members, each in a rule, since equal ones are then shared."""
        self._strict = strict
        self._num_documents += 1
        top = resolve(schema, schema)
        if syntax is not None:
            return self._members(top, _Place(schema, syntax, id(syntax)))
        has_others = top.get("additionalProperties", not members(top, schema)) is not False
        if has_others or combined_by(top):
            return self._json(schema, schema)
        return f'"{{" {self._members(top, _Place(schema, _JSON, id(_JSON)))} "}}"'

    def _members(self, schema: dict[str, Any], at: _Place) -> str:
        """Add the members of an object in the order of the schema."""
        syntax = at.syntax
        known = members(schema, at.root)
        keys = sorted(known) if syntax.sorts_keys else list(known)
        needed = required(schema, at.root)
        items: list[tuple[_Write, str]] = [
            (partial(self._member, key, known[key], at), "" if key in needed else "?")
            for key in keys
        ]
        extra = schema.get("additionalProperties", not known)
        if extra is not False and (not known or "additionalProperties" in schema):
            inner = extra if isinstance(extra, dict) else {}
            items.append((partial(self._extra, keys, inner, at), "*"))
        if syntax.between:
            return self._separated(items, syntax.between)
        return self._rule(" ".join(write("") + times for write, times in items))

    def _separated(self, items: "list[tuple[_Write, str]]", between: str) -> str:
        """Add a sequence with separators. Each item has "", "?" or "*", as in a grammar."""
        later = [write(between) + times for write, times in items]
        num_optional = next((i for i, (_, times) in enumerate(items) if not times), len(items))
        begins, more = ['""'], ""
        if num_optional < len(items):
            more = " ".join(later[num_optional:])
            begins = [" ".join([items[num_optional][0](""), *later[num_optional + 1 :]])]
        # Any item before the first necessary one may be the first that is written.
        for number in reversed(range(num_optional)):
            write, times = items[number]
            following = self._rule(f"{later[number] if times == '*' else ''} {more}")
            begins.append(f"{write('')} {following}")
            more = f"{later[number]} {following}"
        return self._rule(" | ".join(begins))

    def _member(self, key: str, schema: Any, at: _Place, before: str) -> str:
        written = _write(key) if at.syntax.quotes_keys else key
        return self._keyed(before + at.syntax.begin + written, key, schema, at)

    def _extra(self, keys: Sequence[str], schema: dict[str, Any], at: _Place, before: str) -> str:
        """A member with another key; nesting in tags has none, since they repeat the key."""
        if at.syntax.item:
            return '""'
        others = f" & ~/{'|'.join(map(escape, keys))}/" if keys else ""
        name = self._name(f"KEY{others}").upper()
        self._add(f"{name}: {_KEY}{others}")
        quote = '"' if at.syntax.quotes_keys else ""
        begin = self._marker(before + at.syntax.begin + quote)
        return f"({begin} {name} {self._keyed(quote, '', schema, at)})"

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
            for option in _typed(alternatives(schema, at.root))
        )
        return f"(({' | '.join(texts)}) {closing})"

    def _known_value(self, schema: Any, opening: str, end: str, at: _Place) -> str:
        """The rule of a value after `opening`, which equal schemas share."""
        if at.syntax is _JSON:
            return self._json(schema if isinstance(schema, dict) else {}, at.root)
        text = _write(schema)
        document = self._num_documents if "$ref" in text else 0
        known = (text, document, end, self._strict, at.depth, at.scope)
        if known not in self._values:
            value = self._value(alternatives(schema, at.root), end, at)
            rule = self._rule(f"{self._marker(opening)} {value}") if opening else value
            self._values[known] = rule
        return self._values[known]

    def _value(self, options: list[Alternative], end: str, at: _Place) -> str:
        """The rule of a value and its `end`."""
        if at.syntax.may_quote or (at.syntax.quotes is not None and not at.syntax.quotes):
            texts = self._unquoted(options, end, at)
        else:
            closing = self._marker(end)
            texts = [f"{self._quoted(option, at)} {closing}" for option in _typed(options)]
        return self._rule(" | ".join(dict.fromkeys(texts)))

    def _unquoted(self, options: list[Alternative], end: str, at: _Place) -> list[str]:
        """A value whose strings are not quoted. Beside other types than objects and lists, a string
        is any text, because the lexer could not tell it from them."""
        syntax = at.syntax
        strings = [option for option in options if option.kind in ("", "string")]
        others = [option for option in options if option.kind not in ("", "string")]
        texts: list[str] = []
        if any(option.values is None for option in strings):
            only = strings[0].schema if len(options) == 1 else {}
            has_json = any(option.kind in ("object", "array") for option in others)
            texts += self._texts(syntax, end, only, has_json=has_json)
            others = [option for option in others if option.kind in ("object", "array")]
        else:
            values = [str(value) for option in strings for value in option.values or ()]
            if values:
                written = " | ".join(_write(value) for value in values)
                texts.append(self._padded(f"({written})", syntax, end))
        for option in others:
            value = self._other(option, at)
            if option.kind in ("object", "array") and syntax.item:
                texts.append(f"{value} {self._marker(end)}")
            else:
                texts.append(f"{self._marker(SPACE)} {value} {self._marker(SPACE + end)}")
        return texts

    def _padded(self, value: str, syntax: ArgumentSyntax, end: str) -> str:
        closing = self._marker(end)
        if not syntax.padded:
            return f"{value} {closing}"
        return f'("\\n" {value} "\\n" {closing} | {value} {closing})'

    def _texts(
        self, syntax: ArgumentSyntax, end: str, schema: dict[str, Any], *, has_json: bool
    ) -> Iterator[str]:
        """A string until `end`, and one in quotes."""
        limits = _limits(schema)
        terms = [*limits, *([_NO_JSON] if has_json else [])]
        for begin, quote in syntax.quotes or ():
            yield f"{self._marker(begin)} {self._until(quote, limits)} {self._marker(end)}"
            terms.append(f"~/{escape(begin)}(?s:.*)/")
        if syntax.padded and limits:
            yield f'"\\n" {self._until(f"{chr(10)}{end}", limits, syntax.barred)}'
            terms.append(r"~/\n(?s:.*)/")
        yield self._until(end, terms, syntax.barred)

    def _until(self, end: str, terms: list[str], others: Sequence[str] = ()) -> str:
        """Text that fulfils all terms, and its end. A control token ends it by itself."""
        end, gap, _ = end.partition(SPACE)
        barred = [text for text in (end, *others) if not self._has_control(text)]
        excluded = f"~/(?s:.*)({'|'.join(map(escape, barred))})(?s:.*)/"
        body = " & ".join([ANYTHING, *([excluded] if barred else []), *terms])
        plain = self._name(f"TEXT {body}").upper()
        self._add(f"{plain}: {body}")
        if self._has_control(end):
            return f"{plain} {self._marker(end + gap)}"
        ended = self._name(f"ended {body} {end}")
        self._add(f"{ended}[lazy]: {plain} {_write(end)}")
        return f"{ended} {self._marker(gap)}"

    def _quoted(self, option: Alternative, at: _Place) -> str:
        quotes = at.syntax.quotes
        if option.kind != "string":
            return self._other(option, at)
        if quotes is None:
            text = self._json(option.schema, at.root)
            if option.values is not None or _limits(option.schema) or not at.syntax.words:
                return text
            self._add(f"SINGLE_QUOTED: {_SINGLE_QUOTED}")
            return f"({text} | SINGLE_QUOTED)"
        texts = (self._between(begin, end, option) for begin, end in quotes)
        return f"({' | '.join(texts)})"

    def _between(self, begin: str, end: str, option: Alternative) -> str:
        """A string between quotes."""
        if option.values is not None:
            written = " | ".join(_write(value) for value in option.values)
            return f"{self._marker(begin)} ({written}) {self._marker(end)}"
        return f"{self._marker(begin)} {self._until(end, _limits(option.schema))}"

    def _other(self, option: Alternative, at: _Place) -> str:
        """A value that is not a string, without its end."""
        syntax = at.syntax
        has_syntax = syntax.brackets or syntax.item is not None
        if has_syntax and at.depth < _MAX_DEPTH and _is_described(option, at.root):
            inner = replace(syntax, padded=False)
            if syntax.quotes is None:
                inner = replace(inner, key_end=": ", quotes_keys=True)
            write = self._object if option.kind == "object" else self._list
            return write(option.schema, _Place(at.root, inner, at.scope, at.depth + 1))
        text = self._json(option.schema, at.root)
        values = option.values if option.values is not None else _VALUES.get(option.kind, ())
        words = [syntax.words[each] for each in map(_write, values) if each in syntax.words]
        return f"({' | '.join([text, *map(_write, words)])})" if words else text

    def _object(self, schema: dict[str, Any], at: _Place) -> str:
        inside = self._members(schema, at)
        if at.syntax.item:
            return inside if required(schema, at.root) else f'({inside} | "{{}}")'
        return f'"{{" {inside} "}}"'

    def _list(self, schema: dict[str, Any], at: _Place) -> str:
        items = schema.get("items", {})
        least, most = _number(schema, "minItems") or 0, _number(schema, "maxItems")
        options = alternatives(items if isinstance(items, dict) else {}, at.root)
        if at.syntax.item:
            begin, end = at.syntax.item
            item = f"{self._marker(begin)} {self._value(options, end, at)}"
            filled = f"({item}){_times(max(least, 1), most)}"
            return filled if least else f'({filled} | "[]")'
        item, between = self._value(options, "", at), self._marker(at.syntax.between)
        more = f"({between} {item}){_times(max(least - 1, 0), most, taken=1)}"
        return '"[" "]"' if most == 0 else f'"[" ({item} {more}){"" if least else "?"} "]"'

    def _json(self, schema: dict[str, Any], root: dict[str, Any]) -> str:
        """Add a JSON value; returns the name of its rule."""
        text = _write(schema)
        if "$ref" in text and schema is not root:
            schema = _with_root(text, root)
            text = _write(schema)
        name = self._name(f"json {self._strict} {text}")
        self.schemas[f"{name}_json"] = (schema, self._strict)
        self._add(f"{name}: @{name}_json")
        return name

    def _has_control(self, text: str) -> bool:
        return any(token in text for token in self._control)

    def _rule(self, body: str) -> str:
        """Add a rule, or use the one with the same body."""
        name = self._name(body)
        self._add(f"{name}: {body}")
        return name

    def _name(self, content: str) -> str:
        return self._names.setdefault(content, f"argument_{len(self._names)}")

    def _add(self, line: str) -> None:
        self._lines[line] = None


def _with_root(text: str, root: dict[str, Any]) -> dict[str, Any]:
    """A part of a document as a document in which its references still resolve."""
    whole = _write(root)
    if not _OTHER_REFERENCE.search(whole):
        shared = {key: value for key, value in root.items() if key in ("$defs", "definitions")}
        return {**shared, **json.loads(text)}
    moved = f"{_REFERENCE}/$defs/root"
    part, inner = (json.loads(each.replace(_REFERENCE, moved)) for each in (text, whole))
    return {**part, "$defs": {"root": inner}}


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
                yield Alternative(kind, {**option.schema, "type": kind})


def _is_described(option: Alternative, root: dict[str, Any]) -> bool:
    """Whether the schema has members or items."""
    schema = option.schema
    return option.values is None and bool(members(schema, root) or schema.get("items"))


def _limits(schema: dict[str, Any]) -> list[str]:
    """The limits of a string as terms of a regular expression."""
    terms = []
    least, most = _number(schema, "minLength"), _number(schema, "maxLength")
    if least is not None or most is not None:
        terms.append(f"/(?s:.){{{least or 0},{'' if most is None else most}}}/")
    if schema.get("format") in _FORMATS:
        terms.append(f"/{_FORMATS[schema['format']]}/")
    if isinstance(schema.get("pattern"), str):
        terms.append(f"/{_slashes(_whole_pattern(schema['pattern']))}/")
    return terms


def _number(schema: dict[str, Any], keyword: str) -> int | None:
    number = schema.get(keyword)
    return number if type(number) is int else None


def _whole_pattern(pattern: str) -> str:
    """The pattern of the whole texts in which a pattern is found."""
    branches: list[list[str]] = [[]]
    depth = 0
    for part in _PATTERN_PART.findall(pattern):
        depth += (part == "(") - (part == ")")
        if part == "|" and depth == 0:
            branches.append([])
        else:
            branches[-1].append(part)
    return "|".join(map(_whole_branch, branches))


def _whole_branch(parts: list[str]) -> str:
    is_start, is_end = parts[:1] == ["^"], parts[-1:] == ["$"]
    inner = "".join(parts[is_start : len(parts) - is_end])
    return f"{'' if is_start else '(?s:.*)'}({inner}){'' if is_end else '(?s:.*)'}"


def _slashes(pattern: str) -> str:
    return re.sub(r"(\\.)|/", lambda match: match[1] or r"\/", pattern)


def _times(least: int, most: int | None, *, taken: int = 0) -> str:
    if most is None:
        return "*" if least == 0 else f"{{{least},}}"
    return f"{{{least},{max(most - taken, 0)}}}"
