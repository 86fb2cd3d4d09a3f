"""HTTP over a plain socket, to test framing, disconnects and slow clients."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from svc_kit.network import Address


class RawConnection:
    """A client connection without a client library."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, raw: bytes) -> None:
        self._writer.write(raw)
        await self._writer.drain()

    async def post(self, path: str, body: Any) -> None:
        raw = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            f"content-length: {len(raw)}\r\n\r\n"
        )
        await self.send(head.encode() + raw)

    async def request(self, path: str, body: Any) -> tuple[int, dict[str, str]]:
        """Send a request with a JSON body; read status and headers of the response."""
        await self.post(path, body)
        return await self.head()

    async def head(self) -> tuple[int, dict[str, str]]:
        """Read the status and the headers of a response."""
        raw = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = raw.rstrip().split("\r\n")
        pairs = (line.partition(": ") for line in lines)
        return int(status.split()[1]), {name.lower(): value for name, _, value in pairs}

    async def chunk(self) -> bytes:
        """Read one chunk of a body, which is one write of the server. Empty at the end."""
        size = int((await self._reader.readuntil(b"\r\n")).strip(), 16)
        data = await self._reader.readexactly(size + 2)
        return data[:-2]

    async def chunks(self) -> list[bytes]:
        chunks = []
        while chunk := await self.chunk():
            chunks.append(chunk)
        return chunks

    async def body(self, headers: dict[str, str]) -> bytes:
        return await self._reader.readexactly(int(headers["content-length"]))

    async def exactly(self, size: int) -> bytes:
        return await self._reader.readexactly(size)

    async def rest(self) -> bytes:
        """Read until the server closes the connection, which it does within 20 seconds."""
        async with asyncio.timeout(50):
            return await self._reader.read()

    def leave(self) -> None:
        """Abort the connection, as a killed client does."""
        self._writer.transport.abort()


@asynccontextmanager
async def open_connection(
    address: Address, *, receive_buffer: int | None = None
) -> AsyncIterator[RawConnection]:
    """Connect. With a small receive buffer, few unread bytes block the server."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, (address.host, address.port))
    except OSError:
        sock.close()
        raise
    reader, writer = await asyncio.open_connection(sock=sock, limit=receive_buffer or 2**16)
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except OSError:
            pass  # the server has closed the connection
