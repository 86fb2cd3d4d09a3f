"""HTTP clients for what others serve: keys of issuers, model hubs, MCP servers, files by URL.

Clients are opened here, so that no body, chain of redirects or number of requests is unbounded.
Callers limit the total time with `asyncio.timeout`; who is cancelled closes the connection. The
headers of a response are limited by h11, to 100 KiB.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, Final

import httpx2

MAX_REDIRECTS: Final = 5
BLOCK_BYTES: Final = 1 << 20
BLOCK_S: Final = 60.0
"""A download that gets fewer than `BLOCK_BYTES` in this time is given up."""
_REDIRECT_BYTES: Final = 64 * 1024
_UNSIZED_BYTES: Final = 16 << 20


class ResponseRejected(httpx2.ReadError):
    """A response that is not read, or not completely."""


class ResponseTooLong(ResponseRejected):
    """A body has more than `limit` bytes."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"The answer is longer than {limit} bytes.")


class _BodyLimit:
    """Counts the bytes of a body, and with `block_s` the time that each block of it takes."""

    def __init__(self, max_bytes: int, block_s: float | None) -> None:
        self._max_bytes = max_bytes
        self._block_s = block_s
        self._num_bytes = self._block_start = 0
        self._block_started_at = time.monotonic()

    def count(self, chunk: bytes) -> None:
        """Raises `ResponseTooLong` or httpx2.ReadTimeout."""
        self._num_bytes += len(chunk)
        if self._num_bytes > self._max_bytes:
            raise ResponseTooLong(self._max_bytes)
        if self._block_s is None:
            return
        now = time.monotonic()
        if self._num_bytes - self._block_start >= BLOCK_BYTES:
            self._block_start, self._block_started_at = self._num_bytes, now
        elif now - self._block_started_at > self._block_s:
            raise httpx2.ReadTimeout(f"the server sends less than 1 MiB in {self._block_s:g} s")


class _AsyncBody(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, limit: _BodyLimit) -> None:
        self._stream = stream
        self._limit = limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self._limit.count(chunk)
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Body(httpx2.SyncByteStream):
    def __init__(self, stream: httpx2.SyncByteStream, limit: _BodyLimit) -> None:
        self._stream = stream
        self._limit = limit

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._stream:
            self._limit.count(chunk)
            yield chunk

    def close(self) -> None:
        self._stream.close()


class _Limits:
    """The hooks of a client. They see every response, also redirects, before its body is read."""

    def __init__(self, max_bytes: int | None, max_requests: int, block_s: float | None) -> None:
        self._max_bytes = max_bytes
        self._max_requests = max_requests
        self._requests_left = max_requests
        self._block_s = block_s

    async def on_request(self, request: httpx2.Request) -> None:
        self._requests_left -= 1
        if self._requests_left < 0:
            problem = f"The server caused more than {self._max_requests} requests."
            raise ResponseRejected(problem)
        request.headers["accept-encoding"] = "identity"

    async def on_response(self, response: httpx2.Response) -> None:
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise ResponseRejected("The answer is compressed, which is not supported.")
        max_bytes = self._max_bytes
        if response.has_redirect_location or not response.is_success:
            max_bytes = min(max_bytes or _REDIRECT_BYTES, _REDIRECT_BYTES)
        elif max_bytes is None:
            max_bytes = declared_bytes(response)
            if max_bytes is None:
                raise ResponseRejected("The server does not say how long its answer is.")
        if isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _AsyncBody(response.stream, _BodyLimit(max_bytes, self._block_s))


def declared_bytes(response: httpx2.Response) -> int | None:
    """The Content-Length of a response; None if it has none."""
    length = response.headers.get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() and len(length) < 19 else None


def open_client(
    max_bytes: int | None,
    *,
    max_requests: int = 2 * MAX_REDIRECTS,
    block_s: float | None = None,
    **options: Any,
) -> httpx2.AsyncClient:
    """Open a client; the caller closes it.

    Args:
        max_bytes: of each body. None: as many as the response declares; one that declares nothing
            is refused.
        max_requests: of the client, with redirects.
        block_s: the time for each MiB, of downloads.
        options: of `httpx2.AsyncClient`.

    Requests raise `ResponseRejected` and other errors of httpx2.
    """
    limits = _Limits(max_bytes, max_requests, block_s)
    hooks: dict[str, list[Callable[..., Any]]] = {
        "request": [limits.on_request],
        "response": [limits.on_response],
    }
    return httpx2.AsyncClient(event_hooks=hooks, max_redirects=MAX_REDIRECTS, **options)


async def get(
    url: str,
    *,
    max_bytes: int,
    timeout_s: float,
    headers: Mapping[str, str] | None = None,
    params: Mapping[str, str] | None = None,
    **options: Any,
) -> httpx2.Response:
    """Return the response to a GET request, with its body.

    Raises errors of httpx2, and OSError, also if it takes longer than `timeout_s` altogether.
    """
    async with (
        asyncio.timeout(timeout_s),
        open_client(max_bytes, timeout=timeout_s, **options) as client,
    ):
        return await client.get(url, headers=headers, params=params)


def limit_download(response: httpx2.Response) -> None:
    """A response hook for blocking clients: limits a body to the declared length, or to 16 MiB, and
    the time for each MiB of it."""
    max_bytes = declared_bytes(response)
    limit = _BodyLimit(_UNSIZED_BYTES if max_bytes is None else max_bytes, BLOCK_S)
    if isinstance(response.stream, httpx2.SyncByteStream):
        response.stream = _Body(response.stream, limit)
