"""Checks, chooses and reserves ports before any service starts."""

import errno
import secrets
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from svc_kit.lifecycle import StartupError
from svc_kit.network import Address, bind_socket

# Below the ephemeral ports (from 32768 on Linux, 49152 elsewhere), so that the kernel does not
# assign a chosen port to a connection before its service listens.
_CANDIDATES = range(20_000, 30_000)
WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  (recognised, not listened on)


def reachable(address: Address) -> Address:
    """The address for clients on this machine: a wildcard is replaced by loopback."""
    return Address(WILDCARDS.get(address.host, address.host), address.port)


def choose_port(
    address: Address, assigned: Collection[Address] = (), candidates: Sequence[int] = _CANDIDATES
) -> Address:
    """Replace port 0 by a free one of `candidates` that is not `assigned` to another listener.

    Raises OSError if none is free.
    """
    if address.port:
        return address
    assigned_ports = {other.port for other in assigned}
    first = secrets.randbelow(len(candidates))
    for port in (*candidates[first:], *candidates[:first]):
        candidate = Address(address.host, port)
        if port not in assigned_ports and _is_free(candidate):
            return candidate
    raise OSError(errno.EADDRINUSE, f"no port from {min(candidates)} to {max(candidates)} is free")


def bind_problem(address: Address) -> str | None:
    """Return why nothing can listen on the address, as one line; None if it is free."""
    try:
        bind_socket(address).close()
    except OSError as error:
        return _explain(address, error)
    return None


def _explain(address: Address, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"{address} is in use: stop the process that listens there, or choose another port"
    if error.errno == errno.EACCES:
        return f"{address} requires more privileges: choose a port above 1023"
    return f"cannot listen on {address}: {error.strerror or error}"


@contextmanager
def reserve_ports(addresses: Iterable[Address]) -> Iterator[None]:
    """Reserve the addresses for the services and their restarts. Raises StartupError.

    The kernel does not assign a bound port to outgoing connections, which could otherwise take the
    port of a service that does not listen yet (50052 is in Linux's ephemeral range). Servers can
    still bind it, because the reserving socket does not listen. Other systems do not allow that, so
    nothing is reserved there.
    """
    with ExitStack() as stack:
        if sys.platform == "linux":
            for address in addresses:
                try:
                    stack.enter_context(bind_socket(address))
                except OSError as error:
                    raise StartupError(_explain(address, error)) from error
        yield


def _is_free(address: Address) -> bool:
    try:
        bind_socket(address).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise
    return True
