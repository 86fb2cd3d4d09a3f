"""Errors as HTTP responses in OpenAI's envelope."""

import math
from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from dialects.openai.errors import error_body
from gateway.http.rate_limits import refusal_headers
from svc_kit.errors import (
    BudgetExceeded,
    DomainError,
    InvalidField,
    MethodNotAllowed,
    RangeNotSatisfiable,
    RateLimited,
    RouteNotFound,
)
from svc_kit.errors.status import http_status, is_retryable

_RETRIED_BY_CLIENTS = (408, 409, 429, 501)
"""Statuses that OpenAI's clients retry by default, even if the error is permanent."""


def json_response(content: object, status: int = 200) -> Response:
    """A JSON response."""
    return Response(orjson.dumps(content), status, media_type="application/json")


def error_response(error: DomainError) -> Response:
    """The response for an error, with Retry-After if it can be retried."""
    status = http_status(error)
    response = json_response(error_body(error), status)
    if status in (429, 503) and error.retry_after is not None:
        response.headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
        response.headers["retry-after-ms"] = str(round(error.retry_after * 1000))
    if status in _RETRIED_BY_CLIENTS and not is_retryable(error):
        response.headers["x-should-retry"] = "false"
    if isinstance(error, RateLimited | BudgetExceeded):
        response.raw_headers += refusal_headers(error)
    if status == 401:
        response.headers["www-authenticate"] = "Bearer"
    if isinstance(error, RangeNotSatisfiable):
        response.headers["content-range"] = f"bytes */{error.size}"
    if status == 413:
        response.headers["connection"] = "close"  # the rest of the body is not read
    return response


async def _domain_error(_request: Request, error: DomainError) -> Response:
    return error_response(error)


async def _http_error(request: Request, error: HTTPException) -> Response:
    """Convert errors of the router."""
    method, path = request.method, request.url.path
    if error.status_code == 404:
        return error_response(RouteNotFound(method=method, path=path))
    if error.status_code == 405:
        response = error_response(MethodNotAllowed(method=method, path=path))
        response.headers.update(error.headers or {})
        return response
    return error_response(InvalidField(field="request", problem=error.detail))


EXCEPTION_HANDLERS: dict[int | type[Exception], Callable[..., Coroutine[Any, Any, Response]]] = {
    DomainError: _domain_error,
    HTTPException: _http_error,
}
"""Starlette uses the handler of the most specific class."""
