"""Validates Host and Origin headers against DNS rebinding: a page on any site can make a browser
send requests to a loopback address.
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
    """The names this server answers to.

    Served are loopback names and addresses, the listen address, and `names`; "*" serves every name.
    A server that listens on all addresses serves every literal address too: a foreign page can make
    a browser send one as Host only by calling it openly, and then its Origin tells. Of pages, those
    of the server itself, of loopback hosts and of `origins` are served; "*" serves every page.
    """

    listen_host: str
    names: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()

    @classmethod
    def of(cls, listen_host: str, names: Iterable[str], origins: Iterable[str]) -> "HostPolicy":
        """A policy over names in any case."""
        return cls(
            listen_host.strip("[]").lower(),
            frozenset(name.strip("[]").lower() for name in names),
            frozenset(origin.rstrip("/").lower() for origin in origins),
        )

    def check(self, host: str | None, origin: str | None) -> None:
        """Raises HostNotAllowed or OriginNotAllowed."""
        if not self._serves(_host_name(host or "")):
            raise HostNotAllowed(host=host or "")
        if origin is not None and not self._trusts(origin.lower(), (host or "").lower()):
            raise OriginNotAllowed(origin=origin)

    def _serves(self, name: str | None) -> bool:
        if name is None:
            return False
        if "*" in self.names or name in self.names or name == self.listen_host:
            return True
        address = _address(name)
        if address is None:
            return name == LOOPBACK_NAME
        return address.is_loopback or self._listens_everywhere()

    def _listens_everywhere(self) -> bool:
        address = _address(self.listen_host)
        return self.listen_host == "" or (address is not None and address.is_unspecified)

    def _trusts(self, origin: str, host: str) -> bool:
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
    """ASGI middleware that applies a HostPolicy and answers CORS requests."""

    def __init__(self, app: ASGIApp, policy: HostPolicy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises HostNotAllowed or OriginNotAllowed."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        self._policy.check(headers.get("host"), origin)
        if origin is None or scope["type"] == "websocket":
            await self._app(scope, receive, send)
            return

        async def send_with_permission(message: Message) -> None:
            if message["type"] == "http.response.start":
                permission = [
                    (b"access-control-allow-origin", origin.encode("latin-1")),
                    (b"access-control-expose-headers", b"*"),
                    (b"vary", b"Origin"),
                ]
                message = {**message, "headers": [*message["headers"], *permission]}
            await send(message)

        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            preflight = Response(status_code=204, headers=_PREFLIGHT)
            await preflight(scope, receive, send_with_permission)
            return
        await self._app(scope, receive, send_with_permission)


def _host_name(host: str) -> str | None:
    """The name in a Host header without port, brackets and final dot; None when malformed."""
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
