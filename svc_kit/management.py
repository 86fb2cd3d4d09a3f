"""A small HTTP listener for operators, apart from the service's own port.

    GET /metrics   Prometheus text
    GET /healthz   200 while the event loop turns
    GET /readyz    200 while the service serves, else 503

It asks for no credential, so it belongs on loopback or a private network. Written on asyncio alone:
three routes for probes and scrapers are no reason for an HTTP framework in every service.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from svc_kit.network import Address, open_listener, parse_address

_log = logging.getLogger(__name__)

_MAX_HEAD_BYTES: Final = 16 * 1024
_PATIENCE_S: Final = 10.0
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


class _Answer(NamedTuple):
    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


class ManagementServer:
    """Serves metrics and probes of one process."""

    def __init__(
        self, *, listen: str, registry: CollectorRegistry, is_ready: Callable[[], bool]
    ) -> None:
        self._wanted = parse_address(listen)
        self._registry = registry
        self._is_ready = is_ready
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Begin to listen. Raises StartupError where the address cannot be had."""
        listener = open_listener(self._wanted)
        self._server = await asyncio.start_server(self._serve, sock=listener, limit=_MAX_HEAD_BYTES)

    @property
    def address(self) -> Address:
        """Where it listens, with the port that the system chose. Before `start`: what is wanted."""
        if self._server is None:
            return self._wanted
        return Address(self._wanted.host, self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                head = await _read_head(reader)
                answer = self._answer(head)
                writer.write(_render(answer, with_body=not head.startswith("HEAD ")))
                await writer.drain()
        except (TimeoutError, OSError):
            # A scraper that is slow or gone; it will come back.
            pass
        finally:
            writer.close()

    def _answer(self, head: str) -> _Answer:
        method, _, rest = head.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if not path.startswith("/"):
            return _Answer(400, b"not HTTP\n")
        if method not in ("GET", "HEAD"):
            return _Answer(405, b"GET only\n")
        if path == "/metrics":
            return _Answer(200, generate_latest(self._registry), CONTENT_TYPE_LATEST)
        if path == "/healthz":
            return _Answer(200, b"ok\n")
        if path == "/readyz":
            return _Answer(200, b"ready\n") if self._is_ready() else _Answer(503, b"not ready\n")
        return _Answer(404, b"try /metrics, /healthz or /readyz\n")


async def _read_head(reader: asyncio.StreamReader) -> str:
    """The request up to its empty line; empty where it is too long or cut off."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return ""
    return raw.decode("latin-1")


def _render(answer: _Answer, *, with_body: bool) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}\r\n"
        f"content-type: {answer.content_type}\r\n"
        f"content-length: {len(answer.body)}\r\n"
        "cache-control: no-store\r\n"
        "connection: close\r\n\r\n"
    )
    return head.encode() + (answer.body if with_body else b"")
