"""Binds the HTTP socket, and runs uvicorn without its signal handlers and with TLS in turns."""

import asyncio
import functools
import os
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from gateway.http.connection_limits import ConnectionLimits
from gateway.http.protocol import BoundedHttpProtocol, BoundedWebSocketProtocol
from svc_kit.certificates import ServerCertificate
from svc_kit.network import Address, allow_open_files, open_listener, peer_network
from svc_kit.tasks import retrieve_exception

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


class TlsHandshakes:
    """The TLS handshakes of a listener that have not ended. The loop by itself would do all that
    arrive together in one turn of its own, a millisecond of processor time each. An address has at
    most `max_per_address` of them; further ones are closed."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._of_addresses: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, handshake: "TlsHandshake", opened: socket.socket) -> None:
        """Begin a handshake on the open file of a socket. Raises OSError if no file is left."""
        limit, peer = self.limits.max_per_address, handshake.peer
        if limit is not None and self._of_addresses[peer] >= limit:
            return
        own = socket.socket(fileno=os.dup(opened.fileno()))
        self._of_addresses[peer] += 1
        task = asyncio.get_running_loop().create_task(handshake.run(own))
        self._tasks.add(task)

        def remove(task: asyncio.Task[None]) -> None:
            retrieve_exception(task)
            self._tasks.remove(task)
            self._of_addresses[peer] -= 1
            if not self._of_addresses[peer]:
                del self._of_addresses[peer]

        task.add_done_callback(remove)

    def cancel(self) -> None:
        """Close all of them."""
        for task in self._tasks:
            task.cancel()


class TlsHandshake(asyncio.Protocol):
    """A new connection: a `Parser` whose handshake begins in its turn, after the client's first
    bytes. Then the connection has the protocol that `make_protocol` returns."""

    def __init__(
        self,
        context: ssl.SSLContext,
        handshakes: TlsHandshakes,
        make_protocol: Callable[[], asyncio.Protocol],
    ) -> None:
        self.peer = ""
        self.busy_until = 0.0
        self.is_queued = False
        self._context = context
        self._handshakes = handshakes
        self._make_protocol = make_protocol
        self._turn = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket from the transport: `start_tls` of uvloop 0.23 misses bytes that have
        come before it."""
        # A client that has left has no name; one for which no file is left connects again.
        if (name := transport.get_extra_info("peername")) is not None:
            self.peer = peer_network(name[0])
            with suppress(OSError):
                self._handshakes.start(self, transport.get_extra_info("socket"))
        cast("asyncio.Transport", transport).abort()

    def parse_slice(self) -> bool:
        """Let the handshake begin."""
        self._handshakes.limits.parsers.charge_handshake(self)
        self._turn.set()
        return False

    def abort(self) -> None:
        """Do nothing: `parse_slice` raises nothing."""

    async def run(self, opened: socket.socket) -> None:
        """Wait for the first bytes and for the turn, and shake hands. The socket is closed if the
        client is too slow or has left."""
        limit_s = self._handshakes.limits.receive_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await _wait_readable(opened)
                self._handshakes.limits.parsers.parse(self)
                await self._turn.wait()
            if not opened.recv(1, socket.MSG_PEEK):
                raise EOFError
        except BaseException:
            opened.close()
            raise
        await asyncio.get_running_loop().connect_accepted_socket(
            self._make_protocol,
            opened,
            ssl=self._context,
            ssl_handshake_timeout=limit_s,
            ssl_shutdown_timeout=STOP_MARGIN_S,
        )


async def _wait_readable(opened: socket.socket) -> None:
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(opened, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(opened)


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
    handshakes = TlsHandshakes(limits)

    def accept(**options: Any) -> asyncio.Protocol:
        make_protocol = functools.partial(http, **options)
        if certificate is None:
            return cast("asyncio.Protocol", make_protocol())
        return TlsHandshake(certificate.listening_context(), handshakes, make_protocol)

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
    try:
        yield listener
    finally:
        listener.stop_accepting()
        handshakes.cancel()
        await serving
