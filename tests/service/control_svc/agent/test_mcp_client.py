"""The MCP client with servers that misbehave."""

import asyncio
import gzip
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from control_svc.agent.mcp import McpError
from control_svc.agent.mcp_client import MAX_TOOLS, RemoteMcpServers, RemoteServer
from tests.support.mcp_server import LABEL, run_shop

Answers = Mapping[str, Callable[[dict[str, Any]], Any]]
"""Results of each method, computed from the parameters of the request."""
EMPTY = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"
HUGE = {"type": "object", "maximum": "HUGE"}
ANSWERED = {"content": [{"type": "text", "text": "Ordered"}]}


def servers(url: str, timeout_s: float = 20) -> RemoteMcpServers:
    """A client of one server, with a secret header."""
    server = RemoteServer(
        url=url, headers={"Authorization": "hush"}, timeout_s=timeout_s, output_bytes=4096
    )
    return RemoteMcpServers({LABEL: server})


@asynccontextmanager
async def serve_http(reply: Callable[[bytes, bytes], bytes | None]) -> AsyncIterator[str]:
    """A server that answers with `reply(head, body)`, or never if that is None."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((n for n in head.lower().split(b"\r\n") if n.startswith(b"content-l")), b":0")
        answer = reply(head, await reader.readexactly(int(length.partition(b":")[2])))
        if answer is None:
            await reader.read()  # until the client disconnects
        writer.write(answer or b"")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"


def always(status: str, body: bytes = b"", **headers: str) -> Callable[[bytes, bytes], bytes]:
    """The same answer to every request."""
    fields = {"content-length": str(len(body))} | {k.replace("_", "-"): headers[k] for k in headers}
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in fields.items())]
    answer = "\r\n".join(lines).encode() + b"\r\n\r\n" + body
    return lambda _head, _body: answer


def answer_methods(answers: Answers, methods: list[str]) -> Callable[[bytes, bytes], bytes | None]:
    """A server with an older protocol version. It records the methods of requests, and answers
    DELETE only if `answers` contains it."""
    initialized = {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "shop", "version": "1"},
    }
    known: Answers = {"initialize": lambda _: initialized, **answers}

    def reply(head: bytes, body: bytes) -> bytes | None:
        if not head.startswith(b"POST"):
            return EMPTY if head.startswith(b"DELETE") and "DELETE" in answers else None
        request = orjson.loads(body)
        methods.append(request["method"])
        if "id" not in request:
            return EMPTY
        answer: dict[str, Any] = {"error": {"code": -32601, "message": "What?"}}
        if request["method"] in known:
            answer = {"result": known[request["method"]](request.get("params") or {})}
        text = encode_json({"jsonrpc": "2.0", "id": request["id"]} | answer)
        return always("200 OK", text, content_type="application/json", mcp_session_id="7")(b"", b"")

    return reply


def encode_json(value: object) -> bytes:
    """JSON in which "HUGE" is replaced by a number that exceeds 64 bits."""
    return orjson.dumps(value).replace(b'"HUGE"', b"1" + b"0" * 30)


async def test_a_redirect_to_another_server_is_not_followed() -> None:
    """The other server gets no request with the secret, and the error does not name it."""
    requests: list[bytes] = []

    def record(head: bytes, _body: bytes) -> bytes:
        requests.append(head)
        return EMPTY

    async with serve_http(record) as other, serve_http(always("307 Go", location=other)) as url:
        with pytest.raises(McpError) as failed:
            await servers(url).tools(LABEL)

    assert requests == []
    assert "127.0.0.1" not in str(failed.value)
    assert "another address" in str(failed.value)


async def test_a_redirect_that_changes_the_method_is_not_followed() -> None:
    """The request would lose its body."""
    async with serve_http(always("302 Found", location="/login")) as url:
        with pytest.raises(McpError, match="another address"):
            await servers(url).tools(LABEL)


async def test_the_length_of_an_answer_is_limited() -> None:
    """Reading stops at the limit."""
    long = always("200 OK", b"x" * 100_000, content_type="application/json")
    async with serve_http(long) as url:
        with pytest.raises(McpError, match="longer than 4096 bytes"):
            await servers(url).tools(LABEL)


async def test_a_compressed_answer_is_refused() -> None:
    """The client does not accept compression, since the decompressed size has no limit."""
    compressed = gzip.compress(b" " * 1_000_000)
    answer = always("200 OK", compressed, content_type="application/json", content_encoding="gzip")
    assert len(compressed) < 4096
    async with serve_http(answer) as url:
        with pytest.raises(McpError, match="compressed"):
            await servers(url).tools(LABEL)


def page(num_tools: int, description: str, cursor: str | None = None) -> dict[str, Any]:
    tools = [
        {"name": f"t{cursor}_{i}", "description": description, "inputSchema": {"type": "object"}}
        for i in range(num_tools)
    ]
    return {"tools": tools, "nextCursor": cursor}


@pytest.mark.parametrize(
    ("list_tools", "problem"),
    [
        (lambda _: page(0, "", "more"), "pages of tools"),
        (lambda _: page(2, "x" * 1000, "more"), "longer than 4096 bytes"),
        (
            lambda params: page(40, "", params.get("cursor", "") + "m"),
            f"more than {MAX_TOOLS} tools",
        ),
    ],
)
async def test_an_excessive_list_of_tools_is_refused(
    list_tools: Callable[[dict[str, Any]], Any], problem: str
) -> None:
    """Also if each page is within the limits."""
    answers: Answers = {"tools/list": list_tools, "DELETE": lambda _: None}
    async with serve_http(answer_methods(answers, [])) as url:
        with pytest.raises(McpError, match=problem):
            await servers(url).tools(LABEL)


async def test_integers_of_more_than_64_bits_are_kept() -> None:
    """In the schema of a tool, and in a result that is not text."""
    answers: Answers = {
        "tools/list": lambda _: {"tools": [{"name": "t", "inputSchema": HUGE}]},
        "tools/call": lambda _: {"content": [], "structuredContent": HUGE},
        "DELETE": lambda _: None,
    }
    async with serve_http(answer_methods(answers, [])) as url:
        (tool,) = await servers(url).tools(LABEL)
        result = await servers(url).call(LABEL, "t", {})

    schema = {"type": "object", "maximum": 10**30}
    assert json.loads(tool.input_schema_json) == schema
    assert json.loads(result) == schema


async def test_a_call_does_not_list_tools() -> None:
    """Its result is not validated with a schema of the server, which could take forever."""
    methods: list[str] = []
    call = {"tools/call": lambda _: ANSWERED}
    async with serve_http(answer_methods(call, methods)) as url:
        answer = await servers(url).call(LABEL, "order", {"ware": "tea"})

    assert answer == "Ordered"
    assert methods[-1] == "tools/call"
    assert methods.count("tools/call") == 1


async def test_a_call_times_out() -> None:
    """After the configured timeout."""
    with run_shop() as shop:
        waiting = servers(shop.url, timeout_s=2).call(LABEL, "wait", {"ware": "tea"})
        with pytest.raises(McpError, match="within 2 seconds"):
            await waiting


@pytest.mark.parametrize("location", ["/mcp", "http://user:secret@127.0.0.1:{port}/mcp"])
async def test_redirects_that_lead_nowhere_are_ended(location: str) -> None:
    """After a few; the error does not name the address, which may be internal."""
    requests: list[bytes] = []

    def reply(head: bytes, _body: bytes) -> bytes:
        requests.append(head)
        port = head.partition(b"127.0.0.1:")[2].partition(b"\r")[0].decode()
        return always("307 Go", location=location.format(port=port))(b"", b"")

    async with serve_http(reply) as url:
        with pytest.raises(McpError, match="redirects") as failed:
            await servers(url).tools(LABEL)

    assert "127.0.0.1" not in str(failed.value)
    assert len(requests) <= 10


async def test_a_stream_is_not_resumed_in_a_busy_loop() -> None:
    """`retry: 0` makes it wait no less than the shortest time between two requests."""
    event = b"retry: 0\nid: 1\ndata:\n\n"
    stream = always("200 OK", event, content_type="text/event-stream")
    requests: list[bytes] = []

    def reply(head: bytes, body: bytes) -> bytes | None:
        requests.append(head)
        return EMPTY if b'"id"' not in body and head.startswith(b"POST") else stream(head, body)

    async with serve_http(reply) as url:
        with pytest.raises(McpError):
            await servers(url, timeout_s=3).tools(LABEL)

    assert len(requests) < 15


@pytest.mark.parametrize(
    "answer",
    [
        {"id": "another", "result": {}},
        {"id": None, "error": {"code": -32700, "message": "What?"}},
        {"method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}},
    ],
)
async def test_an_answer_to_no_request_ends_the_call(answer: dict[str, Any]) -> None:
    """At once, instead of after the timeout: in JSON no other answer can follow."""
    shop = answer_methods({"DELETE": lambda _: None}, [])

    def reply(head: bytes, body: bytes) -> bytes | None:
        if b"tools/call" not in body:
            return shop(head, body)
        text = orjson.dumps({"jsonrpc": "2.0"} | answer)
        return always("200 OK", text, content_type="application/json")(b"", b"")

    async with serve_http(reply) as url:
        with pytest.raises(McpError, match="to another request"):
            await servers(url, timeout_s=50).call(LABEL, "order", {})


async def test_json_that_answers_no_request_is_let_through(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After a DELETE, and after the answer to a ping of the server, which has the ping's id."""
    pages = iter([page(1, "", "more"), page(1, "")])
    shop = answer_methods({"tools/list": lambda _: next(pages)}, [])
    ping = b'data: {"jsonrpc": "2.0", "id": 3, "method": "ping"}\n\n'
    accepted = always("200 OK", b"{}", content_type="application/json")

    def reply(head: bytes, body: bytes) -> bytes | None:
        if head.startswith(b"DELETE") or (head.startswith(b"POST") and b'"method"' not in body):
            return accepted(head, body)
        answer = shop(head, body)
        if answer is None or b"tools/list" not in body:
            return answer
        events = ping + b"data: " + answer.partition(b"\r\n\r\n")[2] + b"\n\n"
        return always("200 OK", events, content_type="text/event-stream")(head, body)

    async with serve_http(reply) as url:
        tools = await servers(url, timeout_s=10).tools(LABEL)

    assert len(tools) == 2
    assert not [each for each in caplog.records if each.name.startswith("mcp.client")]


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream", "text/html"])
@pytest.mark.parametrize("body", [b"<html>", b'data: {"jsonrpc": 5, "id": []}\n\n'])
async def test_an_answer_that_is_not_mcp_is_named_without_its_text(kind: str, body: bytes) -> None:
    """Neither the text of the validation nor the answer reaches the caller."""
    async with serve_http(always("200 OK", body, content_type=kind)) as url:
        with pytest.raises(McpError) as failed:
            await servers(url, timeout_s=5).tools(LABEL)

    assert not {"validation", "pydantic", "html>", "127.0.0.1"} & set(
        re.split(r"[ /:]", str(failed.value))
    )
    assert len(str(failed.value)) < 200
