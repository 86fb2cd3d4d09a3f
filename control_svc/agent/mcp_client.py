"""The HTTP client of MCP servers, over the protocol's own package.

Each call opens its own connection. Only servers that the operator has configured are reachable;
sizes and times of answers are bounded.
"""

import logging
import re
from asyncio import timeout
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

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

from control_svc.agent.mcp import McpFailed
from control_svc.config import McpServerSettings
from control_svc.items.input_items import MAX_TOOLS
from control_svc.items.model import McpToolDescription
from svc_kit.lifecycle import StartupError

_log = logging.getLogger(__name__)
_MAX_PROBLEM_CHARACTERS: Final = 2000
_GOODBYE_S: Final = 1.0
"""How long a server may take to forget a connection's session."""
_FOLLOWED: Final = frozenset({307, 308})
"""Redirects that repeat the request; others would drop its body."""
_RESULT: Final = TypeAdapter[CallToolResult | InputRequiredResult](
    CallToolResult | InputRequiredResult
)
AnswerT = TypeVar("AnswerT")


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
        limit = self._servers[label].output_bytes

        async def ask(client: Client) -> list[McpToolDescription]:
            found: list[McpToolDescription] = []
            cursor = None
            for _ in range(MAX_TOOLS):
                page = await client.list_tools(cursor=cursor)
                found += map(_described, page.tools)
                _check_size(label, found, limit)
                if not (cursor := page.next_cursor):
                    return found
            raise McpFailed(f"The list of the server '{label}' does not end.")

        return await self._asked(label, ask)

    async def call(self, label: str, name: str, arguments: Mapping[str, object]) -> str:
        """What a tool answers. Raises McpFailed."""
        limit = self._servers[label].output_bytes

        async def ask(client: Client) -> str:
            params = CallToolRequestParams(name=name, arguments=dict(arguments))
            request = CallToolRequest(params=params)
            result = await client.session.send_request(request, _RESULT)
            if isinstance(result, InputRequiredResult):
                raise McpFailed("The tool wants to ask a person, which is not possible here.")
            text = _text(result)
            if len(text.encode()) > limit:
                raise _too_long(limit)
            if result.is_error:
                raise McpFailed(text[:_MAX_PROBLEM_CHARACTERS] or "The tool failed.")
            return text

        return await self._asked(label, ask)

    async def _asked(self, label: str, ask: Callable[[Client], Awaitable[AnswerT]]) -> AnswerT:
        """An answer, by a connection of its own. What goes wrong before it is there is McpFailed;
        what goes wrong behind it, while the connection ends, takes nothing away."""
        server = self._servers[label]
        answer: AnswerT | None = None
        try:
            async with timeout(server.timeout_s), _connected(server) as client:
                answer = await ask(client)
        except TimeoutError:
            if answer is None:
                late = f"The server '{label}' did not answer within {server.timeout_s:g} seconds."
                raise McpFailed(late) from None
        except Exception as error:  # a foreign server and a foreign package: whatever they do
            if answer is None:
                raise _failure(label, error) from error
        if answer is None:
            raise McpFailed(f"The server '{label}' did not answer.")
        return answer


@asynccontextmanager
async def _connected(server: RemoteServer) -> AsyncIterator[Client]:
    http = httpx2.AsyncClient(
        transport=_Bounded(server.output_bytes),
        headers=dict(server.headers),
        timeout=server.timeout_s,
        trust_env=False,
    )
    async with http:
        transport = streamable_http_client(
            server.url, http_client=http, max_sse_event_size=server.output_bytes
        )
        async with Client(transport, cache=None) as client:
            yield client


class _Refused(httpx2.ReadError):
    """An answer that is not read, or not to its end."""


def _too_long(limit: int) -> _Refused:
    return _Refused(f"The answer is longer than {limit} bytes.")


class _Bounded(httpx2.AsyncHTTPTransport):
    """HTTP whose answers end where they get too long, and never lead elsewhere."""

    def __init__(self, limit: int) -> None:
        super().__init__(trust_env=False)
        self._limit = limit

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """As above."""
        request.headers["accept-encoding"] = "identity"
        if request.method == "DELETE":  # a farewell message; nothing waits for it
            request.extensions["timeout"] = httpx2.Timeout(_GOODBYE_S).as_dict()
        response = await super().handle_async_request(request)
        if (problem := _problem(request, response)) is not None:
            await response.aclose()
            raise _Refused(problem)
        if not isinstance(response.stream, httpx2.AsyncByteStream):
            return response
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=_BoundedStream(response.stream, self._limit),
            extensions=response.extensions,
        )


def _problem(request: httpx2.Request, response: httpx2.Response) -> str | None:
    """Why a response is not read; None if it is. The target of a redirect is not named: it may be
    an address of the operator's network.
    """
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        return "The answer is packed, and what is small may unpack to anything."
    if response.has_redirect_location:
        target = request.url.join(response.headers["location"])
        if response.status_code not in _FOLLOWED or _origin(target) != _origin(request.url):
            return "The server is not there any more: it sends its callers to another address."
    return None


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


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
                raise _too_long(self._limit)
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def _failure(label: str, error: Exception) -> McpFailed:
    """The error that model and caller get: the server's own message, or the kind of failure. Other
    details, which may name internal addresses, are logged.
    """
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, McpFailed):
        return error
    if isinstance(error, MCPError | _Refused):
        return McpFailed(str(error)[:_MAX_PROBLEM_CHARACTERS])
    kind = type(error).__name__
    problem = repr(error) if isinstance(error, httpx2.HTTPError) else kind  # else it may quote
    _log.warning("a remote server: %s", problem, extra={"fields": {"server": label}})
    return McpFailed(f"The server '{label}' could not be used: {kind}.")


def _check_size(label: str, tools: Sequence[McpToolDescription], limit: int) -> None:
    """That a list is one that can be kept and shown, however many pages it comes in."""
    if len(tools) > MAX_TOOLS:
        raise McpFailed(f"The server '{label}' has more than {MAX_TOOLS} tools.")
    texts = (t.name + t.description + t.input_schema_json + t.annotations_json for t in tools)
    if sum(len(text.encode()) for text in texts) > limit:
        raise _too_long(limit)


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


_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE: Final = re.compile(r"[ -~]+")


def mcp_servers(settings: Sequence[McpServerSettings]) -> RemoteMcpServers:
    """The servers. Raises StartupError where two have one label, or a file cannot be read."""
    servers: dict[str, RemoteServer] = {}
    for server in settings:
        if server.label in servers:
            raise StartupError(f"mcp_servers: two servers have the label {server.label!r}")
        servers[server.label] = RemoteServer(
            url=server.url,
            headers=_headers(server),
            timeout_s=server.timeout_s,
            output_bytes=server.output_bytes,
        )
    return RemoteMcpServers(servers)


def _headers(server: McpServerSettings) -> Mapping[str, str]:
    return {name: _value(server.label, name, file) for name, file in server.header_files.items()}


def _value(label: str, name: str, file: Path) -> str:
    """The header's value; what HTTP cannot carry would be refused, and quoted, at every call."""
    header = f"mcp_servers: the header {name!r} of {label!r}"
    if not _NAME.fullmatch(name):
        raise StartupError(f"{header} has no name of a header")
    try:
        value = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"{header}: {error}") from error
    if not _VALUE.fullmatch(value):
        raise StartupError(f"{header}: its file has to hold one line of printable ASCII")
    return value
