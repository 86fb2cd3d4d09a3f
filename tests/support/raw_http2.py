"""gRPC calls over a plain socket, to test messages that are incomplete."""

import asyncio
import re
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from svc_kit.network import Address

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, CONTINUATION = 0, 1, 3, 4, 6, 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4
_STATUS: Final = re.compile(rb"grpc-status.(\d+)", re.DOTALL)
MAX_CONCURRENT_STREAMS: Final = 3
PATIENCE_S: Final = 20


class RawGrpcConnection:
    """An HTTP/2 connection with at most one response, whose header fields need no table."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._stream_id = -1
        self.settings: dict[int, int] = {}
        """The server's settings, once a status was read."""

    async def call(
        self, method: str, message: bytes | None, *pairs: tuple[str, str], **metadata: str
    ) -> None:
        """Begin a call that sends a part of its message, or none and the end of the requests.
        `pairs` are metadata whose names can be equal."""
        self._stream_id += 2
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": method,
            ":authority": "localhost",
            "content-type": "application/grpc",
            "te": "trailers",
            **metadata,
        }
        head = b"".join(literal(name, value) for name, value in (*fields.items(), *pairs))
        is_end = END_STREAM if message is None else 0
        self._send(HEADERS, END_HEADERS | is_end, head)
        if message is not None:
            self._send(DATA, 0, message)
        await self._writer.drain()

    async def send(self, frames: bytes) -> None:
        self._writer.write(frames)
        await self._writer.drain()

    async def wait_closed(self) -> None:
        """Wait until the server closes the connection. Raises TimeoutError after PATIENCE_S."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                while await self._reader.read(65_536):
                    pass
            except ConnectionError:
                pass  # closed with bytes unread

    async def status(self) -> int:
        """Read the status of the first call that ends. Raises IncompleteReadError if the server
        closes the connection, TimeoutError after PATIENCE_S."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                kind, flags, payload = await self._read()
                found = _STATUS.search(payload) if kind == HEADERS else None
                if found is not None:
                    return int(found[1])
                if kind in (SETTINGS, PING) and not flags & ACK:
                    self._acknowledge(kind, payload)

    def _acknowledge(self, kind: int, payload: bytes) -> None:
        if kind == SETTINGS:
            self.settings = dict(struct.iter_unpack(">HI", payload))
        body, stream_id = (payload if kind == PING else b""), self._stream_id
        self._stream_id = 0
        self._send(kind, ACK, body)
        self._stream_id = stream_id

    async def _read(self) -> tuple[int, int, bytes]:
        head = await self._reader.readexactly(9)
        return head[3], head[4], await self._reader.readexactly(int.from_bytes(head[:3], "big"))

    def _send(self, kind: int, flags: int, payload: bytes) -> None:
        self._writer.write(frame(kind, flags, max(self._stream_id, 0), payload))

    def start(self) -> None:
        self._writer.write(_PREFACE)
        self._send(SETTINGS, 0, b"")


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags])
    return head + stream_id.to_bytes(4, "big") + payload


def part_of_message(size: int, sent: int = 10) -> bytes:
    return b"\x00" + struct.pack(">I", size) + b"\x00" * sent


@asynccontextmanager
async def open_grpc_connection(
    address: Address, source: str | None = None
) -> AsyncIterator[RawGrpcConnection]:
    """Connect to a gRPC server without TLS, from an address of this machine."""
    local = None if source is None else (source, 0)
    reader, writer = await asyncio.open_connection(address.host, address.port, local_addr=local)
    connection = RawGrpcConnection(reader, writer)
    connection.start()
    try:
        yield connection
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except OSError:
            pass  # the server has closed the connection


def literal(name: str, value: str) -> bytes:
    """A header field that does not use the table, in Latin-1."""
    texts = name.replace("_", "-").encode("latin-1"), value.encode("latin-1")
    return b"\x00" + b"".join(_length(len(text)) + text for text in texts)


def _length(number: int) -> bytes:
    """The length of a text that is not compressed (RFC 7541, 5.1)."""
    if number < 127:
        return bytes([number])
    number, octets = number - 127, [127]
    while number >= 128:
        octets.append(number % 128 + 128)
        number //= 128
    return bytes([*octets, number])
