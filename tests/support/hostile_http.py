"""Requests with one hostile value each, for every route of an OpenAPI document.

The rest of a request is valid according to the schemas, so that validation gets as far as the
hostile value. A field that occurs in several bodies gets all values only once.
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
"""Instead of a string, an array or an object."""
NUMBER_VALUES: tuple[Any, ...] = ("x", None, True, -1, 2**31, 2**64, 1e308, [], {"\x00": None})
"""Instead of a number or a boolean: other types, and values out of range."""
DEEP_VALUES: tuple[Any, ...] = (None, True, 2**31, 1e308, "", "\x00", [], {"\x00": None})
"""Inside of the value of a field."""
KNOWN_VALUES: tuple[Any, ...] = ("\x00", {"\x00": None})
"""Instead of a field that was tested in another body."""
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
"""Nesting depth of hostile values."""


@dataclass(frozen=True)
class Call:
    method: str
    path: str
    """The path template."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    form: Mapping[str, str] | None = None
    file_field: str = ""

    @property
    def url(self) -> str:
        quoted = {name: quote(value, safe="") for name, value in self.parameters.items()}
        return self.path.format(**quoted)

    def options(self) -> dict[str, Any]:
        """Arguments for httpx."""
        if self.form is not None:
            return {"data": self.form, "files": {self.file_field: ("a", b"x")}}
        options: dict[str, Any] = {"params": self.query}
        return options if self.body is None else {**options, "json": self.body}


@dataclass(frozen=True)
class Document:
    """An OpenAPI document, and valid values of fields by name."""

    content: Mapping[str, Any]
    known: Mapping[str, Any]
    required: Collection[str] = ()
    """Fields of valid requests that the schemas do not require."""
    tested: set[str] = field(default_factory=set)
    """Fields that were tested with all values."""

    def hostile(self, prefixes: tuple[str, ...]) -> Iterator[Call]:
        """For every route, the valid request and its hostile variants."""
        for path, operations in self.content["paths"].items():
            if not path.startswith(prefixes):
                continue
            for method, operation in operations.items():
                yield from self._variants(self._valid(path, method, operation), operation)

    def _valid(self, path: str, method: str, operation: Mapping[str, Any]) -> Call:
        names = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"]
        known = {} if method == "delete" else self.known  # other requests need known objects
        call = Call(method.upper(), path, {name: str(known.get(name, "x")) for name in names})
        content = operation.get("requestBody", {}).get("content", {})
        if JSON in content:
            return replace(call, body=self._sample(content[JSON]["schema"]))
        if FORM in content:
            fields, name = self._form(content[FORM]["schema"])
            form = {key: str(self._sample(fields[key], key)) for key in fields if key in self.known}
            return replace(call, form=form, file_field=name)
        return call

    def _variants(self, good: Call, operation: Mapping[str, Any]) -> Iterator[Call]:
        yield good
        for name in good.parameters:
            for text in self._texts(name):
                yield replace(good, parameters={**good.parameters, name: text})
        content = operation.get("requestBody", {}).get("content", {})
        if JSON in content:
            for body in self._hostile_values(good.body, content[JSON]["schema"], DEPTH):
                yield replace(good, body=body)
        if FORM in content:
            fields, _ = self._form(content[FORM]["schema"])
            texts = dict.fromkeys((*fields, "unheard_of"), (*TEXTS, *NUMBERS))
            for form in _hostile_fields(good.form or {}, texts):
                yield replace(good, form=form)
        if good.method == "GET":
            for query in _hostile_fields({}, QUERY):
                yield replace(good, query=query)

    def _texts(self, name: str) -> tuple[str, ...]:
        """Hostile values of a path parameter; fewer if it was tested in another path."""
        if name in self.tested:
            return TEXTS[1:3]
        self.tested.add(name)
        return TEXTS[1:]

    def _resolve(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """Follow references; of alternatives, use the first that is not null."""
        while "$ref" in schema:
            schema = self.content["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        choices = schema.get("anyOf") or schema.get("oneOf")
        if choices:
            return self._resolve(
                next((each for each in choices if each.get("type") != "null"), choices[0])
            )
        return schema

    def _form(self, schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
        fields: dict[str, Any] = dict(schema["properties"])
        (name,) = (key for key, each in fields.items() if each.get("format") == "binary")
        del fields[name]
        return fields, name

    def _sample(self, schema: Mapping[str, Any], name: str = "") -> Any:
        """A minimal valid value."""
        if name in self.known:
            return self.known[name]
        schema = self._resolve(schema)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return schema["enum"][0]
        match schema.get("type"):
            case "object":
                properties = schema.get("properties", {})
                needed = {*schema.get("required", ()), *self.required}
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

    def _hostile_values(self, good: Any, schema: Mapping[str, Any], depth: int) -> Iterator[Any]:
        """Hostile values, and variants of a valid value with one part missing or hostile."""
        schema = self._resolve(schema)
        yield from _values(schema.get("type"), depth)
        if depth == 0:
            return
        if schema.get("type") == "array" and isinstance(good, list) and good:
            for value in self._hostile_values(good[0], schema["items"], depth - 1):
                yield [value, *good[1:]]
        if not isinstance(good, dict):
            return
        for name in good:
            yield {key: value for key, value in good.items() if key != name}
        for name, inner in schema.get("properties", {}).items():
            for value in self._field(good.get(name), name, inner, depth - 1):
                yield {**good, name: value}

    def _field(self, good: Any, name: str, schema: Mapping[str, Any], depth: int) -> Iterator[Any]:
        key = json.dumps([depth, name, schema], sort_keys=True)
        if key in self.tested:
            yield from KNOWN_VALUES
            return
        self.tested.add(key)
        yield from self._hostile_values(good or self._sample(schema, name), schema, depth)


def _values(kind: str | None, depth: int) -> tuple[Any, ...]:
    if depth < DEPTH - 1:
        return DEEP_VALUES
    return NUMBER_VALUES if kind in ("integer", "number", "boolean") else VALUES


def _hostile_fields(
    good: Mapping[str, str], values: Mapping[str, tuple[str, ...]]
) -> Iterator[Mapping[str, str]]:
    for name, texts in values.items():
        for text in texts:
            yield {**good, name: text}
