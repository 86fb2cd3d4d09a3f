"""An MCP server on loopback, built with the `mcp` package, that records the calls of its tools."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

LABEL = "shop"
SECRET = "Bearer hush"
Ware = Literal["tea", "coffee"]
"""Values of the argument. A model that may write any text here may never end it."""


@dataclass
class Shop:
    """State of the server."""

    url: str = ""
    ordered: list[str] = field(default_factory=list)
    """Ordered wares, in order."""
    small_print: str = ""
    """Text appended to the result of `order`."""
    began: threading.Event = field(default_factory=threading.Event)
    """Set once `wait` was called."""
    authorizations: list[str] = field(default_factory=list)
    traces: list[tuple[str, str]] = field(default_factory=list)
    """The trace context of each order: in the HTTP headers, and in the message."""

    def app(self) -> MCPServer:
        """The server with its tools."""
        server = MCPServer("shop")

        @server.tool()
        def order(ware: Ware, context: Context) -> str:
            """Orders a ware."""
            headers = context.headers or {}
            self.authorizations.append(headers.get("authorization", ""))
            self.traces.append((headers.get("traceparent", ""), _message_trace(context)))
            self.ordered.append(ware)
            return f"Ordered: {ware}{self.small_print}"

        @server.tool()
        async def wait(ware: Ware) -> str:
            """Orders a ware, and never returns."""
            self.ordered.append(ware)
            self.began.set()
            await asyncio.Event().wait()
            return ""

        @server.tool()
        def break_down() -> str:
            """Fails."""
            raise ToolError("the shop is on fire")

        @server.tool()
        def flood() -> str:
            """Returns a long text."""
            return "x" * 100_000

        return server


def _message_trace(context: Context) -> str:
    meta: Any = context.request_context.meta or {}
    trace: str = meta.get("traceparent", "")
    return trace


@contextmanager
def run_shop() -> Iterator[Shop]:
    """Run the server in a thread of this process, with its own event loop."""
    shop = Shop()
    listener = socket.create_server(("127.0.0.1", 0))
    shop.url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    config = uvicorn.Config(
        shop.app().streamable_http_app(), log_level="critical", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield shop
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
