"""Requests, chunks and frames that are sent before they are wanted."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from gateway.http.bounded_connection import READ_AHEAD_BYTES
from gateway.http.protocol import MAX_HEADERS
from svc_kit.network import Address
from tests.service.gateway.http.test_hostile_connections import listening
from tests.support.loopback_gateway import run_and_connect
from tests.support.raw_http import RawConnection, open_connection

HOST = b"host: localhost\r\n"
GET = b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n"
UPGRADE = (
    b"GET /v1/responses HTTP/1.1\r\n" + HOST + b"upgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
FIN, TEXT, CONTINUATION, CLOSE, PING, PONG = 0x80, 1, 0, 8, 9, 10


class Echo:
    """Responds with the body, once `gate` is set. Counts requests, and those that disconnected."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.begun = asyncio.Event()
        self.left = asyncio.Event()
        self.num_requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.num_requests += 1
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.begun.set()
        opening = asyncio.ensure_future(self.gate.wait())
        leaving = asyncio.ensure_future(receive())
        await asyncio.wait([opening, leaving], return_when=asyncio.FIRST_COMPLETED)
        if leaving.done():
            self.left.set()
        opening.cancel()
        leaving.cancel()
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def test_a_request_waits_for_the_response_before_it() -> None:
    """It is not even parsed: one request runs, and what follows waits outside of the server."""
    app = Echo()
    async with listening(app, 5) as (address, _), open_connection(address) as connection:
        sending = asyncio.create_task(connection.send(GET * 500_000))
        await app.begun.wait()
        await read_elsewhere(address)
        assert not sending.done()
        assert app.num_requests == 1
        app.gate.set()
        for _ in range(3):
            await connection.head()
        assert app.num_requests >= 3
        sending.cancel()
        connection.leave()


async def read_elsewhere(address: Address) -> None:
    """Another connection is accepted and closed, in which time the server could have parsed."""
    async with open_connection(address) as other:
        await other.send(b"junk\r\n\r\n")
        await other.rest()


async def test_requests_that_wait_are_dropped_with_their_sender() -> None:
    """The one that runs sees a disconnect, and no other one begins."""
    app = Echo()
    async with listening(app, 5) as (address, _):
        async with open_connection(address) as connection:
            await connection.send(GET * (READ_AHEAD_BYTES // len(GET)))
            await app.begun.wait()
            connection.leave()
        await app.left.wait()
        await read_elsewhere(address)

    assert app.num_requests == 1


async def test_nothing_begins_while_responses_are_not_read() -> None:
    """A client that only sends costs the buffers of one connection."""
    app = Echo()
    app.gate.set()
    body = bytes(20_000)
    request = b"POST / HTTP/1.1\r\n" + HOST + b"content-length: 20000\r\n\r\n" + body
    async with (
        listening(app, 5) as (address, _),
        open_connection(address, receive_buffer=4096) as connection,
    ):
        sending = asyncio.create_task(connection.send(request * 2000))
        before = -1
        while before != app.num_requests:
            before = app.num_requests
            for _ in range(5):
                await read_elsewhere(address)
        assert app.num_requests < 500
        assert not sending.done()
        sending.cancel()
        connection.leave()


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_requests_are_the_same_however_they_are_cut(data: st.DataObject) -> None:
    """Bodies of a length or in chunks, with trailers and empty lines in them, one after another."""
    text = st.text("x\r\n0", max_size=12).map(str.encode)
    bodies = data.draw(st.lists(text, min_size=1, max_size=4))
    raw = b"".join(
        data.draw(st.sampled_from([with_length, in_chunks, with_trailer]))(body) for body in bodies
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=12)))

    async def run() -> list[bytes]:
        app = Echo()
        app.gate.set()
        async with listening(app, 5) as (address, _), open_connection(address) as connection:
            for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
                await connection.send(raw[start:end])
                await asyncio.sleep(0)
            return [await connection.body((await connection.head())[1]) for _ in bodies]

    assert asyncio.run(run()) == bodies


def with_length(body: bytes) -> bytes:
    return b"POST / HTTP/1.1\r\n" + HOST + b"content-length: %d\r\n\r\n" % len(body) + body


def in_chunks(body: bytes, trailer: bytes = b"") -> bytes:
    chunks = [body[start : start + 3] for start in range(0, len(body), 3)]
    encoded = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    head = b"POST / HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n"
    return head + encoded + b"0\r\n" + trailer + b"\r\n"


def with_trailer(body: bytes) -> bytes:
    return in_chunks(body, b"x: y\r\n")


async def test_a_head_has_few_headers(connection: RawConnection) -> None:
    """Each costs more than its bytes."""
    await connection.send(b"GET /health HTTP/1.1\r\n" + HOST + b"a:\r\n" * MAX_HEADERS + b"\r\n")
    answer = await connection.rest()

    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"more than 256 headers" in answer


# ---- WebSockets


def masked(kind: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    num_extended = 0 if size < 126 else 2 if size < 2**16 else 8
    length = size if not num_extended else 126 if num_extended == 2 else 127
    mask = b"\x01\x20\x03\x40"
    extended = size.to_bytes(num_extended) if num_extended else b""
    keys = (mask * (size // len(mask) + 1))[:size]
    body = (int.from_bytes(payload) ^ int.from_bytes(keys)).to_bytes(size)
    return bytes([kind, 0x80 | length]) + extended + mask + body


async def read_frame(connection: RawConnection) -> tuple[int, bytes]:
    """The first byte and the payload of a frame of the server."""
    kind, length = await connection.exactly(2)
    if length == 126:
        length = int.from_bytes(await connection.exactly(2))
    return kind, await connection.exactly(length)


@pytest.mark.parametrize("at_once", [True, False])
async def test_frames_follow_the_handshake(at_once: bool) -> None:
    """Also those that came with it, and each ping has its pong."""
    pings = b"".join(masked(FIN | PING, b"%d" % number) for number in range(200))
    async with run_and_connect() as connection:
        await connection.send(UPGRADE + (pings if at_once else b""))
        status, _ = await connection.head()
        if not at_once:
            await connection.send(pings)
        pongs = [await read_frame(connection) for _ in range(200)]

    assert status == 101
    assert pongs == [(FIN | PONG, b"%d" % number) for number in range(200)]


async def test_a_message_has_any_number_of_fragments() -> None:
    """Empty ones too: the message is what they contain."""
    parts = [b'{"type"', *[b""] * 1000, b': "unhe', *[b""] * 1000, b'ard"}']
    frames = [masked(CONTINUATION, part) for part in parts[:-1]]
    async with run_and_connect() as connection:
        await connection.send(UPGRADE)
        await connection.head()
        await connection.send(masked(TEXT) + b"".join(frames) + masked(FIN, parts[-1]))
        kind, payload = await read_frame(connection)

    assert kind == FIN | TEXT
    assert b"unheard" in payload


@settings(max_examples=20, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 300) | st.integers(4000, 90_000), min_size=1, max_size=6),
    cuts=st.lists(st.integers(0, 3000) | st.integers(0, 400_000), max_size=8),
)
def test_messages_are_the_same_however_they_are_cut(sizes: list[int], cuts: list[int]) -> None:
    """Each has one reply, in order, about its own size."""
    raw = b"".join(masked(FIN | TEXT, b"x" * size) for size in sizes)
    raw += masked(FIN | PING, b"end")
    ends = sorted(min(cut, len(raw)) for cut in cuts)

    async def run() -> list[int]:
        async with run_and_connect() as connection:
            await connection.send(UPGRADE)
            await connection.head()
            for start, end in zip([0, *ends], [*ends, len(raw)], strict=True):
                await connection.send(raw[start:end])
            return [(await read_frame(connection))[0] for _ in (*sizes, "ping")]

    kinds = asyncio.run(run())

    assert sorted(kinds) == sorted([*[FIN | TEXT] * len(sizes), FIN | PONG])


async def test_a_frame_is_refused_before_it_has_arrived() -> None:
    """By what is in it so far, or by its size; later messages are served."""
    begin = masked(FIN | TEXT, b"[" + b"{}," * 1_500_000)
    async with run_and_connect() as connection:
        await connection.send(UPGRADE)
        await connection.head()
        await connection.send(begin[:2_000_000])
        kind, refusal = await read_frame(connection)
        await connection.send(begin[2_000_000:] + masked(FIN | TEXT, b"no JSON"))
        _, other = await read_frame(connection)

    assert kind == FIN | TEXT
    assert b"arrays and objects" in refusal
    assert b"arrays and objects" not in other


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"\x81\xff" + (2**40).to_bytes(8), 1009),
        (b"\x89\xff" + (2**20).to_bytes(8) + bytes(8192), 1002),
        (b"\xc1\xff" + (2**20).to_bytes(8) + bytes(8192), 1002),
        (b"\x81\x7f" + (2**20).to_bytes(8) + bytes(8192), 1002),
        (masked(FIN | TEXT, b" " * 300_000 + b"\xff" + b" " * 700_000)[:900_000], 1007),
    ],
    ids=["too large", "large ping", "reserved bit", "no mask", "no UTF-8"],
)
async def test_a_wrong_frame_closes_the_connection_before_it_has_arrived(
    frame: bytes, code: int
) -> None:
    async with run_and_connect() as connection:
        await connection.send(UPGRADE)
        await connection.head()
        await connection.send(frame)
        kind, reason = await read_frame(connection)

    assert (kind, int.from_bytes(reason[:2])) == (FIN | CLOSE, code)
