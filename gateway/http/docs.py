"""The OpenAPI document, and a self-contained page that displays it."""

import functools
from collections.abc import Mapping
from importlib import resources
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import HTMLResponse

_SCHEMAS = "#/components/schemas/"
_PUBLIC = ("/health", "/v1/health", "/ready")
"""Paths without an API key."""
PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}
ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}

ERROR = "Error"
ANTHROPIC_ERROR = "AnthropicError"
OLLAMA_ERROR = "OllamaError"
LLAMA_SERVER_ERROR = "LlamaServerError"
"""Names of the schemas of errors."""
_ERROR_SCHEMAS = {
    ERROR: ERROR_SCHEMA,
    LLAMA_SERVER_ERROR: {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["code", "message", "type"],
                "properties": {
                    "code": {"type": "integer"},
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                },
            }
        },
    },
    OLLAMA_ERROR: {
        "type": "object",
        "required": ["error"],
        "properties": {"error": {"type": "string"}},
    },
    ANTHROPIC_ERROR: {
        "type": "object",
        "required": ["type", "error", "request_id"],
        "properties": {
            "type": {"const": "error"},
            "error": {
                "type": "object",
                "required": ["type", "message"],
                "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
            },
            "request_id": {"type": "string"},
        },
    },
}


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


def operation(
    summary: str,
    response: str,
    body: RequestBody | None = None,
    *,
    stream: bool = False,
    lines: bool = False,
    error: str = ERROR,
) -> dict[str, Any]:
    """The arguments of a route that document it: summary, response and body. `stream` is for
    routes that can respond with server-sent events, `lines` for those with lines of JSON; `error`
    is the schema of its errors."""
    content: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    if stream:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    if lines:
        content["application/x-ndjson"] = {"schema": {"type": "object"}}
    failure = {"application/json": {"schema": {"$ref": _SCHEMAS + error}}}
    return {
        "summary": summary,
        "openapi_extra": body,
        "responses": {
            200: {"description": response, "content": content},
            "default": {"description": "An error.", "content": failure},
        },
    }


ollama_operation = functools.partial(operation, error=OLLAMA_ERROR)


def describe_api(app: FastAPI) -> Mapping[str, Any]:
    """The OpenAPI document of the application, with the schemas of its request bodies."""
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
    components["schemas"] = schemas["$defs"] | _ERROR_SCHEMAS
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["security"] = [] if path in _PUBLIC else [{"key": []}]
    return document


def docs_page() -> HTMLResponse:
    """The page at /docs."""
    page = resources.files("gateway").joinpath("docs_page.html").read_text(encoding="utf-8")
    return HTMLResponse(page, headers=PAGE_HEADERS)
