"""The principal of a call: project, scopes, priority."""

import contextvars
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final

from svc_kit.auth.scopes import INCLUDED, Scope
from svc_kit.errors import AddressNotAllowed, ApiKeyMissing, ModelNotAllowed

DEFAULT_PROJECT: Final = "default"
Network = IPv4Network | IPv6Network


class Priority(IntEnum):
    """Scheduling priority, with the values of `corral.inference.v1.Priority`."""

    BATCH = 1
    NORMAL = 2
    INTERACTIVE = 3


def parse_network(text: str) -> Network:
    """Parse a network in CIDR notation, or an address, which is a network of one address.

    Raises ValueError, also if the address has bits outside the network.
    """
    return ip_network(text)


@dataclass(frozen=True, kw_only=True)
class Restrictions:
    """What limits the use of a credential beyond its scopes."""

    models: frozenset[str] = frozenset()
    """The only names of models that requests may use. Empty: all."""
    networks: frozenset[Network] = frozenset()
    """The only networks of callers. Empty: all."""

    @classmethod
    def of(cls, models: Iterable[str], networks: Iterable[str]) -> "Restrictions":
        """`networks` are in CIDR notation; raises ValueError as `parse_network`."""
        return cls(models=frozenset(models), networks=frozenset(map(parse_network, networks)))


UNRESTRICTED: Final = Restrictions()


@dataclass(frozen=True, kw_only=True)
class Principal:
    """The authenticated caller: project, scopes and priority."""

    project: str = DEFAULT_PROJECT
    scopes: frozenset[str]
    priority: Priority = Priority.NORMAL
    """The highest priority that the caller may request, and the default."""
    key_id: str
    """The credential's name in logs; never the credential itself."""
    is_service: bool = False
    """Whether the caller is one of Corral's services."""
    restrictions: Restrictions = UNRESTRICTED

    def has(self, scope: Scope) -> bool:
        """Whether methods with this scope may be called."""
        if scope in (Scope.PUBLIC, Scope.KNOWN) or scope in self.scopes:
            return True
        return not INCLUDED.get(scope, frozenset()).isdisjoint(self.scopes)

    def check_model(self, model: str) -> None:
        """Raise ModelNotAllowed if the credential does not allow this name of a model."""
        allowed = self.restrictions.models
        if allowed and model not in allowed:
            raise ModelNotAllowed(model=model, allowed=", ".join(sorted(allowed)))

    def check_address(self, host: str | None) -> None:
        """Raise AddressNotAllowed if the credential does not allow a caller with this IP address.

        None is a caller without one, for example over a Unix socket.
        """
        networks = self.restrictions.networks
        if networks and not is_within(host, networks):
            raise AddressNotAllowed(address=host or "unknown")


def is_within(host: str | None, networks: Collection[Network]) -> bool:
    """Whether an IP address is in one of the networks. IPv4 in IPv6 counts as IPv4."""
    try:
        address = ip_address((host or "").partition("%")[0])
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return any(address in network for network in networks)


def peer_host(peer: str) -> str | None:
    """The IP address in gRPC's name of a peer ("ipv4:127.0.0.1:5000"); None without one."""
    match = re.fullmatch(r"ipv4:(?P<v4>[\d.]+):\d+|ipv6:(?:\[|%5B)(?P<v6>.+)(?:\]|%5D):\d+", peer)
    return match and (match["v4"] or match["v6"])


_principal: contextvars.ContextVar[Principal | None] = contextvars.ContextVar(
    "principal", default=None
)


def current_principal() -> Principal:
    """The principal of the running call. Raises ApiKeyMissing outside an authenticated call."""
    principal = _principal.get()
    if principal is None:
        raise ApiKeyMissing()
    return principal


def current_key() -> str:
    """The key of the running call, or of the caller of the running job; empty if unknown."""
    principal = _principal.get()
    return "" if principal is None else principal.key_id


def set_principal(principal: Principal | None) -> None:
    """Set the principal of the running call, which is an asyncio task."""
    _principal.set(principal)
