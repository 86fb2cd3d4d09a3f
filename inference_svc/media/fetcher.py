"""Fetches pictures, sounds, documents and models from the hosts that the operator allows."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Final

import httpx2

from svc_kit.errors import InvalidField, TooLong
from svc_kit.http_client import BLOCK_S, ResponseTooLong, open_client

FETCH_TIMEOUT_S: Final = 5.0
ANSWER_TIMEOUT_S: Final = 30.0
"""The longest time until the headers of a response, and between two pieces of its body."""
_PORTS: Final = {"http": 80, "https": 443}
_MAX_ADDRESSES: Final = 4
"""Of a host: so many are tried."""


class MediaFetcher:
    """Fetches files over HTTP. Redirects are not followed; the environment's proxies not used."""

    def __init__(
        self,
        hosts: Sequence[str],
        *,
        timeout_s: float = FETCH_TIMEOUT_S,
        remedy: str = "send the content itself, for example as a data URL",
    ) -> None:
        """`hosts` are names, or "*." and a suffix, with a port if it is not the usual one. Hosts
        that are allowed by a suffix must have public addresses. `timeout_s` is for a file, from
        resolving its host to its last byte. `remedy` is for callers whose host is not allowed."""
        self._hosts = tuple(host.lower() for host in hosts)
        self._timeout_s = timeout_s
        self._remedy = remedy
        self._tls: ssl.SSLContext | None = None

    async def fetch(self, field: str, url: str, max_bytes: int) -> bytes:
        """Return the file at a URL. `field` is the request field that errors name.

        Raises:
            InvalidField: The URL is invalid, its host is not allowed or fails, or does not answer
                in time with a file.
            TooLong: The file has more than `max_bytes`.
        """
        host = self.check(field, url)[0].raw_host.decode("ascii")
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self.stream(field, url, {}, max_bytes) as response,
            ):
                return await _read(response, field, host)
        except ResponseTooLong:
            raise TooLong(
                field=field, length=max_bytes + 1, limit=max_bytes, unit="bytes"
            ) from None
        except TimeoutError:
            problem = f"fetching it took longer than {self._timeout_s:g} s"
            raise InvalidField(field=field, problem=problem) from None
        except (OSError, UnicodeError, httpx2.HTTPError):
            problem = f"it cannot be fetched from '{host}'"
            raise InvalidField(field=field, problem=problem) from None

    @asynccontextmanager
    async def stream(
        self, field: str, url: str, headers: Mapping[str, str], max_bytes: int | None
    ) -> AsyncIterator[httpx2.Response]:
        """Send a GET request for a URL; the body of the response is not read yet. With `max_bytes`
        None it is a download, of as many bytes as the server declares.

        Raises `InvalidField` if the host is not allowed, and the errors of httpx and sockets.
        """
        target, host_may_be_private = self.check(field, url)
        if self._tls is None:
            self._tls = await asyncio.to_thread(httpx2.create_ssl_context, trust_env=False)
        async with open_client(
            max_bytes,
            block_s=BLOCK_S if max_bytes is None else None,
            verify=self._tls,
            timeout=ANSWER_TIMEOUT_S,
            trust_env=False,
        ) as client:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                addresses = await _resolve(target, host_may_be_private)
                if not addresses:
                    raise InvalidField(
                        field=field, problem=f"the host '{target.host}' has no public address"
                    )
                response = await _send(client, addresses, target, headers)
            try:
                yield response
            finally:
                await response.aclose()

    def check(self, field: str, url: str) -> tuple[httpx2.URL, bool]:
        """Return the URL, and whether its host may have a private address.

        Raises `InvalidField` if it is no URL, or its host is not allowed.
        """
        try:
            target = httpx2.URL(url)
        except (httpx2.InvalidURL, UnicodeError):
            raise InvalidField(field=field, problem="it is not a valid URL") from None
        if target.scheme not in _PORTS or target.userinfo:
            raise InvalidField(
                field=field, problem="it must be a data, http or https URL without a user name"
            )
        host = target.raw_host.decode("ascii").removesuffix(".")
        port = target.port or _PORTS[target.scheme]
        suffix = "" if port == _PORTS[target.scheme] else f":{port}"
        if host + suffix in self._hosts:
            return target, True
        parents = [host[at:] for at, letter in enumerate(host) if letter == "."]
        if any(f"*{parent}{suffix}" in self._hosts for parent in parents):
            return target, False
        raise InvalidField(
            field=field,
            problem=f"the host '{host}{suffix}' is not allowed on this server; {self._remedy}",
        )


async def _resolve(url: httpx2.URL, host_may_be_private: bool) -> list[str]:
    """The addresses of a host. The connection goes to one of them, and is not resolved again."""
    found = await asyncio.get_running_loop().getaddrinfo(
        url.raw_host.decode("ascii"), None, type=socket.SOCK_STREAM
    )
    addresses = [str(entry[4][0]) for entry in found]
    return [
        address for address in addresses if host_may_be_private or ip_address(address).is_global
    ][:_MAX_ADDRESSES]


async def _send(
    client: httpx2.AsyncClient,
    addresses: Sequence[str],
    url: httpx2.URL,
    headers: Mapping[str, str],
) -> httpx2.Response:
    """Send the request to the first address that accepts a connection."""
    *others, last = addresses
    for address in others:
        try:
            return await client.send(_request(client, address, url, headers), stream=True)
        except httpx2.ConnectError:
            continue
    return await client.send(_request(client, last, url, headers), stream=True)


def _request(
    client: httpx2.AsyncClient, address: str, url: httpx2.URL, headers: Mapping[str, str]
) -> httpx2.Request:
    host = {"host": url.netloc.decode("ascii")}
    return client.build_request(
        "GET",
        url.copy_with(host=address),
        headers={**headers, **host},
        extensions={"sni_hostname": url.raw_host.decode("ascii")},
    )


async def _read(response: httpx2.Response, field: str, host: str) -> bytes:
    if response.status_code != httpx2.codes.OK:
        problem = f"'{host}' answered with status {response.status_code}"
        if response.has_redirect_location:
            problem = f"'{host}' redirects to another address, which is not followed"
        raise InvalidField(field=field, problem=problem)
    return await response.aread()
