"""A network on loopback between a client and a server, which a test can break and mend."""

import asyncio
from collections.abc import AsyncIterator, Callable
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

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_broken:
            writer.transport.abort()
            return
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self.port)
        ends = {writer, to_server}
        self._writers |= ends
        with closing(writer), closing(to_server), suppress(OSError):
            pumps = [_pump(reader, to_server), _pump(from_server, writer, self._count)]
            await asyncio.wait(map(asyncio.ensure_future, pumps), return_when="FIRST_COMPLETED")
        self._writers -= ends


async def _pump(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    seen: Callable[[bytes], None] = lambda _: None,
) -> None:
    with suppress(OSError):
        while piece := await reader.read(_PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
            seen(piece)


@asynccontextmanager
async def run_network(url: str) -> AsyncIterator[Network]:
    """A network before the server at `url`, with a URL of its own."""
    network = Network(int(url.rpartition(":")[2]))
    server = await asyncio.start_server(network.accept, "127.0.0.1", 0)
    network.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield network
        network.cut()
