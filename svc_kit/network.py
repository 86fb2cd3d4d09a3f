"""TCP addresses and listening sockets."""

import errno
import ipaddress
import os
import re
import resource
import socket
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from svc_kit.lifecycle import StartupError

_IPV6_PREFIX: Final = 64
"""The network that a host with IPv6 has for itself."""
_MAX_OPEN_FILES: Final = 65_536


class Address(NamedTuple):
    """A TCP address; port 0 lets the system choose a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only processes on this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_address(text: str) -> Address:
    """Parse "host:port" or "[v6]:port". Raises ValueError with a message for the operator."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: write an IPv6 address in brackets, as in [::1]:50051")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError(f"{text!r} is not an address; write host:port, as in 127.0.0.1:50051")
    return Address(host, int(port))


def parse_addresses(text: str) -> tuple[Address, ...]:
    """Parse "IP:port,IP:port": addresses of replicas, all IPv4 or all IPv6; "localhost" is
    127.0.0.1. Raises ValueError with a message for the operator."""
    addresses = [parse_address(part.strip()) for part in text.split(",")]
    versions = set()
    for index, address in enumerate(addresses):
        host = "127.0.0.1" if address.host == "localhost" else address.host
        try:
            versions.add(ipaddress.ip_address(host).version)
        except ValueError:
            raise ValueError(
                f"{address}: a list has IP addresses only; for a name that resolves to all replicas"
                f" write dns:///{address}"
            ) from None
        addresses[index] = Address(host, address.port)
    if len(versions) > 1:
        raise ValueError(f"{text!r} has IPv4 and IPv6 addresses: write those of one kind")
    if len({*addresses}) < len(addresses):
        raise ValueError(f"{text!r} names an address twice")
    return tuple(addresses)


def is_http_url(text: str) -> bool:
    """Whether a text is http(s)://host[:port][/path], of at most 1,024 visible ASCII characters: no
    user name, password, query or fragment."""
    try:
        parts = urlsplit(text)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    more = parts.query or parts.fragment or "@" in parts.netloc
    return is_url and not more and re.fullmatch(r"[!-~]{1,1024}", text) is not None


def bind_socket(address: Address) -> socket.socket:
    """Bind a TCP socket as servers do: to a port in TIME_WAIT, but not to one that another socket
    listens on. Raises OSError."""
    family, kind, protocol, _, name = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(name)
    except OSError:
        bound.close()
        raise
    return bound


def open_listener(address: Address) -> socket.socket:
    """Open a socket that listens on an address. Raises StartupError."""
    try:
        listener = bind_socket(address)
        try:
            listener.listen(128)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise StartupError(_bind_error_message(address, error)) from error
    return listener


def peer_network(host: str) -> str:
    """An IPv4 address, or the network of an IPv6 address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))


def allow_open_files() -> None:
    """Let this process have as many open files, and so connections, as the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _bind_error_message(address: Address, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Cannot listen on {address}: the port is already in use. Choose another port."
    if error.errno == errno.EACCES:
        return f"Cannot listen on {address}: ports below 1024 need privileges. Choose a higher one."
    reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
    return f"Cannot listen on {address}: {reason}."
