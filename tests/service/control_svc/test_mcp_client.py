"""The client of remote servers, at servers that behave badly."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from control_svc.clients.mcp_client import RemoteMcpServers, RemoteServer
from control_svc.domain.mcp import McpFailed
from tests.support.mcp_server import LABEL, a_shop


def servers(url: str, timeout_s: float = 20) -> RemoteMcpServers:
    """One server, with a secret."""
    server = RemoteServer(
        url=url, headers={"Authorization": "hush"}, timeout_s=timeout_s, output_bytes=4096
    )
    return RemoteMcpServers({LABEL: server})


@asynccontextmanager
async def a_server(answer: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that answers each request alike, and what it was asked."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp", asked


async def test_no_secret_follows_a_redirect_to_another_server() -> None:
    """The other one hears nothing."""
    async with a_server(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n") as (elsewhere, heard):
        answer = f"HTTP/1.1 307 Go\r\nlocation: {elsewhere}\r\ncontent-length: 0\r\n\r\n"
        async with a_server(answer.encode()) as (url, asked):
            with pytest.raises(McpFailed):
                await servers(url).tools(LABEL)

    assert b"hush" in asked[0]
    assert heard == []


async def test_an_endless_answer_is_not_read() -> None:
    """It ends where it gets too long."""
    body = b"x" * 100_000
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n"
    async with a_server(head + body) as (url, _):
        with pytest.raises(McpFailed):
            await servers(url).tools(LABEL)


async def test_a_server_that_does_not_answer_is_left() -> None:
    """After the time that the operator gives it."""
    with a_shop() as shop:
        waiting = servers(shop.url, timeout_s=2).call(LABEL, "wait", {"ware": "tea"})
        with pytest.raises(McpFailed, match="within 2 seconds"):
            await waiting
