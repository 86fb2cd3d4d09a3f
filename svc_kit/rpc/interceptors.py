"""The server interceptor, which does the following around every servicer method:

request id (created here; sent in initial metadata and trailers), access log, span, metrics, errors
(a DomainError becomes a status with details, any other exception INTERNAL with the request id),
authentication and scope check, deadline (default and maximum), and then reading of the request.

It is one interceptor because each nested one would wrap every stream in another generator. Initial
metadata is sent with the first message, so that gRPC can retry a call that fails earlier.
"""

import asyncio
import contextvars
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import grpc
from prometheus_client import Gauge

from svc_kit import errors
from svc_kit.auth.authenticator import Authenticator, find_credential
from svc_kit.auth.principal import current_principal, peer_host, set_principal
from svc_kit.auth.scopes import MethodOptions, Scope, find_method_options
from svc_kit.errors.kinds import PermissionDenied, ResourceExhausted
from svc_kit.errors.status import REQUEST_ID_KEY, status_row, to_status
from svc_kit.logs import log_errors, project_var, request_id_var, start_call_fields
from svc_kit.metrics import RpcMetrics, exemplar
from svc_kit.rpc.admin_call import (
    AdminCall,
    RecentRefusals,
    RecordCall,
    current_admin_call,
    set_admin_call,
)
from svc_kit.rpc.movable_stream import MAY_MOVE_KEY
from svc_kit.rpc.refusal_pace import RefusalPace
from svc_kit.rpc.request_reader import RequestReader
from svc_kit.settings.groups import ServerSettings
from svc_kit.tracing.span import (
    TRACEPARENT,
    Span,
    SpanKind,
    Tracer,
    set_current_span,
    valid_traceparent,
)

_log = logging.getLogger(__name__)
_FAULTS: Final = frozenset(
    ("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS")
)
"""Codes that are errors of a server in OpenTelemetry's conventions."""
_MAX_LABEL: Final = 128
_UNKNOWN: Final = "unknown"
"""The metric label of all unknown methods, so that callers cannot create time series."""
MapError = Callable[[errors.DomainError], Awaitable[errors.DomainError]]
_deadline: contextvars.ContextVar[float | None] = contextvars.ContextVar("deadline", default=None)

_may_move: contextvars.ContextVar[bool] = contextvars.ContextVar("may_move", default=False)


def may_move() -> bool:
    """Whether the running call has `x-may-move`."""
    return _may_move.get()


def current_deadline() -> float | None:
    """The deadline of the running call on the clock of `time.monotonic`; None without one."""
    return _deadline.get()


def new_request_id() -> str:
    """A random request id. Ids sent by callers are only logged."""
    return f"req_{secrets.token_hex(12)}"


@dataclass(frozen=True)
class _Method:
    """What the interceptor stores about a method."""

    name: str
    scope: Scope
    is_long_lived: bool
    receives_stream: bool
    in_flight: Gauge
    log_level: int

    def is_traced(self, traceparent: str) -> bool:
        """Whether its calls have spans. Calls on a service's own behalf have one only as a part of
        a trace: they are frequent, and nobody asks for them."""
        if self.is_long_lived or self.scope is Scope.PUBLIC:
            return False
        return self.scope is not Scope.SERVICE or bool(traceparent)


@dataclass
class _Call:
    method: _Method
    context: grpc.aio.ServicerContext[Any, Any]
    metadata: Mapping[str, Any]
    span: Span
    request_id: str = field(default_factory=new_request_id)
    started: float = field(default_factory=time.perf_counter)
    key_id: str = ""
    is_authenticated: bool = False
    fields: dict[str, Any] = field(default_factory=start_call_fields)
    """Of the method, for the log."""


class RpcInterceptor(grpc.aio.ServerInterceptor):
    """The only server interceptor; see the module's docstring."""

    def __init__(
        self,
        *,
        authenticator: Authenticator,
        metrics: RpcMetrics,
        settings: ServerSettings | None = None,
        client_names: frozenset[str] = frozenset(),
        tracer: Tracer | None = None,
        record_call: RecordCall | None = None,
        map_error: MapError | None = None,
    ) -> None:
        """`record_call` is called after each successful call of a method with the scope admin, and
        for those that are refused to a known caller; `map_error` with each error of a method: it
        returns the one that the caller gets."""
        self._map_error = map_error
        self._record_call = record_call
        self._refusals = RecentRefusals()
        self._pace = RefusalPace()
        self._tracer = tracer or Tracer()
        self._authenticator = authenticator
        self._client_names = client_names
        self._metrics = metrics
        self._settings = settings or ServerSettings()
        self._requests = RequestReader(self._settings)
        self._handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        refuse: Any = grpc.stream_stream_rpc_method_handler(_refuse)
        self._unknown = self._wrap(_UNKNOWN, MethodOptions(Scope.KNOWN), refuse)
        self._running: dict[asyncio.Timeout, _Method] = {}
        self._drained: set[asyncio.Timeout] = set()
        self._is_draining = False

    async def intercept_service(
        self,
        continuation: Callable[[Any], Awaitable[Any]],
        handler_call_details: Any,
    ) -> Any:
        """Wrap the servicer's handler; wrapped handlers are cached by method."""
        name = handler_call_details.method
        wrapped = self._handlers.get(name)
        if wrapped is not None:
            return wrapped
        handler = await continuation(handler_call_details)
        self._handlers[name] = self._wrap(name, find_method_options(name), handler)
        return self._handlers[name]

    async def refuse(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Answer a call of a method that does not exist."""
        await self._unknown.stream_stream(None, context)

    def end_calls(self, *, only_long_lived: bool) -> None:
        """End running calls with DRAINING, and reject new calls of long-lived streams."""
        self._is_draining = True
        now = asyncio.get_running_loop().time()
        for timer, method in self._running.items():
            if (method.is_long_lived or not only_long_lived) and not timer.expired():
                self._drained.add(timer)
                timer.reschedule(now)

    # ---- wrapping a handler

    def _wrap(self, name: str, options: MethodOptions, handler: Any) -> Any:
        scope = options.scope
        method = _Method(
            name=name,
            scope=scope,
            is_long_lived=options.is_long_lived,
            receives_stream=handler.request_streaming,
            in_flight=self._metrics.in_flight.labels(name),
            # Probes, and calls that services make every few seconds.
            log_level=logging.DEBUG if scope in (Scope.PUBLIC, Scope.SERVICE) else logging.INFO,
        )
        serve, receive = _function_of(handler), self._receiver(method, handler)

        # Also unary requests are served as streams: gRPC would read their message first.
        async def respond(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            async def work() -> Any:
                answer = await serve(await receive(context), context)
                if method.scope is Scope.ADMIN and self._record_call is not None:
                    await self._record_call(current_admin_call())
                return answer

            return await self._run(method, context, work)

        async def stream(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            async def work() -> None:
                await _forward(serve(await receive(context), context), context)

            await self._run(method, context, work)

        # Without a deserializer, so that parse errors can be returned with details.
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(stream, None, handler.response_serializer)
        return grpc.stream_unary_rpc_method_handler(respond, None, handler.response_serializer)

    def _receiver(
        self, method: _Method, handler: Any
    ) -> Callable[[grpc.aio.ServicerContext[Any, Any]], Awaitable[Any]]:
        """A function that reads a call's message, or returns an iterator over a stream of them."""
        requests, deserialize = self._requests, handler.request_deserializer
        is_public = method.scope is Scope.PUBLIC
        parse = requests.parser(method.name, deserialize, is_public=is_public)

        async def receive_one(context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            request = await requests.read_one(context, parse)
            if method.scope is Scope.GENERATE and hasattr(request, "model"):
                current_principal().check_model(request.model)
            elif method.scope is Scope.ADMIN:
                set_admin_call(AdminCall(method.name, context.peer(), request))
            return request

        async def receive_each(context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            return requests.read_each(context, parse, is_long_lived=method.is_long_lived)

        return receive_each if handler.request_streaming else receive_one

    # ---- running a call

    async def _run(
        self,
        method: _Method,
        context: grpc.aio.ServicerContext[Any, Any],
        serve: Callable[[], Awaitable[Any]],
    ) -> Any:
        metadata = dict(context.invocation_metadata() or ())
        call = _Call(method, context, metadata, self._start_span(method, metadata))
        request_id_var.set(call.request_id)
        _may_move.set(MAY_MOVE_KEY in metadata)
        set_current_span(call.span)
        context.set_trailing_metadata(((REQUEST_ID_KEY, call.request_id),))
        method.in_flight.inc()
        error: errors.DomainError | None = None
        try:
            await self._authenticate(call)
            call.is_authenticated = True
            return await self._serve_mapped(call, serve)
        except errors.DomainError as raised:
            error = raised
            if call.is_authenticated and isinstance(error, ResourceExhausted):
                await self._pace.wait(project_var.get(), context.time_remaining())
        except (asyncio.CancelledError, grpc.aio.InternalError):
            # The caller has disconnected; there is nowhere to send the error.
            is_late = context.time_remaining() == 0
            error = errors.DeadlineExpired(phase="call") if is_late else errors.CallerCancelled()
            raise
        except grpc.aio.AbortError:
            raise
        except Exception as defect:  # the outermost layer
            error = _as_domain_error(defect, call)
        finally:
            method.in_flight.dec()
            self._record(call, error)
        errors.release_frames(error)
        if method.scope is Scope.ADMIN and isinstance(error, PermissionDenied):
            await self._record_refusal(call, error)
        if method.receives_stream and call.is_authenticated and not method.is_long_lived:
            await self._requests.discard_rest(context)
        return await context.abort(*to_status(error, call.request_id))

    async def _record_refusal(self, call: _Call, error: errors.DomainError) -> None:
        if (record := self._record_call) is not None:
            name = call.method.name
            refused = AdminCall(name, call.context.peer(), None, error.reason)
            with log_errors(_log, "a refused call is not in the audit log"):
                await self._refusals.record(call.key_id, name, lambda: record(refused))

    def _start_span(self, method: _Method, metadata: Mapping[str, Any]) -> Span:
        traceparent = valid_traceparent(metadata.get(TRACEPARENT))
        if not method.is_traced(traceparent):
            return Span(traceparent)
        return self._tracer.start(method.name.removeprefix("/"), SpanKind.SERVER, traceparent)

    async def _authenticate(self, call: _Call) -> None:
        self._check_client_name(call)
        scope = call.method.scope
        if scope is Scope.PUBLIC:
            return
        pairs: Any = call.context.invocation_metadata() or ()
        authorization = find_credential(pairs)
        principal = await self._authenticator.identify(authorization, call.metadata)
        call.key_id = principal.key_id
        set_principal(principal)
        project_var.set(principal.project)
        if not principal.has(scope):
            raise errors.ScopeMissing(scope=scope.value, method=call.method.name)
        principal.check_address(peer_host(call.context.peer()))

    def _check_client_name(self, call: _Call) -> None:
        if not self._client_names:
            return
        names = call.context.auth_context().get("x509_subject_alternative_name", ())
        shown = [name.decode(errors="replace") for name in names]
        if self._client_names.isdisjoint(shown):
            raise errors.ClientNotAllowed(names=", ".join(shown))

    async def _serve_mapped(self, call: _Call, serve: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await self._serve_within_deadline(call, serve)
        except errors.DomainError as error:
            if self._map_error is None:
                raise
            raise await self._map_error(error) from error.__cause__

    async def _serve_within_deadline(self, call: _Call, serve: Callable[[], Awaitable[Any]]) -> Any:
        method = call.method
        timer = asyncio.timeout(self._timeout_s(method, call.context.time_remaining()))
        _deadline.set(timer.when())
        try:
            async with timer:
                if method.is_long_lived and self._is_draining:
                    raise errors.Draining()
                self._running[timer] = method
                return await serve()
        except TimeoutError:
            if not timer.expired():
                raise
            if timer in self._drained:
                raise errors.Draining() from None
            raise errors.DeadlineExpired(phase="call") from None
        finally:
            self._running.pop(timer, None)
            self._drained.discard(timer)

    def _timeout_s(self, method: _Method, requested: float | None) -> float | None:
        if requested is not None:
            return min(requested, self._settings.max_deadline_s)
        return None if method.is_long_lived else self._settings.default_deadline_s

    def _record(self, call: _Call, error: errors.DomainError | None) -> None:
        method, seconds = call.method, time.perf_counter() - call.started
        status = call.context.code() or grpc.StatusCode.OK
        code = (status if error is None else status_row(error).grpc_code).name
        reason = "" if error is None else error.reason
        self._metrics.duration.labels(method.name, code).observe(seconds, exemplar(call.span))
        self._metrics.calls.labels(method.name, code, reason).inc()
        if call.span.is_recording:
            _end_span(call, code, reason)
        level = logging.ERROR if isinstance(error, errors.Internal) else method.log_level
        if not _log.isEnabledFor(level):
            return
        fields = {
            "method": method.name,
            "code": code,
            "reason": reason,
            "duration_ms": round(seconds * 1000, 3),
            "peer": call.context.peer(),
            "key": call.key_id,
            **call.fields,
            **_labels(call.metadata),
        }
        events = {name: value for name, value in fields.items() if value != ""}
        _log.log(level, "call ended", extra={"fields": events})


def _end_span(call: _Call, code: str, reason: str) -> None:
    attributes = {
        "rpc.system.name": "grpc",
        "rpc.method": call.method.name.removeprefix("/"),
        "rpc.response.status_code": code,
        "corral.request_id": call.request_id,
        "corral.project": project_var.get(),
        "error.type": reason,
    }
    call.span.set({name: value for name, value in attributes.items() if value})
    call.span.end(error=reason if code in _FAULTS else None)


def _labels(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The caller's own request id and user agent, for the log."""
    keys = {
        "caller_request_id": REQUEST_ID_KEY,
        "user_agent": "user-agent",
    }
    return {
        label: str(metadata[key])[:_MAX_LABEL] for label, key in keys.items() if key in metadata
    }


def _as_domain_error(defect: Exception, call: _Call) -> errors.DomainError:
    """The error for an unexpected exception, which reveals only the request id."""
    is_unimplemented = call.context.code() is grpc.StatusCode.UNIMPLEMENTED
    if isinstance(defect, NotImplementedError) and is_unimplemented:
        # Raised by the generated method, which the servicer does not override.
        return errors.FeatureUnsupported(feature=call.method.name)
    _log.error("%s failed", call.method.name, exc_info=defect)
    return errors.InternalError(request_id=call.request_id)


async def _forward(
    messages: AsyncIterator[Any] | Awaitable[None], context: grpc.aio.ServicerContext[Any, Any]
) -> None:
    """Send the messages of a servicer's generator, and always close the generator."""
    if isinstance(messages, Awaitable):
        # The servicer writes to the context itself.
        await messages
        return
    try:
        async for message in messages:
            await accept_call(context)
            await context.write(message)
            break
        # A second loop keeps the work per further message minimal.
        async for message in messages:
            await context.write(message)
    finally:
        await messages.aclose()  # type: ignore[attr-defined]


async def accept_call(context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """Send the initial metadata, with the request id, before the first message."""
    try:
        await context.send_initial_metadata(((REQUEST_ID_KEY, request_id_var.get()),))
    except grpc.aio.UsageError:
        pass  # sent already


async def _refuse(
    requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]
) -> None:
    """The handler of unknown methods. Streaming, so that no request is read or parsed."""
    raise errors.FeatureUnsupported(feature="the method of this call")


def _function_of(handler: Any) -> Callable[[Any, Any], Any]:
    streaming = handler.unary_stream or handler.stream_unary or handler.stream_stream
    return cast("Callable[[Any, Any], Any]", handler.unary_unary or streaming)
