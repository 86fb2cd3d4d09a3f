"""Remote servers (Model Context Protocol) over HTTP, by the protocol's own package.

A server is called by a connection of its own each time: nothing is left open between two calls, and
one server's trouble is nobody else's. The package follows redirects within the server's origin
alone; no proxy is taken from the environment. What a server sends is bounded before it is parsed.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import httpx2
import orjson
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolResult, EmbeddedResource, TextContent, TextResourceContents, Tool

from control_svc.domain.items import McpToolDescription
from control_svc.domain.mcp import McpFailed

log = logging.getLogger(__name__)

MAX_TOOLS: Final = 128
"""Of a server; the model is shown all of them."""
_MAX_PROBLEM_CHARACTERS: Final = 2000


@dataclass(frozen=True, kw_only=True)
class RemoteServer:
    """A server that the operator has named."""

    url: str
    headers: Mapping[str, str]
    timeout_s: float
    """Bounds a call, and a list, from the connection to the last byte."""
    output_bytes: int
    """Bounds what is read of either."""


class RemoteMcpServers:
    """The `McpServers` of the settings."""

    def __init__(self, servers: Mapping[str, RemoteServer]) -> None:
        """Servers by their labels."""
        self._servers = servers

    @property
    def labels(self) -> Collection[str]:
        """Their names."""
        return self._servers.keys()

    async def tools(self, label: str) -> Sequence[McpToolDescription]:
        """What a server offers now, all pages of it. Raises McpFailed."""
        found: list[Tool] = []
        async with self._connected(label) as client:
            page = await client.list_tools()
            found += page.tools
            while page.next_cursor and len(found) <= MAX_TOOLS:
                page = await client.list_tools(cursor=page.next_cursor)
                found += page.tools
        if len(found) > MAX_TOOLS:
            raise McpFailed(f"The server '{label}' has more than {MAX_TOOLS} tools.")
        return list(map(_described, found))

    async def call(self, label: str, name: str, arguments: Mapping[str, object]) -> str:
        """What a tool answers. Raises McpFailed."""
        async with self._connected(label) as client:
            result = await client.call_tool(name, dict(arguments))
        text, limit = _text(result), self._servers[label].output_bytes
        if len(text.encode()) > limit:
            raise McpFailed(f"The answer is longer than {limit} bytes.")
        if result.is_error:
            raise McpFailed(text[:_MAX_PROBLEM_CHARACTERS] or "The tool failed.")
        return text

    @asynccontextmanager
    async def _connected(self, label: str) -> AsyncIterator[Client]:
        """A connection. What goes wrong with it, or within the block, is McpFailed."""
        server = self._servers[label]
        try:
            async with (
                asyncio.timeout(server.timeout_s),
                httpx2.AsyncClient(
                    transport=_Bounded(server.output_bytes),
                    headers=dict(server.headers),
                    timeout=server.timeout_s,
                    trust_env=False,
                ) as http,
                Client(
                    streamable_http_client(
                        server.url, http_client=http, max_sse_event_size=server.output_bytes
                    ),
                    cache=None,
                ) as client,
            ):
                yield client
        except TimeoutError:
            raise McpFailed(
                f"The server '{label}' did not answer within {server.timeout_s:g} seconds."
            ) from None
        except Exception as error:  # a foreign server and a foreign package: whatever they do
            raise _failure(label, error) from error


class _TooLong(httpx2.ReadError):
    """An answer was not read to its end."""


class _Bounded(httpx2.AsyncHTTPTransport):
    """HTTP whose answers end where they get too long."""

    def __init__(self, limit: int) -> None:
        super().__init__(trust_env=False)
        self._limit = limit

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """As above."""
        request.headers["accept-encoding"] = "identity"  # what is small may unpack to anything
        response = await super().handle_async_request(request)
        if not isinstance(response.stream, httpx2.AsyncByteStream):
            return response
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=_BoundedStream(response.stream, self._limit),
            extensions=response.extensions,
        )


class _BoundedStream(httpx2.AsyncByteStream):
    """The bytes of an answer, up to a limit."""

    def __init__(self, stream: httpx2.AsyncByteStream, limit: int) -> None:
        self._stream = stream
        self._limit = limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        num_bytes = 0
        async for chunk in self._stream:
            num_bytes += len(chunk)
            if num_bytes > self._limit:
                raise _TooLong(f"The answer is longer than {self._limit} bytes.")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def _failure(label: str, error: Exception) -> McpFailed:
    """What the model and the caller are told: the server's own words, or the kind of trouble. The
    rest, which may name addresses within the operator's network, is for the log."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, McpFailed):
        return error
    if isinstance(error, MCPError | _TooLong):
        return McpFailed(str(error)[:_MAX_PROBLEM_CHARACTERS])
    log.warning("a remote server failed", extra={"server": label, "problem": repr(error)})
    return McpFailed(f"The server '{label}' could not be used: {type(error).__name__}.")


def _described(tool: Tool) -> McpToolDescription:
    hints = tool.annotations
    return McpToolDescription(
        name=tool.name,
        description=tool.description or "",
        input_schema_json=orjson.dumps(tool.input_schema).decode(),
        annotations_json="" if hints is None else hints.model_dump_json(exclude_none=True),
    )


def _text(result: CallToolResult) -> str:
    """An answer as a text model reads it: pictures and sounds are named, not shown."""
    pieces = []
    for block in result.content:
        if isinstance(block, TextContent):
            pieces.append(block.text)
        elif isinstance(block, EmbeddedResource) and isinstance(
            block.resource, TextResourceContents
        ):
            pieces.append(block.resource.text)
        else:
            pieces.append(f"[{block.type}]")
    if not pieces and result.structured_content is not None:
        return orjson.dumps(result.structured_content).decode()
    return "\n".join(pieces)
