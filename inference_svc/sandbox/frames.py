"""What goes over the socket between the pool and a child: a length, then JSON.

Only JSON: a child may have been taken over by what it was given, so nothing it sends is unpickled.
"""

import socket
import struct

HEADER = struct.Struct("!I")


def receive(connection: socket.socket) -> bytes | None:
    """Read one frame in the child. None: the pool has gone."""
    header = _receive_exactly(connection, HEADER.size)
    return None if header is None else _receive_exactly(connection, HEADER.unpack(header)[0])


def send(connection: socket.socket, body: bytes) -> None:
    """Write one frame in the child."""
    connection.sendall(HEADER.pack(len(body)) + body)


def _receive_exactly(connection: socket.socket, length: int) -> bytes | None:
    data = bytearray(length)
    view = memoryview(data)
    while view:
        count = connection.recv_into(view)
        if count == 0:
            return None
        view = view[count:]
    return bytes(data)
