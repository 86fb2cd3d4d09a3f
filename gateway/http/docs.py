"""The OpenAPI document, and a self-contained page that displays it."""

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any, get_args

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import models_json_schema
from starlette.responses import HTMLResponse, Response

from dialects.llama_server.errors import LlamaServerError
from dialects.ollama.errors import OllamaError
from dialects.openai.errors import Error

_SCHEMAS = "#/components/schemas/"
_PUBLIC = ("/health", "/v1/health", "/ready")
"""Paths without an API key."""
PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}
_EVENT_STREAM = "text/event-stream"

Shape = Any
"""What a response is: a TypedDict, a TypeAliasType, or a union of them; a media type; or a tuple of
both."""
Query = type[BaseModel] | Mapping[str, Any]
"""Parameters in a query, all optional: a model of them, or their schemas by name."""
TEXT: Mapping[str, Any] = {"type": "string"}
INTEGER: Mapping[str, Any] = {"type": "integer", "minimum": 0}


class RequestBody(dict[str, Any]):
    """The `openapi_extra` of a route that parses its body itself.

    `content` has a schema for each media type; `models` are those that the schemas refer to.
    """

    def __init__(self, content: Mapping[str, Any], *models: type[BaseModel]) -> None:
        super().__init__(requestBody={"required": True, "content": content})
        self.content = content
        self.models = models


def json_body(*models: type[BaseModel]) -> RequestBody:
    """A JSON object of one of these models."""
    schemas = [{"$ref": _SCHEMAS + model.__name__} for model in models]
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    return RequestBody({"application/json": {"schema": schema}}, *models)


def form_body(fields: type[BaseModel] | None, file_field: str) -> RequestBody:
    """A form: a file, and the fields of a model."""
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    if fields is not None:
        schema = fields.model_json_schema(ref_template=_SCHEMAS + "{model}")
        schema.pop("$defs", None)
    # One schema, because a model that forbids other fields would forbid the file.
    schema["properties"] = {
        **schema["properties"],
        file_field: {"type": "string", "format": "binary"},
    }
    schema["required"] = [*schema.get("required", ()), file_field]
    models = [] if fields is None else [fields]
    return RequestBody({"multipart/form-data": {"schema": schema}}, *models)


def either_body(one: RequestBody, other: RequestBody) -> RequestBody:
    """A body of one of two media types."""
    return RequestBody({**one.content, **other.content}, *one.models, *other.models)


class ResponseContent(dict[str, Any]):
    """A response in the document; `shapes` are the types that its schemas refer to."""

    def __init__(self, description: str, shape: Shape, events: Shape, events_type: str) -> None:
        parts = _parts(shape)
        content: dict[str, Any] = {part: {} for part in parts if isinstance(part, str)}
        if schemas := [part for part in parts if not isinstance(part, str)]:
            content["application/json"] = {"schema": _reference(schemas)}
        if events:
            content[events_type] = {"schema": _reference([events])}
        super().__init__(description=description, content=content)
        self.shapes = [*schemas, events] if events else schemas


def operation(
    summary: str,
    response: Shape,
    body: RequestBody | None = None,
    *,
    query: Query | None = None,
    events: Shape = (),
    error: Shape = Error,
) -> dict[str, Any]:
    """The arguments of a route that document it: summary, response, and body or query.

    `events` are those of a stream: server-sent events, of Ollama lines of JSON.
    """
    events_type = "application/x-ndjson" if error is OllamaError else _EVENT_STREAM
    described = "|".join(map(_name, _parts(response))) or "Never."
    return {
        "summary": summary,
        "openapi_extra": body if query is None else {"parameters": _query_parameters(query)},
        "response_class": Response,
        "responses": {
            200: ResponseContent(described, response, events, events_type),
            "default": ResponseContent("An error.", error, (), events_type),
        },
    }


def _query_parameters(query: Query) -> list[dict[str, Any]]:
    schemas = query if isinstance(query, Mapping) else query.model_json_schema()["properties"]
    return [
        {"name": name, "in": "query", "schema": schema.get("anyOf", [schema])[0]}
        for name, schema in schemas.items()
    ]


def _parts(shape: Shape) -> Sequence[Any]:
    """The alternatives of a response."""
    return shape if isinstance(shape, tuple) else get_args(shape) or (shape,)


def _name(part: Any) -> str:
    return part if isinstance(part, str) else str(part.__name__)


def _reference(parts: Iterable[Any]) -> dict[str, Any]:
    schemas = [{"$ref": _SCHEMAS + _name(part)} for part in parts]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


ollama_operation = functools.partial(operation, error=OllamaError)
llama_server_operation = functools.partial(operation, error=LlamaServerError)


def describe_api(app: FastAPI) -> Mapping[str, Any]:
    """The OpenAPI document of the application, with the schemas of its bodies and responses."""
    routes = iter_route_contexts(app.routes)
    extras = [getattr(route, "openapi_extra", None) for route in routes]
    bodies = [extra for extra in extras if isinstance(extra, RequestBody)]
    models = dict.fromkeys(model for body in bodies for model in body.models)
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    _, schemas = models_json_schema(
        [(model, "validation") for model in models], ref_template=_SCHEMAS + "{model}"
    )
    components = document.setdefault("components", {})
    declared = _declared_schemas(declared_shapes(app))
    if twice := declared.keys() & schemas["$defs"].keys():
        raise ValueError(f"types of bodies and of responses have the same names: {sorted(twice)}")
    components["schemas"] = schemas["$defs"] | declared
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["security"] = [] if path in _PUBLIC else [{"key": []}]
    return document


def declared_shapes(app: FastAPI) -> list[Any]:
    """The declared types of the responses and events of all routes."""
    routes = iter_route_contexts(app.routes)
    responses = [each for route in routes for each in getattr(route, "responses", {}).values()]
    shapes = [each.shapes for each in responses if isinstance(each, ResponseContent)]
    return list(dict.fromkeys(itertools.chain.from_iterable(shapes)))


def _declared_schemas(shapes: Iterable[Any]) -> dict[str, Any]:
    """The schemas of types, and of those in them, by their names. Only bodies have titles."""
    _, schemas = TypeAdapter.json_schemas(
        [(shape, "serialization", TypeAdapter[Any](shape)) for shape in shapes],
        ref_template=_SCHEMAS + "{model}",
    )
    for schema in schemas["$defs"].values():
        schema.pop("title", None)
    return dict(schemas["$defs"])


def docs_page() -> HTMLResponse:
    page = resources.files("gateway").joinpath("docs_page.html").read_text(encoding="utf-8")
    return HTMLResponse(page, headers=PAGE_HEADERS)
