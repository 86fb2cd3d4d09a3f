"""What an attack is, and what several of them do."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final

FOREIGN_ADDRESS: Final = "127.0.0.2"
"""Where attacks come from, so that they share no address with the caller who is measured."""
RETRY_S: Final = 0.01
LAST_CHUNK: Final = b"\r\n0\r\n\r\n"


@dataclass(frozen=True)
class Target:
    """The attacked server: addresses as in "127.0.0.1:8080", and a valid key of its gateway."""

    http: str
    grpc: str
    key: str

    @property
    def authorization(self) -> bytes:
        """The header with the key."""
        return b"authorization: Bearer " + self.key.encode() + b"\r\n"


@dataclass(frozen=True)
class Attack:
    """One row: what each of its connections does until it is cancelled. It is begun again when the
    server ends it."""

    name: str
    act: Callable[[Target], Awaitable[None]]
    connections: int = 1
    harms_grpc: bool = False
    """Whether the chats that are measured come over gRPC, each from a new client."""


async def carry_out(attack: Attack, target: Target, on_begin: Callable[[], object]) -> None:
    """Run all connections of an attack until cancelled. `on_begin` is called when each has what it
    sends, of which large bodies take seconds to make."""

    async def repeat() -> None:
        while True:
            try:
                await attack.act(target)
            except* (OSError, EOFError):
                pass  # the server has ended it
            await asyncio.sleep(RETRY_S)

    async with asyncio.TaskGroup() as group:
        for _ in range(attack.connections):
            group.create_task(repeat())
        await asyncio.sleep(0)  # they run until they wait for the server
        on_begin()


@contextlib.asynccontextmanager
async def connect(
    address: str,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect from FOREIGN_ADDRESS, where the system has it."""
    host, _, port = address.rpartition(":")
    sock = socket.socket()
    sock.setblocking(False)
    with contextlib.suppress(OSError):
        sock.bind((FOREIGN_ADDRESS, 0))
    try:
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    except OSError:
        sock.close()
        raise
    reader, writer = await asyncio.open_connection(sock=sock)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def read_head(reader: asyncio.StreamReader) -> bytes:
    """Read the head of a response. Raises EOFError or OSError."""
    return await reader.readuntil(b"\r\n\r\n")


async def read_response(reader: asyncio.StreamReader) -> None:
    """Read a response with a Content-Length, or a stream in chunks. Raises EOFError or OSError."""
    head = (await read_head(reader)).lower()
    if b"transfer-encoding: chunked" in head:
        await reader.readuntil(LAST_CHUNK)
        return
    length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
    await reader.readexactly(int(length or b"0"))


async def post_forever(target: Target, path: str, body: bytes) -> None:
    """Send the same JSON body with the key again and again, each after the response to the last."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n"
    )
    request = head.encode() + target.authorization + b"\r\n" + body
    async with connect(target.http) as (reader, writer):
        while True:
            writer.write(request)
            await writer.drain()
            await read_response(reader)
