"""Closes connections of a server while it has too many, so that new clients always get in.

gRPC limits all connections of a port together, of which one address could have all, and does not
tell a server of its connections. They are found among the open files of the process, on Linux.
"""

import asyncio
import contextlib
import errno
import logging
import os
import resource
import socket
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from svc_kit.logs import log_errors
from svc_kit.network import peer_network

INTERVAL_S: Final = 0.2
SPARE: Final = 2
"""gRPC gets this many times the limit, for those that come between two looks."""
_OPEN_FILES: Final = Path("/proc/self/fd")
_SOCKET: Final = "socket:"
_TCP_INFO: Final = struct.Struct("8x12I")
"""The start of Linux's `tcp_info`."""
_LAST_DATA_SENT, _LAST_DATA_RECEIVED = 9, 11
_NO_FILE_LEFT: Final = (errno.EMFILE, errno.ENFILE)
_log = logging.getLogger(__name__)


class PeerConnection(NamedTuple):
    file: int
    """The number of the open file."""
    peer: str
    """The address that it is counted under."""
    silent_ms: int
    """How long nothing was sent or received."""


async def watch_connections(port: int, limit: int) -> None:
    """Keep at most `limit` connections to a port of this process, and at most half of the open
    files that the process may have, until cancelled."""
    await asyncio.to_thread(open_files)  # loads the thread pool while files are left
    while True:
        await asyncio.sleep(INTERVAL_S)
        with log_errors(_log, "the connections could not be counted"):
            limit = min(limit, max_open_files() // 2)
            if len(open_files()) > limit:
                await asyncio.to_thread(_close_excess, port, limit)


def excess(connections: Sequence[PeerConnection], limit: int) -> list[PeerConnection]:
    """The connections to close: of the addresses that have most, those that are silent longest."""
    counts = Counter(each.peer for each in connections)
    share = fair_share(counts, limit)
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


def _close_excess(port: int, limit: int) -> None:
    for connection in excess(list(_connections(port)), limit):
        _close(connection, port)


def max_open_files() -> int:
    """How many open files the process may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def open_files() -> Sequence[int]:
    """The numbers of the open files, or all that there can be if none is left to read them with."""
    try:
        return [int(name) for name in os.listdir(_OPEN_FILES)]  # noqa: PTH208  # builds no paths
    except OSError as error:
        return range(max_open_files()) if error.errno in _NO_FILE_LEFT else ()


def _connections(port: int) -> Iterator[PeerConnection]:
    for file in open_files():
        if (connection := _peer_connection(file, port)) is not None:
            yield connection


def _peer_connection(file: int, port: int) -> PeerConnection | None:
    """A client's connection to the port, if the file is one."""
    with contextlib.suppress(OSError):
        if str((_OPEN_FILES / str(file)).readlink()).startswith(_SOCKET):
            with _socket_of(file) as opened:
                is_ip = opened.family in (socket.AF_INET, socket.AF_INET6)
                if is_ip and opened.getsockname()[1] == port:
                    peer = peer_network(opened.getpeername()[0])
                    return PeerConnection(file, peer, _silent_ms(opened))
    return None


@contextlib.contextmanager
def _socket_of(file: int) -> Iterator[socket.socket]:
    """A socket for an open file: a copy, which stays the same if another file gets the number;
    where no file is left for a copy, one of the file itself. Raises OSError if it is no socket by
    now."""
    try:
        number = os.dup(file)
    except OSError as error:
        if error.errno not in _NO_FILE_LEFT:
            raise
        borrowed = socket.socket(fileno=file)
        try:
            yield borrowed
        finally:
            borrowed.detach()
        return
    try:
        copy = socket.socket(fileno=number)
    except OSError:
        os.close(number)
        raise
    with copy:
        yield copy


def _silent_ms(opened: socket.socket) -> int:
    option = getattr(socket, "TCP_INFO", None)
    if option is None:
        return 0
    fields = _TCP_INFO.unpack(opened.getsockopt(socket.IPPROTO_TCP, option, _TCP_INFO.size))
    return int(min(fields[_LAST_DATA_SENT], fields[_LAST_DATA_RECEIVED]))


def _close(connection: PeerConnection, port: int) -> None:
    """Shut a connection down; gRPC then sees its end. Another file may have the number by now."""
    with contextlib.suppress(OSError), _socket_of(connection.file) as opened:
        is_same = peer_network(opened.getpeername()[0]) == connection.peer
        if is_same and opened.getsockname()[1] == port:
            opened.shutdown(socket.SHUT_RDWR)
