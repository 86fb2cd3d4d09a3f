"""The HTTP client of MCP servers, on top of the `mcp` package.

Each call opens its own connection. Only servers from the settings are reachable; the size and
duration of answers are limited.
"""

import logging
from asyncio import sleep, timeout
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, TypeVar

import httpx2
from corral.control.v1 import item_pb2
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.types import (
    PARSE_ERROR,
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
from pydantic_core import from_json, to_json

from control_svc.agent.mcp import McpError
from control_svc.config import McpServerSettings
from control_svc.items.model import McpToolDescription
from svc_kit.http_client import (
    MAX_REDIRECTS,
    ResponseRejected,
    ResponseTooLong,
    open_client,
)
from svc_kit.rpc.field_limits import limit_of
from svc_kit.tracing.span import trace_metadata

_log = logging.getLogger(__name__)
_MAX_PROBLEM_CHARACTERS: Final = 2000
_CLOSE_TIMEOUT_S: Final = 1.0
"""Time limit for deleting the session at the server when a connection closes."""
_RESUME_S: Final = 1.0
"""The shortest time between two openings of a stream, which the package has as its default."""
MAX_TOOLS: Final = limit_of(item_pb2.McpListToolsItem, "tools").max_items
_REQUESTS: Final = MAX_TOOLS + 16
"""Requests of a connection, besides those that open a stream again: at most one for each page."""
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
                raise ResponseTooLong(limit)
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
    http = open_client(
        server.output_bytes,
        max_requests=_REQUESTS + int(server.timeout_s / _RESUME_S),
        headers=dict(server.headers) | dict(trace_metadata()),
        timeout=server.timeout_s,
        trust_env=False,
    )
    http.event_hooks["request"].append(_Pace().on_request)
    http.event_hooks["response"] += [_check_redirect, _check_id]
    async with http:
        transport = streamable_http_client(
            server.url, http_client=http, max_sse_event_size=server.output_bytes
        )
        async with Client(transport, cache=None) as client:
            yield client


class _Pace:
    """Makes a connection wait before it opens a stream again, also after `retry: 0`."""

    def __init__(self) -> None:
        self._next_at = 0.0

    async def on_request(self, request: httpx2.Request) -> None:
        if request.method == "DELETE":  # ends the session; nothing depends on its response
            request.extensions["timeout"] = httpx2.Timeout(_CLOSE_TIMEOUT_S).as_dict()
        if request.method == "GET":
            now = monotonic()
            wait_s, self._next_at = self._next_at - now, max(self._next_at, now) + _RESUME_S
            await sleep(max(wait_s, 0))


async def _check_redirect(response: httpx2.Response) -> None:
    """Refuse redirects, except to another path of the server. The message does not name the target,
    which may be an internal address.
    """
    if not response.has_redirect_location:
        return
    url = response.request.url
    target = url.join(response.headers["location"])
    is_followed = response.status_code in _FOLLOWED_REDIRECTS
    if not is_followed or _origin(target) != _origin(url) or target.userinfo:
        raise ResponseRejected("The server redirects to another address, which is not followed.")
    redirects = response.request.extensions["redirects"] = (
        response.request.extensions.get("redirects", 0) + 1
    )
    if redirects > MAX_REDIRECTS:
        raise ResponseRejected("The server redirects too often.")


async def _check_id(response: httpx2.Response) -> None:
    """Refuse JSON with another id than that of the request: the package would wait for the right
    one, which cannot come any more. In an event stream it can."""
    kind = response.headers.get("content-type", "").lower()
    if not response.is_success or not kind.startswith("application/json"):
        return
    try:
        asked = from_json(response.request.content)
        if not isinstance(asked, dict) or not {"method", "id"} <= asked.keys():
            return  # a notification, or the answer to a request of the server
        answer = from_json(await response.aread())
    except ValueError:
        return  # either is not JSON: for an answer that is none, the package raises an error
    if not isinstance(answer, dict) or str(answer.get("id")) != str(asked["id"]):
        raise ResponseRejected("The server sent an answer to another request.")


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _failure(label: str, error: Exception) -> McpError:
    """The error for the model and the caller: the server's own message, or the class of the error.
    Other details, which may contain internal addresses, are only logged.
    """
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, McpError):
        return error
    if isinstance(error, MCPError) and error.code == PARSE_ERROR:  # its text is the package's
        return McpError(f"The server '{label}' sent an answer that is not MCP.")
    if isinstance(error, MCPError | ResponseRejected):
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
        raise ResponseTooLong(limit)


def _tool_description(tool: Tool) -> McpToolDescription:
    hints = tool.annotations
    return McpToolDescription(
        name=tool.name,
        description=tool.description or "",
        input_schema_json=_json_text(tool.input_schema),
        annotations_json="" if hints is None else hints.model_dump_json(exclude_none=True),
    )


def _json_text(value: object) -> str:
    """JSON text, also of integers of more than 64 bits, which the package parses."""
    return to_json(value, inf_nan_mode="null").decode()


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
        return _json_text(result.structured_content)
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
