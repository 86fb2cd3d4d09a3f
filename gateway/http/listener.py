"""The HTTP listener: binds the socket and runs uvicorn without its signal handlers."""

import asyncio
import functools
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from gateway.http.protocol import BoundedHttpProtocol, BoundedWebSocketProtocol
from svc_kit.lifecycle import StartupError
from svc_kit.network import Address, open_listener
from svc_kit.settings.groups import TlsSettings

BACKLOG = 1024
KEEP_ALIVE_S = 75
"""Longer than clients keep idle connections: they close first and never write to a closed one."""
UNSENT_BYTES = 128 * 1024
STOP_MARGIN_S = 2.0
"""What a connection gets to take its last bytes after the grace."""


class Listener(uvicorn.Server):
    """A running uvicorn without signal handlers: signals belong to the service."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ready = asyncio.Event()
        self._stopping = asyncio.Event()

    async def main_loop(self) -> None:
        """Refresh the Date header once a second until stopped."""
        while not await self.on_tick(counter=0):
            try:
                async with asyncio.timeout(1):
                    await self._stopping.wait()
            except TimeoutError:
                pass  # a second has passed

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts to accept."""
        await super().startup(sockets)
        self._ready.set()

    async def accepting(self) -> None:
        """Returns when connections are accepted."""
        await self._ready.wait()

    def stop_accepting(self) -> None:
        """Close the socket and idle connections; running requests continue."""
        self.should_exit = True
        self._stopping.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures none."""
        yield


def bind(address: Address, unread_limit_s: float) -> socket.socket:
    """Listens on an address; port 0 takes a free one.

    Connections inherit two limits where the system has them: at most UNSENT_BYTES wait in the
    kernel for a client that does not read, and one that reads nothing for `unread_limit_s` seconds
    loses its connection, because a write to a full socket would only wait. Raises StartupError when
    the address cannot be had.
    """
    listener = open_listener(address)
    limits = {"TCP_USER_TIMEOUT": round(unread_limit_s * 1000), "TCP_NOTSENT_LOWAT": UNSENT_BYTES}
    for name, value in limits.items():
        option = getattr(socket, name, None)
        if option is not None:
            listener.setsockopt(socket.IPPROTO_TCP, option, value)
    listener.setblocking(False)
    return listener


@asynccontextmanager
async def listening(
    app: ASGIApp,
    bound: socket.socket,
    *,
    tls: TlsSettings | None,
    grace_s: float,
    head_timeout_s: float,
    unread_limit_s: float,
    frame_bytes: int,
) -> AsyncIterator[Listener]:
    """Serves `app` on a bound socket; leaving waits `grace_s` at most for running requests.

    A message of a WebSocket has at most `frame_bytes`. A connection that has no room for another
    write for `unread_limit_s`, and whose client takes next to nothing meanwhile, is cut.

    Raises StartupError when the TLS files cannot be used.
    """
    http: Any = functools.partial(
        BoundedHttpProtocol, head_timeout_s=head_timeout_s, unread_limit_s=unread_limit_s
    )
    websocket: Any = functools.partial(BoundedWebSocketProtocol, unread_limit_s=unread_limit_s)
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
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(grace_s + STOP_MARGIN_S)),
        **_tls_options(tls),
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        bound.close()
        raise StartupError(f"The TLS files cannot be used: {error}") from error
    listener = Listener(config)
    serving = asyncio.create_task(listener.serve(sockets=[bound]))
    await listener.accepting()
    try:
        yield listener
    finally:
        listener.stop_accepting()
        await serving


def _tls_options(tls: TlsSettings | None) -> dict[str, Any]:
    if tls is None:
        return {}
    options: dict[str, Any] = {"ssl_certfile": tls.certificate_file, "ssl_keyfile": tls.key_file}
    if tls.client_ca_file is not None:
        options |= {"ssl_ca_certs": tls.client_ca_file, "ssl_cert_reqs": ssl.CERT_REQUIRED}
    return options
