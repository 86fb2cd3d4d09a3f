"""Errors as HTTP responses, in the envelope of the dialect that the request belongs to."""

import functools
import math
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import orjson
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from dialects.anthropic import errors as anthropic
from dialects.llama_server import errors as llama_server
from dialects.ollama import errors as ollama
from dialects.openai import errors as openai
from gateway.http.dialect import Dialect, dialect_of
from gateway.http.rate_limits import refusal_headers
from svc_kit import errors
from svc_kit.errors.status import http_status, is_retryable
from svc_kit.logs import current_request_id

_RETRIED_BY_CLIENTS = (408, 409, 429, 501)
"""Statuses that OpenAI's clients retry by default, even if the error is permanent."""


_BODIES: Final[Mapping[Dialect, Callable[[errors.DomainError, str], Mapping[str, object]]]] = {
    Dialect.OPENAI: lambda error, _: openai.error_body(error),
    Dialect.ANTHROPIC: anthropic.error_body,
    Dialect.LLAMA_SERVER: lambda error, _: llama_server.error_body(error),
    Dialect.OLLAMA: lambda error, _: ollama.error_body(error),
}
"""Convert an error and the request's id to the JSON of the response."""


def json_response(content: object, status: int = 200) -> Response:
    """A JSON response."""
    return Response(orjson.dumps(content), status, media_type="application/json")


def error_response(error: errors.DomainError, scope: Scope | None = None) -> Response:
    """The response for an error, with Retry-After if it can be retried.

    `scope` is the request, whose dialect decides about the form; None: OpenAI's.
    """
    status = http_status(error)
    dialect = Dialect.OPENAI if scope is None else dialect_of(scope)
    response = json_response(_BODIES[dialect](error, current_request_id()), status)
    if status in (429, 503) and error.retry_after is not None:
        response.headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
        response.headers["retry-after-ms"] = str(round(error.retry_after * 1000))
    if status in _RETRIED_BY_CLIENTS and not is_retryable(error):
        response.headers["x-should-retry"] = "false"
    if isinstance(error, errors.RateLimited | errors.BudgetExceeded):
        response.raw_headers += refusal_headers(error, dialect)
    if status == 401:
        response.headers["www-authenticate"] = "Bearer"
    if isinstance(error, errors.RangeNotSatisfiable):
        response.headers["content-range"] = f"bytes */{error.size}"
    if status in (408, 413):
        response.headers["connection"] = "close"  # the rest of the body is not read
    return response


async def _domain_error(request: Request, error: errors.DomainError) -> Response:
    errors.release_frames(error)
    return error_response(error, request.scope)


async def _http_error(request: Request, error: HTTPException) -> Response:
    method, path, scope = request.method, request.url.path, request.scope
    if error.status_code == 404:
        routes = ", ".join(_routes(request.app, dialect_of(scope)))
        return error_response(errors.RouteNotFound(method=method, path=path, routes=routes), scope)
    if error.status_code == 405:
        response = error_response(errors.MethodNotAllowed(method=method, path=path), scope)
        response.headers.update(error.headers or {})
        return response
    return error_response(errors.InvalidField(field="request", problem=error.detail), scope)


async def _defect(request: Request, defect: Exception) -> Response:
    return error_response(errors.InternalError(request_id=current_request_id()), request.scope)


@functools.cache
def _routes(app: FastAPI, dialect: Dialect) -> list[str]:
    """The paths of a dialect up to their first parameter, without those of operators."""
    paths = {str(route.path).partition("/{")[0] for route in iter_route_contexts(app.routes)}
    public = ("/v1/", "/api/") if dialect in (Dialect.OPENAI, Dialect.OLLAMA) else "/"
    own = {path for path in paths if dialect_of({"path": path}) is dialect}
    shared = {"/v1/models"} if dialect is Dialect.ANTHROPIC else set()
    return sorted(shared | {path for path in own if path.startswith(public)})


EXCEPTION_HANDLERS: dict[int | type[Exception], Callable[..., Coroutine[Any, Any, Response]]] = {
    errors.DomainError: _domain_error,
    HTTPException: _http_error,
    Exception: _defect,
}
"""Starlette uses the handler of the most specific class. The outermost middleware gets defects too,
and logs them."""
