"""Closes connections of a server while it has too many, so that new clients always get in.

gRPC limits all connections of a port together, of which one address could have all, and neither it
nor a TLS handshake that stalls tells a server of its connections. They are found among the open
files of the process, on Linux.
"""

import asyncio
import contextlib
import os
import socket
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from svc_kit.network import peer_network

INTERVAL_S: Final = 0.2
SPARE: Final = 2
"""gRPC gets this many times the limit, for those that come between two looks."""
_OPEN_FILES: Final = Path("/proc/self/fd")
_SOCKET: Final = "socket:"
_TCP_INFO: Final = struct.Struct("8x12I")
"""The start of Linux's `tcp_info`."""
_LAST_DATA_SENT, _LAST_DATA_RECEIVED = 9, 11


class PeerConnection(NamedTuple):
    """A connection that a client has opened."""

    file: int
    """The number of the open file."""
    peer: str
    """The address that it is counted under."""
    silent_ms: int
    """How long nothing was sent or received."""


async def watch_connections(port: int, limit: int, *, of_each: bool = False) -> None:
    """Keep at most `limit` connections to a port of this process, or with `of_each` of each
    address, until cancelled."""
    while True:
        await asyncio.sleep(INTERVAL_S)
        if _num_open_files() > limit:
            await asyncio.to_thread(_close_excess, port, limit, of_each)


def excess(
    connections: Sequence[PeerConnection], limit: int, *, of_each: bool = False
) -> list[PeerConnection]:
    """The connections to close: of the addresses that have most, those that are silent longest."""
    counts = Counter(each.peer for each in connections)
    share = limit if of_each else fair_share(counts, limit)
    kept: Counter[str] = Counter()
    closed = []
    for each in sorted(connections, key=lambda one: one.silent_ms):
        kept[each.peer] += 1
        if kept[each.peer] > share:
            closed.append(each)
    return closed


def fair_share(counts: Mapping[str, int], limit: int) -> int:
    """The most connections that every address may have, so that all have at most `limit`; 1 where
    there are more addresses than that."""
    left, ordered = limit, sorted(counts.values())
    for number, count in enumerate(ordered):
        share = left // (len(ordered) - number)
        if count > share:
            return max(1, share)
        left -= count
    return limit


def _close_excess(port: int, limit: int, of_each: bool) -> None:
    for connection in excess(list(_connections(port)), limit, of_each=of_each):
        _close(connection, port)


def _num_open_files() -> int:
    try:
        return sum(1 for _ in _OPEN_FILES.iterdir())
    except OSError:
        return 0


def _connections(port: int) -> Iterator[PeerConnection]:
    for path in _OPEN_FILES.iterdir():
        connection = _peer_connection(path, port)
        if connection is not None:
            yield connection


def _peer_connection(path: Path, port: int) -> PeerConnection | None:
    """A client's connection to the port, if the file is one."""
    file = int(path.name)
    with contextlib.suppress(OSError):
        if str(path.readlink()).startswith(_SOCKET):
            with _copy(file) as copy:
                is_ip = copy.family in (socket.AF_INET, socket.AF_INET6)
                if is_ip and copy.getsockname()[1] == port:
                    peer = peer_network(copy.getpeername()[0])
                    return PeerConnection(file, peer, _silent_ms(copy))
    return None


def _copy(file: int) -> socket.socket:
    """A socket of its own for an open file. Raises OSError if that is no socket by now."""
    number = os.dup(file)
    try:
        return socket.socket(fileno=number)
    except OSError:
        os.close(number)
        raise


def _silent_ms(copy: socket.socket) -> int:
    option = getattr(socket, "TCP_INFO", None)
    if option is None:
        return 0
    fields = _TCP_INFO.unpack(copy.getsockopt(socket.IPPROTO_TCP, option, _TCP_INFO.size))
    return int(min(fields[_LAST_DATA_SENT], fields[_LAST_DATA_RECEIVED]))


def _close(connection: PeerConnection, port: int) -> None:
    """Shut a connection down; gRPC then sees its end. Another file may have the number by now."""
    with contextlib.suppress(OSError), _copy(connection.file) as copy:
        if copy.getsockname()[1] == port and peer_network(copy.getpeername()[0]) == connection.peer:
            copy.shutdown(socket.SHUT_RDWR)
