"""Connections that send too much beside bodies, ambiguous heads or too slowly, or are too many."""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest
import uvloop
from prometheus_client import CollectorRegistry, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.connection_limits import ConnectionLimits
from gateway.http.listener import run_listener
from svc_kit.connection_watch import open_files
from svc_kit.metrics import HttpMetrics
from svc_kit.network import Address, open_listener, peer_network
from svc_kit.settings.groups import TlsSettings
from tests.support.certificates import Authority
from tests.support.fake_inference import FakeInference
from tests.support.loopback_gateway import LOOPBACK, run_and_connect, run_gateway
from tests.support.raw_http import RawConnection, open_connection

HOST = b"host: localhost\r\n"
GET = b"GET /health HTTP/1.1\r\n" + HOST
POST = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + b"content-type: application/json\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"
BODY = b'{"model": "fake", "messages": [{"role": "user", "content": "hi"}]}'
LAST = b"0\r\n"


def chunks(body: bytes, size: int) -> bytes:
    """Encode a body in chunks of a size, without the end."""
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)


@pytest.mark.parametrize(
    "excess",
    [
        LAST + b"x: y\r\n" * 12_000,
        LAST + b"x: " + b"y" * 70_000,
        LAST + b"x" * 70_000,
        b"1;" + b"x" * 70_000,
        b"1;x=y\r\na\r\n" * 1000 + b"1;" + b"x" * 200_000,
        b"0" * 70_000,
    ],
    ids=["trailers", "trailer", "trailer name", "extension", "late extension", "zeros"],
)
async def test_bytes_beside_a_body_are_bounded(connection: RawConnection, excess: bytes) -> None:
    """Trailers and heads of chunks: the request fails and the connection is closed."""
    await connection.send(CHUNKED + excess)
    answer = await connection.rest()

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close\r\n" in answer


async def test_trailers_and_small_chunks_are_allowed(
    fake: FakeInference, connection: RawConnection
) -> None:
    """A body of 100,000 bytes in chunks of one byte, with a trailer."""
    body = BODY + b" " * 100_000
    await connection.send(CHUNKED + chunks(body, 1) + LAST + b"x-checksum: 5\r\n\r\n")
    status, _ = await connection.head()

    assert status == 200
    assert len(fake.calls.requests) == 1


@pytest.mark.parametrize("encodings", [b"x, chunked", b"chunked, chunked", b"gzip", b"identity"])
async def test_the_only_transfer_encoding_is_chunked(
    connection: RawConnection, encodings: bytes
) -> None:
    """A proxy in front could find another end of the request."""
    await connection.send(POST + b"transfer-encoding: " + encodings + b"\r\n\r\n" + LAST + b"\r\n")
    answer = await connection.rest()

    assert answer.startswith(b"HTTP/1.1 400 ")


async def test_transfer_encodings_are_not_repeated(connection: RawConnection) -> None:
    """Even if both are valid."""
    twice = b"transfer-encoding: chunked\r\n" * 2
    await connection.send(POST + twice + b"\r\n" + LAST + b"\r\n")

    assert (await connection.rest()).startswith(b"HTTP/1.1 400 ")


async def test_http_1_0_has_no_transfer_encoding(connection: RawConnection) -> None:
    """RFC 9112, section 6.1."""
    await connection.send(CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0") + LAST + b"\r\n")

    assert (await connection.rest()).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("hosts", [b"", HOST * 2, HOST + b"Host: 127.0.0.1\r\n"])
async def test_a_request_has_one_host(connection: RawConnection, hosts: bytes) -> None:
    """Others would be checked for one host and routed to another."""
    await connection.send(b"GET /health HTTP/1.1\r\n" + hosts + b"\r\n")
    answer = await connection.rest()

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"Host headers" in answer


async def test_a_large_head_in_one_read_is_rejected(connection: RawConnection) -> None:
    """Although it is complete."""
    await connection.send(GET + b"x: " + b"a" * 65_536 + b"\r\n\r\n")

    assert (await connection.rest()).startswith(b"HTTP/1.1 431 ")


async def test_a_refusal_follows_the_response_before_it(connection: RawConnection) -> None:
    """A request that is sent early is not looked at until the one before it has its response."""
    await connection.send(POST + b"content-length: 9999\r\nexpect: 100-continue\r\n\r\n")
    await connection.head()  # "continue": the request runs
    await connection.send(b" " * 9999 + b"GET / HTTP/1.1\r\n\r\n")
    _, headers = await connection.head()
    first = await connection.body(headers)
    refusal = await connection.rest()

    assert b"Missing required parameter" in first
    assert refusal.startswith(b"HTTP/1.1 400 ")
    assert b"it has 0 Host headers" in refusal


async def test_empty_lines_do_not_keep_a_connection_open() -> None:
    """Between requests, where they are allowed."""
    async with run_and_connect(receive_timeout_s=0.1) as connection:
        await connection.send(GET + b"\r\n")
        await connection.body((await connection.head())[1])
        await connection.send(b"\r\n")
        assert await connection.rest() == b""


# ---- slow bodies


@asynccontextmanager
async def listening(
    app: ASGIApp, receive_timeout_s: float
) -> AsyncIterator[tuple[Address, CollectorRegistry]]:
    """Serve an application with these limits."""
    registry = CollectorRegistry()
    limits = ConnectionLimits(
        receive_timeout_s=receive_timeout_s,
        min_body_rate=10_000,
        unread_limit_s=20,
        max_per_address=None,
        closed=HttpMetrics(registry).closed_connections,
    )
    with open_listener(Address("127.0.0.1", 0)) as bound:
        bound.setblocking(False)
        address = Address("127.0.0.1", bound.getsockname()[1])
        async with (
            asyncio.timeout(50),
            run_listener(app, bound, certificate=None, grace_s=1, limits=limits, frame_bytes=1024),
        ):
            yield address, registry


class BodyReader:
    """An application that reads a body once `gate` is set, and responds with its size."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.last: Message = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = 0
        await self.gate.wait()
        while self.last.get("more_body", True) and self.last.get("type") != "http.disconnect":
            self.last = await receive()
            size += len(self.last.get("body", b""))
        body = b"%d" % size
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def test_a_slow_body_is_cut_off() -> None:
    """With 408; the application sees a disconnect, the metric the cause."""
    app = BodyReader()
    app.gate.set()
    async with (
        listening(app, 0.1) as (address, registry),
        open_connection(address) as connection,
    ):
        await connection.send(POST + b"content-length: 5000\r\n\r\n" + b"x" * 1000)
        answer = await connection.rest()

    assert answer.startswith(b"HTTP/1.1 408 ")
    assert app.last == {"type": "http.disconnect"}
    total = b'corral_http_server_closed_connections_total{cause="slow_body"} 1.0'
    assert total in generate_latest(registry)


async def test_a_body_that_nobody_reads_is_cut_off() -> None:
    """A request whose response is complete before its body."""
    async with run_and_connect(receive_timeout_s=0.05) as connection:
        await connection.send(GET + b"content-length: 5\r\n\r\nx")
        status, headers = await connection.head()
        await connection.body(headers)
        rest = await connection.rest()

    assert (status, rest) == (200, b"")


async def test_a_server_that_does_not_read_does_not_blame_the_client() -> None:
    """The body of a client that is not read is not slow."""
    app = BodyReader()
    async with (
        listening(app, 0.05) as (address, _),
        open_connection(address) as connection,
    ):
        await connection.send(POST + b"content-length: 200000\r\n\r\n" + b"x" * 100_000)
        for _ in range(6):  # each is closed after 0.05 s, a body would be after 0.1 s
            async with open_connection(address) as silent:
                await silent.rest()
        app.gate.set()
        await connection.send(b"x" * 100_000)
        status, headers = await connection.head()
        size = await connection.body(headers)

    assert (status, size) == (200, b"200000")


# ---- connections of one address


async def test_connections_of_one_address_are_limited() -> None:
    """Further ones get 429 until one is closed; the metric counts them."""
    async with (
        run_gateway(max_connections_per_address=1, management_listen=LOOPBACK) as gateway,
        httpx.AsyncClient(base_url=f"http://{gateway.management}", trust_env=False) as prober,
    ):
        async with open_connection(gateway.address) as first:
            await first.send(GET + b"\r\n")
            await first.head()
            async with open_connection(gateway.address) as second:
                refusal = await second.rest()
        async with gateway.client() as client:
            while (served := await client.get("/health")).status_code == 429:
                pass  # the gateway has not yet noticed that the first one is closed
        metrics = (await prober.get("/metrics")).text

    assert refusal.startswith(b"HTTP/1.1 429 ")
    assert b"retry-after: 1\r\n" in refusal
    assert b"1 connections from one address" in refusal
    assert served.status_code == 200
    assert 'closed_connections_total{cause="connections"}' in metrics


async def test_tls_handshakes_that_stall_keep_nobody_out(tmp_path: Path) -> None:
    """Those of one address are closed beyond its limit."""
    certificate, key = Authority().issue("localhost").write(tmp_path, "tls")
    tls = TlsSettings(certificate_file=certificate, key_file=key)
    async with (
        run_gateway(max_connections_per_address=16, tls=tls) as gateway,
        AsyncExitStack() as stack,
    ):
        stalled = [
            await stack.enter_async_context(open_connection(gateway.address)) for _ in range(40)
        ]
        open_ones = {asyncio.create_task(connection.rest()) for connection in stalled}
        while len(open_ones) > 16:
            _, open_ones = await asyncio.wait(open_ones, return_when=asyncio.FIRST_COMPLETED)
        for each in open_ones:
            each.cancel()

    assert len(open_ones) == 16


async def test_clients_that_leave_before_their_handshakes_hold_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Their files are closed, others are served meanwhile, and nothing is logged."""
    certificate, key = Authority().issue("localhost").write(tmp_path, "tls")
    tls = TlsSettings(certificate_file=certificate, key_file=key)
    hello, statuses, num_files = client_hello(), [], []
    reset = struct.pack("ii", 1, 0)
    async with run_gateway(max_connections_per_address=8, tls=tls) as gateway:
        host, port = gateway.address
        before = len(open_files())
        for first_bytes in (hello, b"", b"GET / HTTP/1.1\r\n\r\n"):
            for _ in range(100):
                leaving = await asyncio.to_thread(socket.create_connection, (host, port))
                leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
                leaving.sendall(first_bytes)
                leaving.close()
            reader, writer = await asyncio.open_connection(
                host, port, ssl=ssl_context(), local_addr=("127.0.0.2", 0)
            )
            num_files.append(len(open_files()) - before)
            writer.write(GET + b"connection: close\r\n\r\n")
            statuses.append(await reader.readline())
            writer.close()

    assert statuses == [b"HTTP/1.1 200 OK\r\n"] * 3
    assert max(num_files) <= 2 * 8 + 2
    assert caplog.records == []


async def test_tls_handshakes_of_one_address_delay_no_other(tmp_path: Path) -> None:
    """Of many that begin at once, most wait until a request of another address is answered."""
    certificate, key = Authority().issue("localhost").write(tmp_path, "tls")
    tls = TlsSettings(certificate_file=certificate, key_file=key)
    num_answered = 0
    hello = client_hello()

    async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_answered
        writer.write(hello)
        await reader.readexactly(1)
        num_answered += 1
        writer.transport.abort()

    async with run_gateway(max_connections_per_address=None, tls=tls) as gateway:
        host, port = gateway.address
        streams = [await asyncio.open_connection(host, port) for _ in range(300)]
        handshakes = [asyncio.create_task(begin(*stream)) for stream in streams]
        await asyncio.sleep(0)  # so that all have sent their first bytes
        reader, writer = await asyncio.open_connection(
            host, port, ssl=ssl_context(), local_addr=("127.0.0.2", 0)
        )
        writer.write(GET + b"\r\n")
        status = await reader.readline()
        num_before = num_answered
        writer.close()
        await asyncio.gather(*handshakes)

    assert status == b"HTTP/1.1 200 OK\r\n"
    assert num_before < 200


def test_an_idle_tls_client_does_not_delay_the_end(tmp_path: Path) -> None:
    """By half a minute, the default of the product's event loop, for an answer that never comes."""
    certificate, key = Authority().issue("localhost").write(tmp_path, "tls")
    tls = TlsSettings(certificate_file=certificate, key_file=key)

    opened: list[socket.socket] = []

    def connect(address: tuple[str, int]) -> None:
        plain = socket.create_connection(address)
        opened.append(ssl_context().wrap_socket(plain, server_hostname="localhost"))

    async def connect_and_end() -> None:
        async with asyncio.timeout(50), run_gateway(tls=tls) as gateway:
            await asyncio.to_thread(connect, gateway.address)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(connect_and_end())
    opened[0].close()


def ssl_context() -> ssl.SSLContext:
    """A client's context that accepts every certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def client_hello() -> bytes:
    """The first bytes of a TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        ssl_context().wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


async def test_an_upgraded_connection_is_counted_once() -> None:
    """While it is open, and no longer."""
    head = (
        b"GET /v1/responses HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\n"
        b"connection: upgrade\r\nsec-websocket-version: 13\r\n"
        b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    async with run_gateway(max_connections_per_address=1) as gateway:
        async with open_connection(gateway.address) as upgraded:
            await upgraded.send(head)
            status, _ = await upgraded.head()
            async with open_connection(gateway.address) as second:
                refusal = await second.rest()
        async with gateway.client() as client:
            while (served := await client.get("/health")).status_code == 429:
                pass

    assert status == 101
    assert refusal.startswith(b"HTTP/1.1 429 ")
    assert served.status_code == 200


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_ipv6_addresses_are_counted_by_network(host: str, network: str) -> None:
    """A host can use every address of its network."""
    assert peer_network(host) == network
