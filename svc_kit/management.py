"""HTTP server for metrics and probes, on a separate port without authentication.

    GET /metrics   Prometheus text format, or OpenMetrics, with exemplars, where it is accepted
    GET /healthz   200 while the event loop runs
    GET /readyz    200 while the service is ready, else 503

Built on asyncio, because the services other than the gateway do not depend on an HTTP framework.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from svc_kit.network import Address, open_listener, parse_address

_log = logging.getLogger(__name__)

_MAX_HEAD_BYTES: Final = 16 * 1024
_TIMEOUT_S: Final = 10.0
_MAX_CONNECTIONS: Final = 64
"""Further ones are closed at once."""
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


class _Response(NamedTuple):
    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


@asynccontextmanager
async def run_management(
    listen: str | None, registry: CollectorRegistry, is_ready: Callable[[], Awaitable[bool]]
) -> AsyncIterator["ManagementServer | None"]:
    """Serve metrics and probes while the context is open; None without an address. Raises
    StartupError if the address cannot be bound."""
    if listen is None:
        yield None
        return
    server = ManagementServer(listen=listen, registry=registry, is_ready=is_ready)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


class ManagementServer:
    """Serves metrics and probes of one process."""

    def __init__(
        self, *, listen: str, registry: CollectorRegistry, is_ready: Callable[[], Awaitable[bool]]
    ) -> None:
        self._requested = parse_address(listen)
        self._registry = registry
        self._is_ready = is_ready
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        """Start listening. Raises StartupError if the address cannot be bound."""
        listener = open_listener(self._requested)
        self._server = await asyncio.start_server(self._serve, sock=listener, limit=_MAX_HEAD_BYTES)

    @property
    def address(self) -> Address:
        """The address, with the port in use after `start`."""
        if self._server is None:
            return self._requested
        return Address(self._requested.host, self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        if self._server is not None:
            self._server.close()
            self._server = None
        connections = [*self._connections]
        for writer in connections:
            writer.transport.abort()
        closing = (writer.wait_closed() for writer in connections)
        await asyncio.gather(*closing, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None or len(self._connections) >= _MAX_CONNECTIONS:
            writer.close()
            return
        self._connections.add(writer)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                head = await _read_head(reader)
                response = await self._respond(head)
                writer.write(_render(response, with_body=not head.startswith("HEAD ")))
                await writer.drain()
        except (TimeoutError, OSError):
            # The client is slow or disconnected.
            pass
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _respond(self, head: str) -> _Response:
        method, _, rest = head.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if not path.startswith("/"):
            return _Response(400, b"not HTTP\n")
        if method not in ("GET", "HEAD"):
            return _Response(405, b"GET only\n")
        if path == "/metrics":
            return self._metrics(_accepted_types(head))
        if path == "/healthz":
            return _Response(200, b"ok\n")
        if path == "/readyz":
            is_ready = await self._is_ready()
            return _Response(200, b"ready\n") if is_ready else _Response(503, b"not ready\n")
        return _Response(404, b"try /metrics, /healthz or /readyz\n")

    def _metrics(self, accepted_types: str) -> _Response:
        if "application/openmetrics-text" not in accepted_types:
            return _Response(200, generate_latest(self._registry), CONTENT_TYPE_LATEST)
        # All names are valid in every version; another escaping replaces the colons of vLLM's.
        encode: Callable[..., bytes] = openmetrics.generate_latest
        body = encode(self._registry, escaping=openmetrics.ALLOWUTF8)
        return _Response(200, body, openmetrics.CONTENT_TYPE_LATEST)


async def _read_head(reader: asyncio.StreamReader) -> str:
    """Read the request line and headers; empty if too long or incomplete."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return ""
    return raw.decode("latin-1")


def _accepted_types(head: str) -> str:
    """The Accept header, empty if there is none."""
    for line in head.split("\r\n")[1:]:
        name, _, value = line.partition(":")
        if name.lower() == "accept":
            return value.strip()
    return ""


def _render(response: _Response, *, with_body: bool) -> bytes:
    head = (
        f"HTTP/1.1 {response.status} {_REASONS[response.status]}\r\n"
        f"content-type: {response.content_type}\r\n"
        f"content-length: {len(response.body)}\r\n"
        "cache-control: no-store\r\n"
        "connection: close\r\n\r\n"
    )
    return head.encode() + (response.body if with_body else b"")
