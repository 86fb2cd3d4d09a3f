"""The client of remote servers, at servers that behave badly."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from control_svc.agent.mcp import McpError
from control_svc.agent.mcp_client import RemoteMcpServers, RemoteServer
from control_svc.items.input_items import MAX_TOOLS
from tests.support.mcp_server import LABEL, a_shop

Answers = Mapping[str, Callable[[dict[str, Any]], Any]]
"""What a server answers to each method, by the parameters; None: nothing, ever."""
EMPTY = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"
HUGE = {"type": "object", "maximum": "HUGE"}
ANSWERED = {"content": [{"type": "text", "text": "Ordered"}]}


def servers(url: str, timeout_s: float = 20) -> RemoteMcpServers:
    """One server, with a secret."""
    server = RemoteServer(
        url=url, headers={"Authorization": "hush"}, timeout_s=timeout_s, output_bytes=4096
    )
    return RemoteMcpServers({LABEL: server})


@asynccontextmanager
async def a_server(reply: Callable[[bytes, bytes], bytes | None]) -> AsyncIterator[str]:
    """A server that makes its answer of a request's head and body; None: it never comes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((n for n in head.lower().split(b"\r\n") if n.startswith(b"content-l")), b":0")
        answer = reply(head, await reader.readexactly(int(length.partition(b":")[2])))
        if answer is None:
            await reader.read()  # until the client has left
        writer.write(answer or b"")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"


def always(status: str, body: bytes = b"", **headers: str) -> Callable[[bytes, bytes], bytes]:
    """One answer for every request."""
    fields = {"content-length": str(len(body))} | {k.replace("_", "-"): headers[k] for k in headers}
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in fields.items())]
    answer = "\r\n".join(lines).encode() + b"\r\n\r\n" + body
    return lambda _head, _body: answer


def speaking(answers: Answers, asked: list[str]) -> Callable[[bytes, bytes], bytes | None]:
    """A server of an older protocol, that answers by method and writes down what it was asked. It
    leaves a goodbye without an answer, unless it has one."""
    hello = {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "shop", "version": "1"},
    }
    known: Answers = {"initialize": lambda _: hello, **answers}

    def reply(head: bytes, body: bytes) -> bytes | None:
        if not head.startswith(b"POST"):
            return EMPTY if head.startswith(b"DELETE") and "DELETE" in answers else None
        request = orjson.loads(body)
        asked.append(request["method"])
        if "id" not in request:
            return EMPTY
        answer: dict[str, Any] = {"error": {"code": -32601, "message": "What?"}}
        if request["method"] in known:
            answer = {"result": known[request["method"]](request.get("params") or {})}
        text = json_of({"jsonrpc": "2.0", "id": request["id"]} | answer)
        return always("200 OK", text, content_type="application/json", mcp_session_id="7")(b"", b"")

    return reply


def json_of(value: object) -> bytes:
    """JSON, with a number that few readers take where there is a place for it."""
    return orjson.dumps(value).replace(b'"HUGE"', b"1" + b"0" * 30)


async def test_no_secret_follows_a_redirect_to_another_server() -> None:
    """The other one hears nothing, and nobody hears where it is."""
    heard: list[bytes] = []

    def hear(head: bytes, _body: bytes) -> bytes:
        heard.append(head)
        return EMPTY

    async with a_server(hear) as elsewhere, a_server(always("307 Go", location=elsewhere)) as url:
        with pytest.raises(McpError) as failed:
            await servers(url).tools(LABEL)

    assert heard == []
    assert "127.0.0.1" not in str(failed.value)
    assert "another address" in str(failed.value)


async def test_a_call_that_would_lose_its_words_is_not_redirected() -> None:
    """A redirect that asks for another request is not followed, wherever it leads."""
    async with a_server(always("302 Found", location="/login")) as url:
        with pytest.raises(McpError, match="another address"):
            await servers(url).tools(LABEL)


async def test_an_endless_answer_is_not_read() -> None:
    """It ends where it gets too long."""
    long = always("200 OK", b"x" * 100_000, content_type="application/json")
    async with a_server(long) as url:
        with pytest.raises(McpError, match="longer than 4096 bytes"):
            await servers(url).tools(LABEL)


async def test_a_packed_answer_is_not_unpacked() -> None:
    """Nobody asked for it, and what it unpacks to has no bound."""
    packed = gzip.compress(b" " * 1_000_000)
    answer = always("200 OK", packed, content_type="application/json", content_encoding="gzip")
    assert len(packed) < 4096
    async with a_server(answer) as url:
        with pytest.raises(McpError, match="compressed"):
            await servers(url).tools(LABEL)


def page(num_tools: int, description: str, cursor: str | None = None) -> dict[str, Any]:
    """A page of a list."""
    tools = [
        {"name": f"t{cursor}_{i}", "description": description, "inputSchema": {"type": "object"}}
        for i in range(num_tools)
    ]
    return {"tools": tools, "nextCursor": cursor}


@pytest.mark.parametrize(
    ("listed", "problem"),
    [
        (lambda _: page(0, "", "more"), "pages of tools"),
        (lambda _: page(2, "x" * 1000, "more"), "longer than 4096 bytes"),
        (lambda given: page(40, "", given.get("cursor", "") + "m"), f"more than {MAX_TOOLS} tools"),
        (lambda _: {"tools": [{"name": "t", "inputSchema": HUGE}]}, "could not be used"),
    ],
)
async def test_a_list_that_cannot_be_kept_is_a_failure(
    listed: Callable[[dict[str, Any]], Any], problem: str
) -> None:
    """Page by page it is within its bounds; as a whole it is not."""
    answers: Answers = {"tools/list": listed, "DELETE": lambda _: None}
    async with a_server(speaking(answers, [])) as url:
        with pytest.raises(McpError, match=problem):
            await servers(url).tools(LABEL)


async def test_an_answer_stands_by_itself() -> None:
    """A call that was made does not fail because its server cannot say what else it offers, nor is
    the answer held against a schema that the server gives, which might take for ever."""
    asked: list[str] = []
    async with a_server(speaking({"tools/call": lambda _: ANSWERED}, asked)) as url:
        answer = await servers(url).call(LABEL, "order", {"ware": "tea"})

    assert answer == "Ordered"

    assert asked[-1] == "tools/call"
    assert asked.count("tools/call") == 1


async def test_a_server_that_does_not_answer_is_left() -> None:
    """After the time that the operator gives it."""
    with a_shop() as shop:
        waiting = servers(shop.url, timeout_s=2).call(LABEL, "wait", {"ware": "tea"})
        with pytest.raises(McpError, match="within 2 seconds"):
            await waiting
