"""The HTTP client of MCP servers, on top of the `mcp` package.

Each call opens its own connection. Only servers from the settings are reachable; the size and
duration of answers are limited.
"""

import logging
from asyncio import timeout
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import httpx2
import orjson
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.types import (
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    EmbeddedResource,
    InputRequiredResult,
    TextContent,
    TextResourceContents,
    Tool,
)
from pydantic import TypeAdapter

from control_svc.agent.mcp import McpError
from control_svc.config import McpServerSettings
from control_svc.items.input_items import MAX_TOOLS
from control_svc.items.model import McpToolDescription
from svc_kit.tracing.span import trace_metadata

_log = logging.getLogger(__name__)
_MAX_PROBLEM_CHARACTERS: Final = 2000
_CLOSE_TIMEOUT_S: Final = 1.0
"""Time limit for deleting the session at the server when a connection closes."""
_FOLLOWED_REDIRECTS: Final = frozenset({307, 308})
"""Redirects that repeat the request with its body."""
_RESULT: Final = TypeAdapter[CallToolResult | InputRequiredResult](
    CallToolResult | InputRequiredResult
)
AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, kw_only=True)
class RemoteServer:
    """A server from the settings."""

    url: str
    headers: Mapping[str, str]
    timeout_s: float
    """Limits each call and each tool list, from connecting to the last byte."""
    output_bytes: int
    """Maximum size of an answer."""


class RemoteMcpServers:
    """The `McpServers` of the settings, by label."""

    def __init__(self, servers: Mapping[str, RemoteServer]) -> None:
        self._servers = servers

    @property
    def labels(self) -> Collection[str]:
        return self._servers.keys()

    async def tools(self, label: str) -> Sequence[McpToolDescription]:
        """List the tools that a server offers now, from all pages. Raises McpError."""
        limit = self._servers[label].output_bytes

        async def list_all(client: Client) -> list[McpToolDescription]:
            tools: list[McpToolDescription] = []
            cursor = None
            for _ in range(MAX_TOOLS):
                page = await client.list_tools(cursor=cursor)
                tools += map(_tool_description, page.tools)
                _check_size(label, tools, limit)
                if not (cursor := page.next_cursor):
                    return tools
            raise McpError(f"The server '{label}' sent more than {MAX_TOOLS} pages of tools.")

        return await self._request(label, list_all)

    async def call(self, label: str, name: str, arguments: Mapping[str, object]) -> str:
        """Call a tool and return its output as text. Raises McpError."""
        limit = self._servers[label].output_bytes

        async def call_tool(client: Client) -> str:
            # As OpenTelemetry's conventions for MCP say, besides the header of the connection.
            trace: Any = dict(trace_metadata())
            params = CallToolRequestParams(name=name, arguments=dict(arguments), _meta=trace)
            request = CallToolRequest(params=params)
            result = await client.session.send_request(request, _RESULT)
            if isinstance(result, InputRequiredResult):
                raise McpError("The tool requires user input, which is not supported.")
            text = _text(result)
            if len(text.encode()) > limit:
                raise _too_long(limit)
            if result.is_error:
                raise McpError(text[:_MAX_PROBLEM_CHARACTERS] or "The tool failed.")
            return text

        return await self._request(label, call_tool)

    async def _request(self, label: str, send: Callable[[Client], Awaitable[AnswerT]]) -> AnswerT:
        """Send a request over its own connection and return the answer. Raises McpError; failures
        after the answer, while the connection closes, are ignored.
        """
        server = self._servers[label]
        answer: AnswerT | None = None
        try:
            async with timeout(server.timeout_s), _connected(server) as client:
                answer = await send(client)
        except TimeoutError:
            if answer is None:
                limit = f"{server.timeout_s:g} seconds"
                raise McpError(f"The server '{label}' did not answer within {limit}.") from None
        except Exception as error:  # the server and the package may raise anything
            if answer is None:
                raise _failure(label, error) from error
        if answer is None:
            raise McpError(f"The server '{label}' did not answer.")
        return answer


@asynccontextmanager
async def _connected(server: RemoteServer) -> AsyncIterator[Client]:
    http = httpx2.AsyncClient(
        transport=_BoundedTransport(server.output_bytes),
        headers=dict(server.headers) | dict(trace_metadata()),
        timeout=server.timeout_s,
        trust_env=False,
    )
    async with http:
        transport = streamable_http_client(
            server.url, http_client=http, max_sse_event_size=server.output_bytes
        )
        async with Client(transport, cache=None) as client:
            yield client


class _ResponseRejected(httpx2.ReadError):
    """A response that is not read, or not completely."""


def _too_long(limit: int) -> _ResponseRejected:
    return _ResponseRejected(f"The answer is longer than {limit} bytes.")


class _BoundedTransport(httpx2.AsyncHTTPTransport):
    """HTTP transport that limits response sizes and rejects redirects to other origins."""

    def __init__(self, limit: int) -> None:
        super().__init__(trust_env=False)
        self._limit = limit

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["accept-encoding"] = "identity"
        if request.method == "DELETE":  # ends the session; nothing depends on its response
            request.extensions["timeout"] = httpx2.Timeout(_CLOSE_TIMEOUT_S).as_dict()
        response = await super().handle_async_request(request)
        if (problem := _problem(request, response)) is not None:
            await response.aclose()
            raise _ResponseRejected(problem)
        if not isinstance(response.stream, httpx2.AsyncByteStream):
            return response
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=_BoundedStream(response.stream, self._limit),
            extensions=response.extensions,
        )


def _problem(request: httpx2.Request, response: httpx2.Response) -> str | None:
    """Why a response is rejected, or None. The message does not name the target of a redirect,
    which may be an internal address.
    """
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        return "The answer is compressed, which is not supported."
    if response.has_redirect_location:
        target = request.url.join(response.headers["location"])
        is_followed = response.status_code in _FOLLOWED_REDIRECTS
        if not is_followed or _origin(target) != _origin(request.url):
            return "The server redirects to another address, which is not followed."
    return None


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


class _BoundedStream(httpx2.AsyncByteStream):
    """The body of a response, up to a limit."""

    def __init__(self, stream: httpx2.AsyncByteStream, limit: int) -> None:
        self._stream = stream
        self._limit = limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        num_bytes = 0
        async for chunk in self._stream:
            num_bytes += len(chunk)
            if num_bytes > self._limit:
                raise _too_long(self._limit)
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def _failure(label: str, error: Exception) -> McpError:
    """The error for the model and the caller: the server's own message, or the class of the error.
    Other details, which may contain internal addresses, are only logged.
    """
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, McpError):
        return error
    if isinstance(error, MCPError | _ResponseRejected):
        return McpError(str(error)[:_MAX_PROBLEM_CHARACTERS])
    kind = type(error).__name__
    # The text of any other error may quote secrets.
    problem = repr(error) if isinstance(error, httpx2.HTTPError) else kind
    _log.warning("MCP server failed: %s", problem, extra={"fields": {"server": label}})
    return McpError(f"The server '{label}' could not be used: {kind}.")


def _check_size(label: str, tools: Sequence[McpToolDescription], limit: int) -> None:
    """Check the limits of a tool list over all its pages."""
    if len(tools) > MAX_TOOLS:
        raise McpError(f"The server '{label}' has more than {MAX_TOOLS} tools.")
    texts = (t.name + t.description + t.input_schema_json + t.annotations_json for t in tools)
    if sum(len(text.encode()) for text in texts) > limit:
        raise _too_long(limit)


def _tool_description(tool: Tool) -> McpToolDescription:
    hints = tool.annotations
    return McpToolDescription(
        name=tool.name,
        description=tool.description or "",
        input_schema_json=orjson.dumps(tool.input_schema).decode(),
        annotations_json="" if hints is None else hints.model_dump_json(exclude_none=True),
    )


def _text(result: CallToolResult) -> str:
    """The result as text for the model; content that is not text is replaced by its type."""
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


def mcp_servers(settings: Sequence[McpServerSettings]) -> RemoteMcpServers:
    """Read the servers, and the files with their headers."""
    return RemoteMcpServers(
        {
            server.label: RemoteServer(
                url=server.url,
                headers=server.read_headers(),
                timeout_s=server.timeout_s,
                output_bytes=server.output_bytes,
            )
            for server in settings
        }
    )
