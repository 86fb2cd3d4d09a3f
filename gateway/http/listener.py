"""Binds the HTTP socket, and runs uvicorn without its signal handlers and with TLS in turns."""

import asyncio
import functools
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from gateway.http.connection_limits import ConnectionLimits
from gateway.http.protocol import BoundedHttpProtocol, BoundedWebSocketProtocol
from svc_kit.certificates import ServerCertificate
from svc_kit.connection_watch import watch_connections
from svc_kit.network import Address, allow_open_files, open_listener, peer_network

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


class TlsHandshake(asyncio.Protocol):
    """A new connection: a `Parser` whose handshake begins in its turn. The loop by itself would do
    all that arrive together in one turn of its own.

    Then the connection has the protocol that `make_protocol` returns.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        limits: ConnectionLimits,
        make_protocol: Callable[[], asyncio.Protocol],
    ) -> None:
        self.peer = ""
        self.busy_until = 0.0
        self.is_queued = False
        self._context = context
        self._limits = limits
        self._make_protocol = make_protocol
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket from the transport, and wait for the client's first bytes."""
        # `start_tls` of uvloop 0.23 misses bytes that have come before it.
        self._socket = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        self.peer = peer_network(transport.get_extra_info("peername")[0])
        cast("asyncio.Transport", transport).abort()
        self._loop.add_reader(self._socket, self._on_bytes)
        self._timer = self._loop.call_later(self._limits.receive_timeout_s, self.abort)

    def _on_bytes(self) -> None:
        self._loop.remove_reader(self._socket)
        self._limits.parsers.parse(self)

    def parse_slice(self) -> bool:
        """Begin the handshake."""
        if self._timer is not None:
            self._timer.cancel()
        self._limits.parsers.charge_handshake(self)
        self._task = self._loop.create_task(self._shake_hands())
        return False

    def abort(self) -> None:
        """Close the connection at once."""
        self._loop.remove_reader(self._socket)
        self._socket.close()

    async def _shake_hands(self) -> None:
        with suppress(OSError):  # also of TLS, and a timeout: the connection is closed
            await self._loop.connect_accepted_socket(
                self._make_protocol, self._socket, ssl=self._context
            )


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

    def accept(**options: Any) -> asyncio.Protocol:
        make_protocol = functools.partial(http, **options)
        if certificate is None:
            return cast("asyncio.Protocol", make_protocol())
        return TlsHandshake(certificate.listening_context(), limits, make_protocol)

    websocket: Any = functools.partial(BoundedWebSocketProtocol, limits=limits)
    config = uvicorn.Config(
        app,
        http=accept,  # type: ignore[arg-type]  # it only calls it
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
