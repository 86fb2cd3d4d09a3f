"""A remote server (Model Context Protocol) on loopback, by the protocol's own package, that
remembers what its tools were called with."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

LABEL = "shop"
SECRET = "Bearer hush"
Ware = Literal["tea", "coffee"]
"""What can be ordered. A model that may write any text here may write one without an end."""


@dataclass
class Shop:
    """The server, as a test sees it."""

    url: str = ""
    ordered: list[str] = field(default_factory=list)
    """What was ordered, in order."""
    small_print: str = ""
    """What stands under the word that something was ordered."""
    began: threading.Event = field(default_factory=threading.Event)
    """Set once `wait` was called."""
    authorizations: list[str] = field(default_factory=list)

    def app(self) -> MCPServer:
        """Its tools."""
        server = MCPServer("shop")

        @server.tool()
        def order(ware: Ware, context: Context) -> str:
            """Orders a ware."""
            headers = context.headers or {}
            self.authorizations.append(headers.get("authorization", ""))
            self.ordered.append(ware)
            return f"Ordered: {ware}{self.small_print}"

        @server.tool()
        async def wait(ware: Ware) -> str:
            """Orders a ware, and never says so."""
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
            """Says too much."""
            return "x" * 100_000

        return server


@contextmanager
def a_shop() -> Iterator[Shop]:
    """The server, in a thread of this process, with a loop of its own."""
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
