"""Binds the HTTP socket and runs uvicorn without its signal handlers."""

import asyncio
import functools
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from gateway.http.connection_limits import ConnectionLimits
from gateway.http.protocol import BoundedHttpProtocol, BoundedWebSocketProtocol
from svc_kit.certificates import ServerCertificate
from svc_kit.connection_watch import watch_connections
from svc_kit.network import Address, allow_open_files, open_listener

BACKLOG = 1024
KEEP_ALIVE_S = 75
"""Longer than the idle timeout of clients, so that they never send to a closed connection."""
UNSENT_BYTES = 128 * 1024
STOP_MARGIN_S = 2.0
"""Time after the grace period to send the last bytes."""


class Listener(uvicorn.Server):
    """uvicorn without signal handlers, which are the service's."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ready = asyncio.Event()
        self._stopping = asyncio.Event()

    async def main_loop(self) -> None:
        """Run uvicorn's tick, which updates the Date header, once a second until stopped."""
        while not await self.on_tick(counter=0):
            try:
                async with asyncio.timeout(1):
                    await self._stopping.wait()
            except TimeoutError:
                pass

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start accepting connections."""
        await super().startup(sockets)
        self._ready.set()

    async def wait_ready(self) -> None:
        """Wait until connections are accepted."""
        await self._ready.wait()

    def stop_accepting(self) -> None:
        """Close the socket and idle connections. Running requests continue."""
        self.should_exit = True
        self._stopping.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield


def bind(address: Address, unread_limit_s: float) -> socket.socket:
    """Listen on an address; port 0 means any free port. Raises StartupError.

    Connections inherit two limits if the system supports them: the kernel buffers at most
    UNSENT_BYTES for a client that does not read, and closes the connection if the client reads
    nothing for `unread_limit_s` seconds.
    """
    listener = open_listener(address)
    allow_open_files()
    limits = {"TCP_USER_TIMEOUT": round(unread_limit_s * 1000), "TCP_NOTSENT_LOWAT": UNSENT_BYTES}
    for name, value in limits.items():
        option = getattr(socket, name, None)
        if option is not None:
            listener.setsockopt(socket.IPPROTO_TCP, option, value)
    listener.setblocking(False)
    return listener


@asynccontextmanager
async def run_listener(
    app: ASGIApp,
    bound: socket.socket,
    *,
    certificate: ServerCertificate | None,
    grace_s: float,
    limits: ConnectionLimits,
    frame_bytes: int,
    trusted_proxies: Sequence[str] = (),
) -> AsyncIterator[Listener]:
    """Serve `app` on a bound socket. On exit, wait at most `grace_s` for running requests.

    `frame_bytes` limits WebSocket messages. `trusted_proxies` are networks whose proxies name their
    clients. With a certificate, it serves HTTPS.
    """
    http: Any = functools.partial(BoundedHttpProtocol, limits=limits)
    websocket: Any = functools.partial(BoundedWebSocketProtocol, limits=limits)
    config = uvicorn.Config(
        app,
        http=http,
        ws=websocket,
        ws_max_size=frame_bytes,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=list(trusted_proxies),
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(grace_s + STOP_MARGIN_S)),
        ssl_context_factory=None
        if certificate is None
        else lambda *default: certificate.listening_context(),
    )
    listener = Listener(config)
    serving = asyncio.create_task(listener.serve(sockets=[bound]))
    await listener.wait_ready()
    watching = None
    if certificate is not None and limits.max_per_address is not None:
        # Its protocols do not see connections whose handshake has not ended.
        port = bound.getsockname()[1]
        watch = watch_connections(port, limits.max_per_address, of_each=True, known=limits.files)
        watching = asyncio.create_task(watch)
    try:
        yield listener
    finally:
        if watching is not None:
            watching.cancel()
        listener.stop_accepting()
        await serving
