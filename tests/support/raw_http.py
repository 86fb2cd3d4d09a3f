"""HTTP by hand: a socket that shows what was written to it, and when it is left unread."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from svc_kit.network import Address


def a_post(path: str, body: Any, *headers: str) -> bytes:
    """A request with a JSON body."""
    raw = json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "host: localhost",
        "content-type: application/json",
        f"content-length: {len(raw)}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + raw


class RawConnection:
    """A client connection without a client library."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, raw: bytes) -> None:
        """Sends bytes as they are."""
        self._writer.write(raw)
        await self._writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        """Reads the status and the headers of an answer."""
        raw = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = raw.rstrip().split("\r\n")
        pairs = (line.partition(": ") for line in lines)
        return int(status.split()[1]), {name.lower(): value for name, _, value in pairs}

    async def chunk(self) -> bytes:
        """Reads one chunk of a body: what the server passed to one write. Empty at the end."""
        size = int((await self._reader.readuntil(b"\r\n")).strip(), 16)
        data = await self._reader.readexactly(size + 2)
        return data[:-2]

    async def chunks(self) -> list[bytes]:
        """Reads the chunks of a body to its end."""
        found = []
        while chunk := await self.chunk():
            found.append(chunk)
        return found

    async def body(self, headers: dict[str, str]) -> bytes:
        """Reads a body of known length."""
        return await self._reader.readexactly(int(headers["content-length"]))

    async def rest(self) -> bytes:
        """Reads until the server closes."""
        return await self._reader.read()

    def leave(self) -> None:
        """Closes without a word, as a killed client does."""
        self._writer.transport.abort()


@asynccontextmanager
async def a_connection(
    address: Address, *, receive_buffer: int | None = None
) -> AsyncIterator[RawConnection]:
    """Connects; a small receive buffer makes an unread answer fill up soon."""
    plain = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if receive_buffer is not None:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    plain.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(plain, (address.host, address.port))
    except OSError:
        plain.close()
        raise
    limit = 2**16 if receive_buffer is None else receive_buffer
    reader, writer = await asyncio.open_connection(sock=plain, limit=limit)
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except OSError:
            pass  # the server has cut it, which is what some tests want
