"""Listening sockets, and one clear line where an address cannot be had."""

import errno
import os
import socket

from svc_kit.addresses import Address
from svc_kit.startup import StartupError


def open_listener(address: Address) -> socket.socket:
    """A socket that listens on an address and nowhere else. Raises StartupError."""
    try:
        family, kind, protocol, _, name = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            # A port whose last owner closed it seconds ago is free; one with an owner is not.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(name)
            listener.listen(128)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise StartupError(explain_bind_failure(address, error)) from error
    return listener


def explain_bind_failure(address: Address, error: OSError) -> str:
    """What is wrong with an address, and what to do."""
    if error.errno == errno.EADDRINUSE:
        return f"Cannot listen on {address}: another process has this port. Choose another."
    if error.errno == errno.EACCES:
        return f"Cannot listen on {address}: ports below 1024 need rights. Choose a higher one."
    reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
    return f"Cannot listen on {address}: {reason}."
