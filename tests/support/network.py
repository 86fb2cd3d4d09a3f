"""A network on loopback between a client and a server, which a test can break and mend."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field

_PIECE_BYTES = 65_536


@dataclass
class Network:
    """Passes connections on to a port of loopback."""

    port: int
    url: str = ""
    is_broken: bool = False
    left_bytes: int | None = None
    """How much the server may still send before the network breaks. None: any amount."""
    prefix: bytes = b"/"
    """The beginning of paths, which it takes away, as proxies do, from the head of a piece."""
    flows: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared while pieces of clients wait."""
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    def cut(self) -> None:
        """Break all connections, and new ones until `mend`."""
        self.is_broken = True
        for writer in self._writers:
            writer.transport.abort()

    def mend(self) -> None:
        self.is_broken, self.left_bytes = False, None

    def _count(self, piece: bytes) -> None:
        if self.left_bytes is not None:
            self.left_bytes -= len(piece)
            if self.left_bytes < 0:
                self.cut()

    async def _without_prefix(self, piece: bytes) -> bytes:
        await self.flows.wait()
        verb, space, rest = piece.partition(b" ")
        if not verb.isupper() or not rest.startswith(self.prefix):
            return piece
        return verb + space + b"/" + rest.removeprefix(self.prefix)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_broken:
            writer.transport.abort()
            return
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self.port)
        ends = {writer, to_server}
        self._writers |= ends
        with closing(writer), closing(to_server), suppress(OSError):
            pumps = [
                _pump(reader, to_server, change=self._without_prefix),
                _pump(from_server, writer, seen=self._count),
            ]
            await asyncio.wait(map(asyncio.ensure_future, pumps), return_when="FIRST_COMPLETED")
        self._writers -= ends


async def _unchanged(piece: bytes) -> bytes:
    return piece


async def _pump(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    *,
    change: Callable[[bytes], Awaitable[bytes]] = _unchanged,
    seen: Callable[[bytes], None] = lambda _: None,
) -> None:
    with suppress(OSError):
        while piece := await reader.read(_PIECE_BYTES):
            writer.write(await change(piece))
            await writer.drain()
            seen(piece)


@asynccontextmanager
async def run_network(url: str, prefix: str = "/") -> AsyncIterator[Network]:
    """A network before the server at `url`, with a URL of its own, which ends with `prefix`."""
    network = Network(int(url.rpartition(":")[2]), prefix=prefix.encode())
    network.flows.set()
    server = await asyncio.start_server(network.accept, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    network.url = f"http://{host}:{port}{prefix.rstrip('/')}"
    async with server:
        yield network
        network.cut()
