"""Addresses to listen on: how they are written, and whether only this machine can reach them."""

import ipaddress
from typing import NamedTuple


class Address(NamedTuple):
    """A TCP address; port 0 lets the system choose a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only processes of this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_address(text: str) -> Address:
    """Read "host:port" or "[v6]:port". Raises ValueError, in words for the one who wrote it."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: write an IPv6 address in brackets, as in [::1]:50051")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError(f"{text!r} is not an address; write host:port, as in 127.0.0.1:50051")
    return Address(host, int(port))
