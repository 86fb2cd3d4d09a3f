"""Validates the headers Host and Origin, as a defense against DNS rebinding and cross-site requests
from browsers.
"""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from svc_kit.errors import HostNotAllowed, OriginNotAllowed

LOOPBACK_NAME = "localhost"
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::\d{1,5})?", re.ASCII)
_PREFLIGHT = {
    "access-control-allow-methods": "GET, POST, DELETE, OPTIONS",
    "access-control-allow-headers": "*, authorization, content-type",
    "access-control-max-age": "600",
}


@dataclass(frozen=True)
class HostPolicy:
    """The allowed hosts and origins.

    Allowed hosts are loopback names and addresses, the listen address, and `names`; "*.NAME" allows
    all names that end with it, and "*" any. Loopback names are those of RFC 6761, "localhost" and
    all names that end with it: nobody can register one, and browsers resolve them themselves.
    A server that listens on all addresses also allows any IP address, since DNS rebinding needs a
    name and other requests of foreign pages have an Origin. Allowed origins are the server itself,
    loopback hosts, and `origins`; "*" allows any.
    """

    listen_host: str
    names: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()

    @classmethod
    def create(cls, listen_host: str, names: Iterable[str], origins: Iterable[str]) -> "HostPolicy":
        """Create a policy. Hosts and origins are case-insensitive."""
        return cls(
            listen_host.strip("[]").lower(),
            frozenset(name.strip("[]").lower() for name in names),
            frozenset(origin.rstrip("/").lower() for origin in origins),
        )

    def check(self, host: str | None, origin: str | None) -> None:
        """Raise HostNotAllowed or OriginNotAllowed."""
        if not self._allows_host(_host_name(host or "")):
            raise HostNotAllowed(host=host or "")
        if origin is not None and not self._allows_origin(origin.lower(), (host or "").lower()):
            raise OriginNotAllowed(origin=origin)

    def _allows_host(self, name: str | None) -> bool:
        if name is None:
            return False
        if name == self.listen_host or not self.names.isdisjoint((name, "*")):
            return True
        if any(each.startswith("*.") and name.endswith(each[1:]) for each in self.names):
            return True
        address = _address(name)
        if address is None:
            return name.rpartition(".")[2] == LOOPBACK_NAME
        return address.is_loopback or self._listens_on_all()

    def _listens_on_all(self) -> bool:
        address = _address(self.listen_host)
        return self.listen_host == "" or (address is not None and address.is_unspecified)

    def _allows_origin(self, origin: str, host: str) -> bool:
        if "*" in self.origins or origin in self.origins:
            return True
        try:
            site = urlsplit(origin)
        except ValueError:
            return False
        if site.scheme not in ("http", "https"):
            return False
        return site.netloc == host or _is_loopback(_host_name(site.netloc))


class HostCheck:
    """ASGI middleware that applies a HostPolicy and handles CORS requests."""

    def __init__(self, app: ASGIApp, policy: HostPolicy) -> None:
        self._app = app
        self.policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request. Raises HostNotAllowed or OriginNotAllowed."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        self.policy.check(headers.get("host"), origin)
        if origin is None or scope["type"] == "websocket":
            await self._app(scope, receive, send)
            return

        async def send_with_cors(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [
                    *message["headers"],
                    (b"access-control-allow-origin", origin.encode("latin-1")),
                    (b"access-control-expose-headers", b"*"),
                    (b"vary", b"Origin"),
                ]
                message = {**message, "headers": headers}
            await send(message)

        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            preflight = Response(status_code=204, headers=_PREFLIGHT)
            await preflight(scope, receive, send_with_cors)
            return
        await self._app(scope, receive, send_with_cors)


def _host_name(host: str) -> str | None:
    """The name in a Host header without port, brackets and trailing dot; None if malformed."""
    match = _HOST.fullmatch(host.lower())
    return None if match is None else (match[1] or match[2]).rstrip(".")


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _is_loopback(name: str | None) -> bool:
    address = _address(name or "")
    return name == LOOPBACK_NAME or (address is not None and address.is_loopback)
