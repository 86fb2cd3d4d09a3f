"""A name server for tests. It answers every question for an A record with its addresses."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import IPv4Address
from typing import Any, Final

from svc_kit.network import Address

_HEADER_BYTES: Final = 12
_A_RECORD: Final = b"\x00\x01"
_ANSWER: Final = b"\x81\x80"
_FAILURE: Final = b"\x81\x82"  # SERVFAIL


class NameServer(asyncio.DatagramProtocol):
    """Answers with `addresses`; if there are none, that it has failed."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.num_questions = 0
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, client: tuple[str, int]) -> None:
        """Answer a question: RFC 1035, 4.1."""
        self.num_questions += 1
        end = data.index(b"\0", _HEADER_BYTES) + 5
        question, kind = data[_HEADER_BYTES:end], data[end - 4 : end - 2]
        found = self.addresses if kind == _A_RECORD else []
        records = b"".join(
            b"\xc0\x0c"
            + _A_RECORD
            + b"\x00\x01"
            + bytes(4)
            + b"\x00\x04"
            + IPv4Address(each).packed
            for each in found
        )
        counts = (1, len(found), 0, 0)
        head = data[:2] + (_ANSWER if self.addresses else _FAILURE)
        head += b"".join(count.to_bytes(2, "big") for count in counts)
        self._transport.sendto(head + question + records, client)


@asynccontextmanager
async def run_name_server() -> AsyncIterator[tuple[NameServer, Address]]:
    """Run on a free port."""
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 0))
    try:
        yield server, Address(*transport.get_extra_info("sockname"))
    finally:
        transport.close()
