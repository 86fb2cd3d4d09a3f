"""Checks before the start whether ports are free, so that the operator reads one line."""

import errno
import random
import socket
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from svc_kit.lifecycle import StartupError
from svc_kit.network import Address

# Below those that systems by default give to connections and to whoever asks for any port (from
# 32768 on Linux, 49152 elsewhere): until its service listens nobody else is given what was chosen.
_FREE_PORTS = range(20_000, 30_000)
WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  (recognised, not listened on)


def reachable(address: Address) -> Address:
    """The address under which this machine reaches a listener: a wildcard is no target."""
    return Address(WILDCARDS.get(address.host, address.host), address.port)


def with_free_port(address: Address, given: Collection[Address] = ()) -> Address:
    """The address with a port that was free just now, where it leaves the choice to us: none of
    those `given` to others, who do not listen yet. Raises OSError where none can be had."""
    if address.port:
        return address
    taken = {other.port for other in given}
    for port in random.sample(_FREE_PORTS, len(_FREE_PORTS)):
        chosen = Address(address.host, port)
        if port not in taken and _is_free(chosen):
            return chosen
    raise OSError(errno.EADDRINUSE, f"no port of {_FREE_PORTS.start} and above is free")


def why_not(address: Address) -> str | None:
    """Why nothing can listen there, in one line with the remedy; None when something can."""
    try:
        _bound(address).close()
    except OSError as error:
        return _problem(address, error)
    return None


def _problem(address: Address, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"{address} is taken: stop what listens there, or choose another port"
    if error.errno == errno.EACCES:
        return f"{address} needs more rights: choose a port above 1023"
    return f"cannot listen on {address}: {error.strerror or error}"


@contextmanager
def held(addresses: Iterable[Address]) -> Iterator[None]:
    """Reserve the addresses for the services, restarts included. Raises StartupError.

    A bound port is not given to outgoing connections, which could otherwise take the port of a
    service that does not listen yet (50052 is in Linux's ephemeral range). Servers can bind it as
    well, because the reserving socket does not listen. Other systems do not allow that, so there
    nothing is reserved.
    """
    with ExitStack() as stack:
        if sys.platform == "linux":
            for address in addresses:
                try:
                    stack.enter_context(_bound(address))
                except OSError as error:
                    raise StartupError(_problem(address, error)) from error
        yield


def _is_free(address: Address) -> bool:
    try:
        _bound(address).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise
    return True


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
