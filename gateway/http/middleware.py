"""The outermost middleware: request id, limit of concurrent requests, metrics, access log."""

import logging
import secrets
import time
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.errors import error_response
from svc_kit.errors import DomainError, InternalError, QueueFull
from svc_kit.logs import project_var, request_id_var
from svc_kit.metrics import HttpMetrics

_log = logging.getLogger("gateway.access")
API_VERSION = b"2020-10-01"
UNMATCHED = "unmatched"
_PROBES = ("/health", "/ready")
"""Answered under any load, and logged only for debugging."""
_DISCONNECTED = "corral.disconnected"
_HEADS = ("http.response.start", "websocket.accept", "websocket.http.response.start")
SWITCHING_PROTOCOLS = 101


def new_request_id() -> str:
    """A fresh id, as OpenAI writes them."""
    return f"req_{secrets.token_hex(16)}"


def mark_disconnected(scope: Scope) -> None:
    """Notes for the log that the client left before its answer was complete."""
    scope[_DISCONNECTED] = True


class _Answer:
    """Watches one answer go out and adds the headers that all have."""

    def __init__(self, send: Send, request_id: str, clock: Callable[[], float]) -> None:
        self._send = send
        self._clock = clock
        self._request_id = request_id.encode()
        self.started_at = clock()
        self.status = 0
        self.num_bytes = 0

    async def send(self, message: Message) -> None:
        """Sends one message."""
        if message["type"] not in _HEADS:
            self.num_bytes += len(message.get("body") or message.get("text") or "")
        else:
            self.status = message.get("status", SWITCHING_PROTOCOLS)
            passed_ms = round((self._clock() - self.started_at) * 1000)
            own = [
                (b"x-request-id", self._request_id),
                (b"openai-processing-ms", b"%d" % passed_ms),
                (b"openai-version", API_VERSION),
            ]
            message = {**message, "headers": [*message.get("headers", ()), *own]}
        await self._send(message)


class RequestMiddleware:
    """ASGI application around all others."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: HttpMetrics,
        max_requests: int,
        clock: Callable[[], float] = time.monotonic,
        request_ids: Callable[[], str] = new_request_id,
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._max_requests = max_requests
        self._clock = clock
        self._request_ids = request_ids
        self._num_running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one HTTP request, or one WebSocket."""
        request_id = self._request_ids()
        request_id_var.set(request_id)
        project_var.set("")
        answer = _Answer(send, request_id, self._clock)
        self._num_running += 1
        self._metrics.in_flight.set(self._num_running)
        try:
            await self._serve(scope, receive, answer)
        finally:
            self._num_running -= 1
            self._metrics.in_flight.set(self._num_running)
            self._report(scope, answer)

    async def _serve(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        try:
            if self._num_running > self._max_requests and scope["path"] not in _PROBES:
                depth, limit = self._num_running - 1, self._max_requests
                raise QueueFull(bound="requests", depth=depth, limit=limit)
            await self._app(scope, receive, answer.send)
            return
        except DomainError as error:
            failure = error
        except Exception:
            _log.exception("a request failed")
            failure = InternalError(request_id=request_id_var.get())
        if not answer.status:
            await error_response(failure)(scope, receive, answer.send)

    def _report(self, scope: Scope, answer: _Answer) -> None:
        route = getattr(scope.get("route"), "path", UNMATCHED)
        status = "499" if _DISCONNECTED in scope else str(answer.status)
        passed = self._clock() - answer.started_at
        method = scope.get("method", "GET")  # as which a WebSocket begins
        self._metrics.duration.labels(method, route, status).observe(passed)
        self._metrics.sent_bytes.labels(route).inc(answer.num_bytes)
        level = logging.DEBUG if route in _PROBES else logging.INFO
        fields = {
            "method": method,
            "path": scope["path"][:200],
            "status": status,
            "duration_s": round(passed, 4),
            "sent_bytes": answer.num_bytes,
        }
        _log.log(level, "request", extra={"fields": fields})
