"""Requests with one nonsense in one place, for every route of an OpenAPI document.

A request is good but for that place, as far as the schemas say what is good: else the first missing
field would be all that is ever refused. Many bodies share fields, which are read by the same code:
a field that another body has had is tried with a few values only.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

JSON, FORM = "application/json", "multipart/form-data"
TEXTS = (
    "",
    "\x00",
    "../../etc/passwd",
    "'; DROP TABLE files; --",
    "\u202e\u2028\U0010ffff",
    "file-" + "0" * 32,
    "x" * 20_000,
)
VALUES: tuple[Any, ...] = (
    *("", "\x00", "\u202e\u2028\U0010ffff", "x" * 20_000, None, True, -1, 1e308),
    *([], [None], ["x"] * 3000, {}),
    {"type": "\U0010ffff", "role": [], "content": {"a": [[[[{}]]]]}},
)
"""In the place of a text, a list or an object."""
NUMBER_VALUES: tuple[Any, ...] = ("x", None, True, -1, 2**31, 2**64, 1e308, [], {"\x00": None})
"""In the place of a number or a switch: what it is not, and what is too much."""
DEEP_VALUES: tuple[Any, ...] = (None, True, 2**31, 1e308, "", "\x00", [], {"\x00": None})
"""Inside of a field's value: there are many such places."""
KNOWN_VALUES: tuple[Any, ...] = ("\x00", {"\x00": None})
"""In the place of a field that another body has had."""
NUMBERS = ("-1", "0", "1e3", "99999999999999999999", "NaN")
QUERY: Mapping[str, tuple[str, ...]] = {
    "after": TEXTS,
    "before": TEXTS,
    "limit": ("", *NUMBERS),
    "order": ("", "\x00", "x"),
    "purpose": ("", "\x00", "x"),
    "unheard_of": ("x",),
}
DEPTH = 3
"""How far into a body nonsense is put."""


@dataclass(frozen=True)
class Call:
    """A request."""

    method: str
    path: str
    """As in the document, with the names of its parameters."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    form: Mapping[str, str] | None = None
    file_field: str = ""

    @property
    def url(self) -> str:
        """Where it goes."""
        shown = {name: quote(value, safe="") for name, value in self.parameters.items()}
        return self.path.format(**shown)

    def options(self) -> dict[str, Any]:
        """What httpx is told."""
        if self.form is not None:
            return {"data": self.form, "files": {self.file_field: ("a", b"x")}}
        told: dict[str, Any] = {"params": self.query}
        return told if self.body is None else {**told, "json": self.body}


@dataclass(frozen=True)
class Document:
    """An OpenAPI document, and good values of fields by their names where schemas do not tell."""

    content: Mapping[str, Any]
    known: Mapping[str, Any]
    wanted: Collection[str] = ()
    """Fields that good requests have, though no schema requires them."""
    had: set[str] = field(default_factory=set)
    """The fields that have been tried with all values."""

    def hostile(self, prefixes: tuple[str, ...]) -> Iterator[Call]:
        """Every route's request, and that with nonsense in one place after the other."""
        for path, operations in self.content["paths"].items():
            if not path.startswith(prefixes):
                continue
            for method, operation in operations.items():
                yield from self._of(self._good(path, method, operation), operation)

    def _good(self, path: str, method: str, operation: Mapping[str, Any]) -> Call:
        named = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"]
        # What is known is needed by others, so nothing of it is deleted.
        known = {} if method == "delete" else self.known
        call = Call(method.upper(), path, {name: str(known.get(name, "x")) for name in named})
        content = operation.get("requestBody", {}).get("content", {})
        if JSON in content:
            return replace(call, body=self._sample(content[JSON]["schema"]))
        if FORM in content:
            fields, name = self._form(content[FORM]["schema"])
            form = {key: str(self._sample(fields[key], key)) for key in fields if key in self.known}
            return replace(call, form=form, file_field=name)
        return call

    def _of(self, good: Call, operation: Mapping[str, Any]) -> Iterator[Call]:
        yield good
        for name in good.parameters:
            for text in self._texts(name):
                yield replace(good, parameters={**good.parameters, name: text})
        content = operation.get("requestBody", {}).get("content", {})
        if JSON in content:
            for body in self._spoilt(good.body, content[JSON]["schema"], DEPTH):
                yield replace(good, body=body)
        if FORM in content:
            fields, _ = self._form(content[FORM]["schema"])
            texts = dict.fromkeys((*fields, "unheard_of"), (*TEXTS, *NUMBERS))
            for form in _spoilt_fields(good.form or {}, texts):
                yield replace(good, form=form)
        if good.method == "GET":
            for query in _spoilt_fields({}, QUERY):
                yield replace(good, query=query)

    def _texts(self, name: str) -> tuple[str, ...]:
        """What is put in the place of an id in a path: fewer where another path has had it."""
        if name in self.had:
            return TEXTS[1:3]
        self.had.add(name)
        return TEXTS[1:]

    # ---- schemas

    def _resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """The schema itself; of several the first that says something."""
        while "$ref" in schema:
            schema = self.content["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        choices = schema.get("anyOf") or schema.get("oneOf")
        if choices:
            said = [each for each in choices if each.get("type") != "null"] or choices
            return self._resolved(said[0])
        return schema

    def _form(self, schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
        """The fields of a form by their names, and the name of its file."""
        fields: dict[str, Any] = {}
        for part in schema["allOf"]:
            fields |= self._resolved(part)["properties"]
        (name,) = (key for key, each in fields.items() if each.get("format") == "binary")
        del fields[name]
        return fields, name

    def _sample(self, schema: Mapping[str, Any], name: str = "") -> Any:
        """A good value, with nothing in it that need not be there."""
        if name in self.known:
            return self.known[name]
        schema = self._resolved(schema)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return schema["enum"][0]
        match schema.get("type"):
            case "object":
                properties = schema.get("properties", {})
                needed = {*schema.get("required", ()), *self.wanted}
                return {
                    key: self._sample(properties[key], key) for key in properties if key in needed
                }
            case "array":
                return [self._sample(schema["items"])] * max(1, schema.get("minItems", 1))
            case "integer" | "number":
                return schema.get("minimum", 1)
            case "boolean":
                return False
            case _:
                return "x"

    def _spoilt(self, good: Any, schema: Mapping[str, Any], depth: int) -> Iterator[Any]:
        """A good value without a part, or with nonsense in the place of one; and what is none."""
        schema = self._resolved(schema)
        yield from _nonsense(schema.get("type"), depth)
        if depth == 0:
            return
        if schema.get("type") == "array" and isinstance(good, list) and good:
            for value in self._spoilt(good[0], schema["items"], depth - 1):
                yield [value, *good[1:]]
        if not isinstance(good, dict):
            return
        for name in good:
            yield {key: value for key, value in good.items() if key != name}
        for name, inner in schema.get("properties", {}).items():
            for value in self._field(good.get(name), name, inner, depth - 1):
                yield {**good, name: value}

    def _field(self, good: Any, name: str, schema: Mapping[str, Any], depth: int) -> Iterator[Any]:
        """Nonsense in the place of a field, or inside of it."""
        place = json.dumps([depth, name, schema], sort_keys=True)
        if place in self.had:
            yield from KNOWN_VALUES
            return
        self.had.add(place)
        yield from self._spoilt(good or self._sample(schema, name), schema, depth)


def _nonsense(kind: str | None, depth: int) -> tuple[Any, ...]:
    """What is put in the place of a value of a kind."""
    if depth < DEPTH - 1:
        return DEEP_VALUES
    return NUMBER_VALUES if kind in ("integer", "number", "boolean") else VALUES


def _spoilt_fields(
    good: Mapping[str, str], values: Mapping[str, tuple[str, ...]]
) -> Iterator[Mapping[str, str]]:
    """Texts with nonsense in one of the fields."""
    for name, texts in values.items():
        for text in texts:
            yield {**good, name: text}
