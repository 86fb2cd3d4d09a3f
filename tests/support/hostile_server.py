"""An HTTP server on loopback that misbehaves in one way, and counts what it could do."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

_OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n"
_BLOCK = b" " * 65_536


@dataclass
class HostileServer:
    """What happened so far. `began` is set when it has sent something, `closed`
    when a connection is closed."""

    url: str = ""
    num_requests: int = 0
    num_bytes: int = 0
    began: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        """Send and count. Raises ConnectionError once the client is gone."""
        writer.write(data)
        await writer.drain()
        self.num_bytes += len(data)
        self.began.set()


Behaviour = Callable[[HostileServer, asyncio.StreamWriter], Awaitable[None]]


async def endless_body(server: HostileServer, writer: asyncio.StreamWriter) -> None:
    """Spaces, which JSON may begin with, until the client closes."""
    await server.send(writer, _OK + b"\r\n")
    while True:
        await server.send(writer, _BLOCK)


async def slow_drip(server: HostileServer, writer: asyncio.StreamWriter) -> None:
    """A byte every now and then, so that no read times out."""
    await server.send(writer, _OK + b"content-length: 1000000\r\n\r\n")
    while True:
        await server.send(writer, b" ")
        await asyncio.sleep(0.02)


async def giant_headers(server: HostileServer, writer: asyncio.StreamWriter) -> None:
    """Headers that never end."""
    await server.send(writer, _OK)
    while True:
        await server.send(writer, b"x: " + _BLOCK + b"\r\n")


async def endless_redirects(server: HostileServer, writer: asyncio.StreamWriter) -> None:
    """To another path each time."""
    location = b"location: /%d/model.gguf\r\n" % server.num_requests
    await server.send(
        writer,
        b"HTTP/1.1 307 Go\r\n" + location + b"content-length: 0\r\nconnection: close\r\n\r\n",
    )


async def endless_redirect_body(server: HostileServer, writer: asyncio.StreamWriter) -> None:
    """A redirect whose own body never ends."""
    await server.send(writer, b"HTTP/1.1 307 Go\r\nlocation: /x/model.gguf\r\n\r\n")
    while True:
        await server.send(writer, _BLOCK)


async def html(server: HostileServer, writer: asyncio.StreamWriter) -> None:
    """The page of a proxy, as JSON."""
    await server.send(writer, _OK + b"content-length: 6\r\n\r\n<html>")


async def another_shape(server: HostileServer, writer: asyncio.StreamWriter) -> None:
    """JSON that means nothing."""
    body = b'{"keys": [{"kty": 5, "kid": []}], "siblings": {"a": 1}, "sha": [], "jsonrpc": []}'
    await server.send(writer, _OK + b"content-length: %d\r\n\r\n" % len(body) + body)


async def gzip_bomb(server: HostileServer, writer: asyncio.StreamWriter) -> None:
    """Compressed, although that was not asked for."""
    body = gzip.compress(b" " * 4_000_000)
    head = _OK + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(body)
    await server.send(writer, head + body)


async def short_body(server: HostileServer, writer: asyncio.StreamWriter) -> None:
    """Fewer bytes than declared."""
    await server.send(writer, _OK + b"content-length: 1000\r\n\r\n{")


async def endless_error(server: HostileServer, writer: asyncio.StreamWriter) -> None:
    """An error with a body that never ends."""
    await server.send(writer, b"HTTP/1.1 500 No\r\ncontent-type: application/json\r\n\r\n")
    while True:
        await server.send(writer, _BLOCK)


BEHAVIOURS: tuple[Behaviour, ...] = (
    *(endless_body, slow_drip, giant_headers, endless_redirects, endless_redirect_body, html),
    *(another_shape, gzip_bomb, short_body, endless_error),
)


@asynccontextmanager
async def run_hostile_server(behaviour: Behaviour) -> AsyncIterator[HostileServer]:
    """Answer every request in this way."""
    hostile, tasks = HostileServer(), set[asyncio.Task[None]]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                hostile.num_requests += 1
                await behaviour(hostile, writer)
                writer.close()
                await writer.wait_closed()
        finally:
            writer.transport.abort()
            hostile.closed.set()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(answer(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        hostile.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield hostile
        finally:
            for task in list(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
