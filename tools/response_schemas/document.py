"""Writes gateway/http/response_schemas.json: the schemas of responses and of streamed events."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import orjson

from tools.response_schemas.shape import Schema, infer_schema, reference, tag_of
from tools.response_schemas.values import EVENTS, OBJECTS

PATH: Final = "gateway/http/response_schemas.json"
_RESOURCES: Final = {
    "file": "File",
    "response": "ResponseResource",
    "thread": "Thread",
    "thread.message": "ThreadMessage",
    "thread.run": "Run",
    "thread.run.step": "RunStep",
}
"""Schemas of objects that other objects and events contain."""


def render() -> str:
    """The schemas by name, as JSON. One that another contains is a reference in it."""
    schemas: dict[str, Schema] = {}
    for name, written in OBJECTS.items():
        schemas |= _object(name, infer_schema(_decoded(written())))
    for name, (written, error) in EVENTS.items():
        schemas |= _events(name, _decoded(written()), error)
    names = {_identity(schema): name for name, schema in schemas.items()}
    schemas = {
        name: {key: _with_references(part, names) for key, part in schema.items()}
        for name, schema in schemas.items()
    }
    return orjson.dumps(schemas, option=orjson.OPT_INDENT_2).decode() + "\n"


def _object(name: str, schema: Schema) -> dict[str, Schema]:
    """A schema, and those of its alternatives, which are named as in FunctionCallItem."""
    tags = [each.get("properties", {}).get("type", {}) for each in schema.get("anyOf", ())]
    names = [f"{_title(tag['const'])}{name}" for tag in tags if "const" in tag]
    alternatives = zip(names, schema["anyOf"], strict=True) if names else ()
    return {name: schema, **dict(alternatives)}


def _events(name: str, values: Sequence[Any], error: str) -> dict[str, Schema]:
    """The schema of each event of a stream, and of their alternatives under `name`. Events that
    are errors of a dialect's responses have the schema `error`."""
    groups: dict[str | None, list[Any]] = {}
    for value in values:
        if value.keys() != {"error"}:
            groups.setdefault(tag_of(value), []).append(value)
    base = name.removesuffix("Event")
    if len(groups) == 1:
        schemas = {f"{base}Chunk": infer_schema(each) for each in groups.values()}
    else:
        schemas = {_event_name(base, str(tag)): infer_schema(each) for tag, each in groups.items()}
    is_envelope = any(value.keys() == {"error"} for value in values)
    alternatives = [*schemas, error] if is_envelope else list(schemas)
    return schemas | {name: {"oneOf": [reference(each) for each in alternatives]}}


def _event_name(base: str, tag: str) -> str:
    """As in ResponseOutputTextDeltaEvent."""
    title = _title(tag)
    return f"{title if title.startswith(base) else base + title}Event"


def _title(tag: str) -> str:
    return "".join(word.title() for word in tag.replace(".", "_").split("_"))


def _identity(schema: Schema) -> bytes:
    return orjson.dumps(schema, option=orjson.OPT_SORT_KEYS)


def _with_references(node: Any, names: Mapping[bytes, str]) -> Any:
    if isinstance(node, list):
        return [_with_references(each, names) for each in node]
    if not isinstance(node, dict):
        return node
    name = names.get(_identity(node))
    if name is not None:
        return reference(name)
    return {key: _with_references(each, names) for key, each in node.items()}


def _decoded(values: Iterable[Any]) -> list[Any]:
    """Values as a client reads them, with references to resources that they contain."""
    return [_marked(orjson.loads(orjson.dumps(value)), is_part=False) for value in values]


def _marked(node: Any, *, is_part: bool = True) -> Any:
    if isinstance(node, list):
        return [_marked(each) for each in node]
    if not isinstance(node, dict):
        return node
    if is_part and node.get("object") in _RESOURCES:
        return reference(_RESOURCES[node["object"]])
    return {key: _marked(each) for key, each in node.items()}
