"""The outermost middleware: request ids, request limit, spans, metrics, access log."""

import logging
import secrets
import time
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from dialects.shared.parameters import ParameterReport
from gateway.http.errors import error_response
from gateway.http.large_bodies import release
from gateway.http.parameters import ignored_headers, start_report
from gateway.http.rate_limits import rate_limit_headers
from gateway.http.request_shares import RunningRequests
from svc_kit.errors import DomainError, InternalError, RouteNotFound, release_frames
from svc_kit.logs import project_var, request_id_var, start_call_fields
from svc_kit.metrics import HttpMetrics, exemplar
from svc_kit.tracing.span import (
    TRACEPARENT,
    Span,
    SpanKind,
    Tracer,
    set_current_span,
    valid_traceparent,
)

_log = logging.getLogger("gateway.access")
API_VERSION = b"2020-10-01"
UNMATCHED = "unmatched"
_PROBES = ("/health", "/ready")
"""Not limited, and logged at level debug."""
_DISCONNECTED = "corral.disconnected"
_START_MESSAGES = ("http.response.start", "websocket.accept", "websocket.http.response.start")
SWITCHING_PROTOCOLS = 101
SOCKET_ROUTE = "/v1/responses"
MAX_PATH = 200
"""Characters of a path in logs and spans."""


def new_request_id() -> str:
    """A random request id in OpenAI's format."""
    return f"req_{secrets.token_hex(16)}"


def mark_disconnected(scope: Scope) -> None:
    """Record for metrics and log that the client disconnected before the end of the response."""
    scope[_DISCONNECTED] = True


class _ResponseObserver:
    """Measures one response and adds the common headers."""

    def __init__(
        self, scope: Scope, send: Send, request_id: str, clock: Callable[[], float]
    ) -> None:
        self._scope = scope
        self._send = send
        self._clock = clock
        self._request_id = request_id.encode()
        self.report: ParameterReport | None = None
        self.started_at = clock()
        self.status = 0
        self.num_bytes = 0
        self.first_byte_at: float | None = None
        self.fields = start_call_fields()

    async def send(self, message: Message) -> None:
        """Send one message. Raises RouteNotFound for a WebSocket that no route has accepted."""
        if message["type"] == "websocket.close" and not self.status:
            path = self._scope["path"]
            raise RouteNotFound(method="WebSocket", path=path, routes=SOCKET_ROUTE)
        if message["type"] not in _START_MESSAGES:
            self.num_bytes += len(message.get("body") or message.get("text") or "")
            if self.first_byte_at is None and self.num_bytes:
                self.first_byte_at = self._clock()
        else:
            self.status = message.get("status", SWITCHING_PROTOCOLS)
            duration_ms = round((self._clock() - self.started_at) * 1000)
            headers = [
                *message.get("headers", ()),
                (b"x-request-id", self._request_id),
                (b"request-id", self._request_id),  # Anthropic's name
                (b"openai-processing-ms", b"%d" % duration_ms),
                (b"openai-version", API_VERSION),
                *rate_limit_headers(self._scope),
                *ignored_headers(self.report),
            ]
            message = {**message, "headers": headers}
        await self._send(message)


class RequestMiddleware:
    """The outermost ASGI middleware."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: HttpMetrics,
        max_requests: int,
        clock: Callable[[], float] = time.monotonic,
        request_ids: Callable[[], str] = new_request_id,
        tracer: Tracer | None = None,
        *,
        strict_parameters: bool = False,
    ) -> None:
        self._strict_parameters = strict_parameters
        self._tracer = tracer or Tracer()
        self._app = app
        self._metrics = metrics
        self._clock = clock
        self._request_ids = request_ids
        self._running = RunningRequests(max_requests)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve an HTTP request or a WebSocket."""
        request_id = self._request_ids()
        request_id_var.set(request_id)
        project_var.set("")
        span = self._start_span(scope)
        set_current_span(span)
        response = _ResponseObserver(scope, send, request_id, self._clock)
        self._running.add(scope)
        self._metrics.in_flight.set(self._running.number)
        try:
            await self._serve(scope, receive, response)
        finally:
            self._running.remove(scope)
            self._metrics.in_flight.set(self._running.number)
            release(scope)
            self._report(scope, response, span)

    def _start_span(self, scope: Scope) -> Span:
        headers = Headers(scope=scope)
        traceparent = valid_traceparent(headers.get(TRACEPARENT))
        if scope["path"] in _PROBES:
            return Span(traceparent)
        return self._tracer.start(scope.get("method", "GET"), SpanKind.SERVER, traceparent)

    async def _serve(self, scope: Scope, receive: Receive, response: _ResponseObserver) -> None:
        try:
            if scope["path"] not in _PROBES:
                self._running.check()
            response.report = start_report(Headers(scope=scope), strict=self._strict_parameters)
            await self._app(scope, receive, response.send)
            return
        except DomainError as error:
            failure = error
        except (ClientDisconnect, WebSocketDisconnect):
            mark_disconnected(scope)
            return
        except Exception:  # the outermost layer
            _log.exception("a request failed")
            failure = InternalError(request_id=request_id_var.get())
        release_frames(failure)
        if not response.status:
            await error_response(failure, scope)(scope, receive, response.send)

    def _report(self, scope: Scope, response: _ResponseObserver, span: Span) -> None:
        route = getattr(scope.get("route"), "path", UNMATCHED)
        status = "499" if _DISCONNECTED in scope else str(response.status)
        duration_s = self._clock() - response.started_at
        method = scope.get("method", "GET")  # the handshake of a WebSocket is a GET
        duration = self._metrics.duration.labels(method, route, status)
        duration.observe(duration_s, exemplar(span))
        self._metrics.sent_bytes.labels(route).inc(response.num_bytes)
        if span.is_recording:
            _end_span(span, scope, method, route, status)
        level = logging.DEBUG if route in _PROBES else logging.INFO
        fields = {
            "method": method,
            "path": scope["path"][:MAX_PATH],
            "status": status,
            "duration_s": round(duration_s, 4),
            "sent_bytes": response.num_bytes,
            **response.fields,
        }
        if response.first_byte_at is not None:
            fields["first_byte_s"] = round(response.first_byte_at - response.started_at, 4)
        _log.log(level, "request", extra={"fields": fields})


def _end_span(span: Span, scope: Scope, method: str, route: str, status: str) -> None:
    span.set(
        {
            "http.request.method": method,
            "http.route": route,
            "url.path": scope["path"][:MAX_PATH],
            "url.scheme": scope["scheme"],
            "http.response.status_code": int(status),
            "corral.request_id": request_id_var.get(),
            "corral.project": project_var.get(),
        }
    )
    span.end(name=f"{method} {route}", error=status if status >= "500" else None)


class LastResponses:
    """ASGI middleware: while the gateway ends, each response is the last one of its connection, so
    that clients and proxies leave before it is closed."""

    def __init__(self, app: ASGIApp, is_ending: Callable[[], bool]) -> None:
        self._app = app
        self._is_ending = is_ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_last(message: Message) -> None:
            if message["type"] == "http.response.start" and self._is_ending():
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        await self._app(scope, receive, send_last)
