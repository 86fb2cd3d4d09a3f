"""Whether a port can be listened on, asked before anything starts.

A taken port is found by the command, so that the operator reads one line instead of the logs of a
service that could not bind.
"""

import errno
import socket
from collections.abc import Collection
from contextlib import ExitStack

from svc_kit.addresses import Address

WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  (recognised, not listened on)


def reachable(address: Address) -> Address:
    """The address under which this machine reaches a listener: a wildcard is no target."""
    return Address(WILDCARDS.get(address.host, address.host), address.port)


def with_free_port(address: Address, given: Collection[Address] = ()) -> Address:
    """The address with a port that was free just now, where it leaves the choice to the system:
    none of those `given` to others, who do not listen yet."""
    if address.port:
        return address
    taken = {other.port for other in given}
    with ExitStack() as tried:  # the system offers a port again only when it is let go
        while True:
            port = tried.enter_context(_bound(address)).getsockname()[1]
            if port not in taken:
                return Address(address.host, port)


def why_not(address: Address) -> str | None:
    """Why nothing can listen there, in one line with the remedy; None when something can."""
    try:
        _bound(address).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return f"{address} is taken: stop what listens there, or choose another port"
        if error.errno == errno.EACCES:
            return f"{address} needs more rights: choose a port above 1023"
        return f"cannot listen on {address}: {error.strerror or error}"
    return None


def _bound(address: Address) -> socket.socket:
    """A socket bound as a server would bind it. Raises OSError."""
    family, kind, protocol, _, target = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    probe = socket.socket(family, kind, protocol)
    try:
        # As servers do: a port whose last connections are still fading is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(target)
    except OSError:
        probe.close()
        raise
    return probe
