"""Shared parts of all routes, created by `gateway.app.build`, and the FastAPI dependencies: clients
of other services for the caller, and parts of the request.
"""

import functools
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Annotated, Any, Self, TypeVar

from fastapi import Depends, Query
from starlette.requests import HTTPConnection, Request
from starlette.websockets import WebSocket

from dialects.openai.envelope import Envelope
from dialects.openai.errors import ParamNames, with_openai_names
from dialects.shared.errors import Rename
from dialects.shared.ids import random_suffix
from dialects.shared.json_body import parse_array, parse_object
from gateway import sse
from gateway.active_calls import ActiveCalls
from gateway.auth import MAX_LABEL_BYTES, Authentication, Caller
from gateway.azure_paths import with_deployment
from gateway.calls import Calls, ComposedCall
from gateway.config import GatewaySettings
from gateway.http.json_body import JsonBodies
from gateway.http.request_shares import count_for_project
from gateway.rpc import ControlClient, InferenceClient
from gateway.stored_files import StoredFileReader
from svc_kit.auth.scopes import Scope
from svc_kit.errors import Draining, ScopeMissing
from svc_kit.logs import add_call_fields, current_request_id
from svc_kit.rpc.admin_call import RecentRefusals

ResultT = TypeVar("ResultT")
Names = ParamNames | Rename
"""The names of fields in errors: OpenAI's of an endpoint, or another dialect's function."""


def _rename(names: Names) -> Rename:
    return names if callable(names) else functools.partial(with_openai_names, params=names)


@dataclass(frozen=True)
class AppContext:
    """The shared parts of all routes."""

    settings: GatewaySettings
    authentication: Authentication
    inference: InferenceClient
    control: ControlClient
    active_calls: ActiveCalls
    stored_files: StoredFileReader
    bodies: JsonBodies
    fingerprint: str
    refusals: RecentRefusals = field(default_factory=RecentRefusals)

    @classmethod
    def of(cls, connection: HTTPConnection) -> Self:
        """The shared parts of the application that serves a connection."""
        context: Self = connection.app.state.context
        return context

    async def check_ready(self) -> None:
        """Raise Draining or UpstreamUnavailable while requests cannot be served."""
        if self.active_calls.closing:
            raise Draining
        await self.inference.check_serving()

    async def identify(self, request: Request, scope: Scope) -> Caller:
        """Authenticate the caller of a request, who must have a scope. Raises
        QueueFull if the caller's project has too many requests."""
        method = f"{request.method} {request.url.path}"
        return await self._identify(request, method, scope)

    async def identify_socket(self, websocket: WebSocket) -> Caller:
        """Authenticate a WebSocket. Repeated for each response, since a key can be revoked."""
        return await self._identify(websocket, "GET /v1/responses", Scope.INFERENCE)

    async def _identify(self, connection: HTTPConnection, method: str, scope: Scope) -> Caller:
        caller = await self.authentication.identify(connection, method, scope)
        count_for_project(connection.scope, caller.principal.project)
        return caller

    def new_envelope(self, prefix: str, model: str) -> Envelope:
        """The identity of a new response."""
        add_call_fields(model=model[:MAX_LABEL_BYTES])
        return Envelope(
            id=prefix + random_suffix(),
            created=int(time.time()),
            model=model,
            system_fingerprint=self.fingerprint,
        )

    def stream_response(
        self,
        start: Callable[[], Calls[Any]],
        frames: sse.Frames,
        names: Names,
        ping: bytes = sse.PING,
    ) -> sse.CallResponse:
        """Respond with server-sent events. `ping` is sent while there are none."""
        stream = sse.EventStream(frames, _rename(names), self.settings.ping_interval_s, ping)
        return self.call_response(start, stream, names, self.bodies.begin)

    def line_response(
        self, start: Callable[[], Calls[Any]], frames: sse.Frames, names: Names
    ) -> sse.CallResponse:
        """Respond with lines of JSON. Nothing is sent between them, since clients parse each."""
        stream = sse.EventStream(frames, _rename(names), None, headers=sse.LINE_HEADERS)
        return self.call_response(start, stream, names, self.bodies.begin)

    def object_response(
        self, start: Callable[[], Calls[Any]], collector: sse.Collector, names: Names
    ) -> sse.CallResponse:
        """Respond with one object."""
        return self.call_response(start, sse.SingleObject(collector), names, self.bodies.begin)

    def reply_response(
        self,
        start: Callable[[], Calls[Any]],
        write: Callable[[Any], object],
        names: Names,
    ) -> sse.CallResponse:
        """Respond with the reply of a unary call, converted by `write`."""
        return self.call_response(start, sse.UnaryObject(write), names)

    def composed_response(
        self, calls: Callable[[], Coroutine[Any, Any, object]], *, is_queued: bool
    ) -> sse.CallResponse:
        """Respond with the object that `calls` returns, which are unary calls one after the other.
        Errors have the caller's names of fields. What is not queued keeps several copies of a large
        body until it has its result."""
        return sse.CallResponse(
            lambda: ComposedCall(calls()),
            sse.UnaryObject(lambda content: content),
            self.active_calls,
            lambda error: error,
            is_queued=is_queued,
        )

    async def complete(self, request: Request, calls: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Return the result of unary calls that a response needs before it begins. Raises their
        DomainErrors, or CallerCancelled if the client disconnects."""
        return await sse.while_connected(request.receive, calls, self.active_calls)

    def call_response(
        self,
        start: Callable[[], Calls[Any]],
        writer: sse.ResponseWriter,
        names: Names,
        begin: sse.Begin | None = None,
    ) -> sse.CallResponse:
        """Respond with the events of calls in another format."""
        return sse.CallResponse(start, writer, self.active_calls, _rename(names), begin)


IDEMPOTENCY_KEY = "idempotency-key"

# Dependencies are async, because FastAPI runs the others in threads, and depend on each other as
# little as possible: each one costs 5 to 10 µs a request.


async def _context(connection: HTTPConnection) -> AppContext:
    return AppContext.of(connection)


async def _inference(request: Request) -> InferenceClient:
    context = AppContext.of(request)
    return context.inference.for_caller(await context.identify(request, Scope.GENERATE))


async def provide_control(request: Request) -> ControlClient:
    """The control service's client for a caller, whose scopes that service checks."""
    context = AppContext.of(request)
    caller = await context.identify(request, Scope.KNOWN)
    if not caller.principal.has(Scope.FILES_READ):  # which every scope for stored objects includes
        method = f"{request.method} {request.url.path}"
        raise ScopeMissing(scope=Scope.INFERENCE, method=method)
    return context.control.for_caller(caller)


async def _models(request: Request) -> InferenceClient:
    context = AppContext.of(request)
    return context.inference.for_caller(await context.identify(request, Scope.MODELS_READ))


async def _operator_control(request: Request) -> ControlClient:
    context = AppContext.of(request)
    return context.control.for_caller(await context.identify(request, Scope.ADMIN))


Context = Annotated[AppContext, Depends(_context)]
Inference = Annotated[InferenceClient, Depends(_inference)]
Models = Annotated[InferenceClient, Depends(_models)]
"""For what there is, which operators may see and, if the service lets them, change."""
Control = Annotated[ControlClient, Depends(provide_control)]
OperatorControl = Annotated[ControlClient, Depends(_operator_control)]
"""Clients for the authenticated caller. They are the first parameter of a route, because
parameters are resolved in order: nothing is read for a caller who is not authenticated."""


async def _json_object(request: Request) -> dict[str, Any]:
    fields = await AppContext.of(request).bodies.read(request, parse_object)
    return with_deployment(request.scope, fields)


async def _json_array(request: Request) -> list[Any]:
    return await AppContext.of(request).bodies.read(request, parse_array)


JsonObject = Annotated[dict[str, Any], Depends(_json_object)]
JsonArray = Annotated[list[Any], Depends(_json_array)]


async def idempotency_key(request: Request) -> str:
    """The client's idempotency key, else the request id, since gRPC may retry a call."""
    return request.headers.get(IDEMPOTENCY_KEY) or current_request_id()


_Names = Annotated[list[str], Query(default_factory=list)]
_SDK_NAMES = Query(alias="include[]", include_in_schema=False)


async def _include(sdk_names: Annotated[_Names, _SDK_NAMES], include: _Names) -> list[str]:
    """The query parameters `include`, which SDKs send as `include[]`."""
    return [*sdk_names, *include]


IdempotencyKey = Annotated[str, Depends(idempotency_key)]
Include = Annotated[list[str], Depends(_include)]
