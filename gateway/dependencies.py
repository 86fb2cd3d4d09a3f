"""FastAPI dependencies of the routes: the caller's clients of other services, and request parts."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import Depends
from starlette.requests import HTTPConnection, Request

from gateway.auth import Caller
from gateway.context import AppContext
from gateway.http.json_body import read_body
from gateway.rpc import ControlClient, InferenceClient
from openai_wire.shared.json_body import parse_array, parse_object
from svc_kit.auth.scopes import Scope
from svc_kit.logs import current_request_id

IDEMPOTENCY_KEY = "idempotency-key"


async def _context(connection: HTTPConnection) -> AppContext:
    context: AppContext = connection.app.state.context
    return context


Context = Annotated[AppContext, Depends(_context)]


def _require(scope: Scope) -> Callable[[Request, AppContext], Awaitable[Caller]]:
    """A dependency that authenticates the caller and requires a scope."""

    async def authenticate(request: Request, context: Context) -> Caller:
        method = f"{request.method} {request.url.path}"
        return await context.authentication.identify(request, method, scope)

    return authenticate


KnownCaller = Annotated[Caller, Depends(_require(Scope.INFERENCE))]
Operator = Annotated[Caller, Depends(_require(Scope.ADMIN))]


async def _inference(context: Context, caller: KnownCaller) -> InferenceClient:
    return context.inference.for_caller(caller)


async def provide_control(context: Context, caller: KnownCaller) -> ControlClient:
    """The control service's client for a caller."""
    return context.control.for_caller(caller)


async def _operator_control(context: Context, caller: Operator) -> ControlClient:
    return context.control.for_caller(caller)


Inference = Annotated[InferenceClient, Depends(_inference)]
Control = Annotated[ControlClient, Depends(provide_control)]
OperatorControl = Annotated[ControlClient, Depends(_operator_control)]
"""Clients for the authenticated caller. They are the first parameter of a route, because
parameters are resolved in order: nothing is read for a caller who is not authenticated."""


async def read_json_text(request: Request, context: Context) -> bytes:
    """Read a JSON body. Raises as `read_body`."""
    settings = context.settings
    return await read_body(request, settings.body_limit_bytes, settings.receive_timeout_s)


async def _json_object(raw: Annotated[bytes, Depends(read_json_text)]) -> dict[str, Any]:
    return parse_object(raw)


async def _json_array(raw: Annotated[bytes, Depends(read_json_text)]) -> list[Any]:
    return parse_array(raw)


JsonObject = Annotated[dict[str, Any], Depends(_json_object)]
JsonArray = Annotated[list[Any], Depends(_json_array)]


async def idempotency_key(request: Request) -> str:
    """The client's idempotency key, else the request id, since gRPC may retry a call."""
    return request.headers.get(IDEMPOTENCY_KEY) or current_request_id()


async def _include(request: Request) -> list[str]:
    """The query parameters `include`, which SDKs send as `include[]`."""
    query = request.query_params
    return [*query.getlist("include[]"), *query.getlist("include")]


IdempotencyKey = Annotated[str, Depends(idempotency_key)]
Include = Annotated[list[str], Depends(_include)]
