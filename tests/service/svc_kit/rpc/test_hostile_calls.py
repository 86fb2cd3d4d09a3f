"""Calls without a key, messages that stall or are too large, and too many of anything."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
from corral.control.v1 import file_service_pb2
from corral.control.v1.file_service_pb2_grpc import (
    FileServiceServicer,
    add_FileServiceServicer_to_server,
)
from corral.inference.v1 import inference_service_pb2 as pb
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from prometheus_client import CollectorRegistry

from svc_kit import errors
from svc_kit.auth.authenticator import Authenticator, build_authenticator
from svc_kit.errors.status import from_rpc_error
from svc_kit.rpc.server import RpcServer, Service
from svc_kit.settings.groups import KeySettings, ServerSettings
from tests.support.raw_http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    HEADERS,
    MAX_CONCURRENT_STREAMS,
    PING,
    RST_STREAM,
    SETTINGS,
    frame,
    literal,
    open_grpc_connection,
    part_of_message,
)
from tests.support.rpc_servers import (
    METHOD,
    Context,
    ScriptedInference,
    allow_all,
    run_rpc_server,
    stub_on,
    two_tokens,
)

HEALTH = "/grpc.health.v1.Health/"
MIB = 1024 * 1024
CODES = {code.value[0]: code for code in grpc.StatusCode}
EMPTY_MESSAGE = b"\x00" * 5
STALLED = part_of_message(1000)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def two_projects() -> Authenticator:
    """Accept the key "a" of the project "a", and "b" of "b"."""
    keys = [
        KeySettings(name=name, project=name, sha256=hashlib.sha256(name.encode()).hexdigest())
        for name in "ab"
    ]
    return build_authenticator(listen="127.0.0.1:0", keys=keys)


# ---- before authentication


@pytest.mark.parametrize("method", ["Tokenize", "Generate", "Unheard"])
async def test_a_call_without_a_key_is_refused_before_its_message(method: str) -> None:
    """Of unary and streaming methods: the rest of the message is never sent."""
    async with (
        run_rpc_server(authenticator=two_projects()) as running,
        open_grpc_connection(running.server.address) as connection,
    ):
        await connection.call(METHOD + method, part_of_message(32 * MIB))
        code = CODES[await connection.status()]

    assert code is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("size", [5000, 5 * MIB])
async def test_a_public_method_has_small_messages(size: int) -> None:
    """Nobody needs a key for it."""
    async with run_rpc_server() as running:
        health = health_pb2_grpc.HealthStub(running.channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health.Check(health_pb2.HealthCheckRequest(service="x" * size))

    error = from_rpc_error(caught.value)
    assert isinstance(error, errors.RequestTooLarge)
    assert error.limit == 4096


# ---- messages


async def test_a_message_that_stalls_ends_its_call() -> None:
    """With DEADLINE_EXCEEDED, which the metrics count."""
    settings = ServerSettings(receive_timeout_s=0.3)
    async with (
        run_rpc_server(settings=settings) as running,
        open_grpc_connection(running.server.address) as connection,
    ):
        await connection.call(f"{METHOD}Tokenize", STALLED)
        code = CODES[await connection.status()]
        samples = running.metrics()

    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    labels = f'code="DEADLINE_EXCEEDED",method="{METHOD}Tokenize",reason="DEADLINE_EXPIRED"'
    assert samples[f"corral_rpc_server_calls_total{{{labels}}}"] == 1


class CountingFiles(FileServiceServicer):
    """Reads the messages of an upload."""

    async def CreateFile(
        self, request: AsyncIterator[Any], context: Context
    ) -> file_service_pb2.CreateFileResponse:
        async for _ in request:
            pass
        return file_service_pb2.CreateFileResponse()


async def test_an_upload_that_stalls_ends() -> None:
    """Between its messages too."""
    server = RpcServer(
        [
            Service(
                add_FileServiceServicer_to_server, CountingFiles(), "corral.control.v1.FileService"
            )
        ],
        listen="127.0.0.1:0",
        authenticator=allow_all(),
        registry=CollectorRegistry(),
        settings=ServerSettings(receive_timeout_s=0.3),
    )
    await server.start()
    async with open_grpc_connection(server.address) as connection:
        await connection.call("/corral.control.v1.FileService/CreateFile", part_of_message(0, 0))
        code = CODES[await connection.status()]
    await server.drain(0)

    assert code is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_call_without_a_message_is_invalid() -> None:
    """Instead of hanging."""
    async with (
        run_rpc_server() as running,
        open_grpc_connection(running.server.address) as connection,
    ):
        await connection.call(f"{METHOD}Tokenize", None)

        assert CODES[await connection.status()] is grpc.StatusCode.INVALID_ARGUMENT


async def test_only_methods_that_need_it_have_large_messages() -> None:
    """Prompts may be larger than 4 MiB, the name of a model may not."""
    async with run_rpc_server() as running:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await running.stub.GetModel(pb.GetModelRequest(model="x" * 5 * MIB))
        answer = await running.stub.Tokenize(pb.TokenizeRequest(text="x" * 5 * MIB))

    error = from_rpc_error(caught.value)
    assert isinstance(error, errors.RequestTooLarge)
    assert error.limit == 4 * MIB
    assert list(answer.token_ids) == [1, 2]


def two_slow_messages() -> ServerSettings:
    """Room for two messages that arrive slowly, so for one of each project."""
    return ServerSettings(max_message_bytes=MIB, receive_budget_bytes=MIB)


async def test_slow_messages_of_a_project_are_limited() -> None:
    """Further ones get RESOURCE_EXHAUSTED; fast ones and those of other projects are read."""
    async with (
        run_rpc_server(authenticator=two_projects(), settings=two_slow_messages()) as running,
        open_grpc_connection(running.server.address) as first,
        open_grpc_connection(running.server.address) as second,
    ):
        await first.call(f"{METHOD}Tokenize", STALLED, **bearer("a"))
        await first.call(f"{METHOD}Tokenize", STALLED, **bearer("a"))
        refused = CODES[await first.status()]
        for key in "ab":
            metadata = list(bearer(key).items())
            await running.stub.Tokenize(pb.TokenizeRequest(), metadata=metadata)
        await second.call(f"{METHOD}Tokenize", STALLED, **bearer("b"))
        await second.call(f"{METHOD}Tokenize", STALLED, **bearer("b"))
        refused_too = CODES[await second.status()]
        samples = running.metrics()

    assert refused is refused_too is grpc.StatusCode.RESOURCE_EXHAUSTED
    labels = f'code="RESOURCE_EXHAUSTED",method="{METHOD}Tokenize",reason="QUEUE_FULL"'
    assert samples[f"corral_rpc_server_calls_total{{{labels}}}"] == 2


async def test_slow_messages_make_room_when_they_end() -> None:
    """Cancelled, refused or complete."""
    settings = two_slow_messages().model_copy(update={"receive_timeout_s": 0.3})
    async with run_rpc_server(settings=settings) as running:
        for _ in range(3):
            async with open_grpc_connection(running.server.address) as connection:
                await connection.call(f"{METHOD}Tokenize", STALLED)
                code = CODES[await connection.status()]
                assert code is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_slow_messages_of_unknown_callers_are_limited() -> None:
    """Of all together, so that probes are served."""
    async with (
        run_rpc_server() as running,
        open_grpc_connection(running.server.address) as connection,
    ):
        for _ in range(3):
            await connection.call(f"{HEALTH}Check", STALLED)
        refused = CODES[await connection.status()]
        health = health_pb2_grpc.HealthStub(running.channel)
        answer = await health.Check(health_pb2.HealthCheckRequest())

    assert refused is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


# ---- connections


async def test_the_calls_of_a_connection_are_limited() -> None:
    """By a setting of HTTP/2, which clients obey."""
    settings = ServerSettings(max_streams_per_connection=7, receive_timeout_s=0.3)
    async with (
        run_rpc_server(settings=settings) as running,
        open_grpc_connection(running.server.address) as connection,
    ):
        await connection.call(f"{METHOD}Tokenize", STALLED)
        await connection.status()

    assert connection.settings[MAX_CONCURRENT_STREAMS] == 7


async def test_the_most_silent_connection_of_too_many_is_closed() -> None:
    """A new one is served, also of the same address."""
    async with (
        run_rpc_server(settings=ServerSettings(max_connections=1)) as running,
        open_grpc_connection(running.server.address) as first,
    ):
        closed = asyncio.create_task(first.wait_closed())
        while not closed.done():  # the other one is never silent
            await running.stub.Tokenize(pb.TokenizeRequest())


async def test_an_address_with_many_connections_keeps_nobody_out() -> None:
    """Its own are closed, none of another: one that was there before, and fresh ones."""
    async with (
        run_rpc_server(settings=ServerSettings(max_connections=20)) as running,
        AsyncExitStack() as stack,
    ):
        address = running.server.address
        await running.stub.Tokenize(pb.TokenizeRequest())
        greedy = [
            await stack.enter_async_context(open_grpc_connection(address, source="127.0.0.2"))
            for _ in range(30)
        ]
        # Not which ones: those that are silent for equally long are alike.
        open_ones = {asyncio.create_task(each.wait_closed()) for each in greedy}
        while len(open_ones) > 20:
            _, open_ones = await asyncio.wait(open_ones, return_when=asyncio.FIRST_COMPLETED)
        for each in open_ones:
            each.cancel()
        async with open_grpc_connection(address) as fresh:
            await fresh.call(f"{METHOD}Tokenize", EMPTY_MESSAGE)
            code = await fresh.status()
        await running.stub.Tokenize(pb.TokenizeRequest())

    assert CODES[code] is grpc.StatusCode.OK


async def test_a_connection_without_a_call_has_a_timeout_for_its_start() -> None:
    """One that never speaks HTTP/2 is closed."""
    async with run_rpc_server(settings=ServerSettings(receive_timeout_s=0.3)) as running:
        address = running.server.address
        reader, writer = await asyncio.open_connection(address.host, address.port)
        async with asyncio.timeout(50):
            while await reader.read(4096):
                pass  # the server's settings
        writer.close()


async def test_a_silent_call_survives_the_pings_of_its_client() -> None:
    """gRPC would end the connection of a client that pings more often than it allows."""
    served, gate = asyncio.Event(), asyncio.Event()

    async def tokenize(request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        served.set()
        await gate.wait()
        return await two_tokens(request, context)

    # The ratio of the defaults: every 30 s, and a minimum of 10 s.
    options = [("grpc.keepalive_time_ms", 300), ("grpc.http2.max_pings_without_data", 0)]
    settings = ServerSettings(keepalive_s=0.3)
    async with (
        run_rpc_server(ScriptedInference(tokenize), settings=settings) as running,
        grpc.aio.insecure_channel(running.target, options=options) as channel,
    ):
        call = asyncio.ensure_future(stub_on(channel).Tokenize(pb.TokenizeRequest()))
        await served.wait()
        await asyncio.wait([call], timeout=5)  # several pings
        gate.set()

        assert list((await call).token_ids) == [1, 2]


# ---- frames

FIELDS = literal(":method", "POST") + literal(":scheme", "http") + literal(":path", "/a/B")
HOSTILE_FRAMES = {
    "another protocol": b"GET / HTTP/1.1\r\n\r\n" * 100,
    "a frame that is too large": frame(DATA, 0, 1, b"x" * 16_000_000),
    "a head of another protocol": frame(HEADERS, END_HEADERS, 1, b"\xff" * 1000),
    "settings that are not": frame(SETTINGS, 0, 0, b"x" * 5),
    "a head without an end": frame(HEADERS, 0, 1, FIELDS)
    + frame(CONTINUATION, 0, 1, literal("a", "b" * 100) * 100) * 1000
    + frame(DATA, 0, 1),
    "pings": frame(PING, 0, 0, b"x" * 8) * 10_000,
}


@pytest.mark.parametrize("frames", HOSTILE_FRAMES.values(), ids=HOSTILE_FRAMES)
async def test_hostile_frames_end_their_connection_only(frames: bytes) -> None:
    async with (
        run_rpc_server() as running,
        open_grpc_connection(running.server.address) as connection,
    ):
        try:
            await connection.send(frames)
        except ConnectionError:
            pass  # closed before the last byte was sent
        await connection.wait_closed()
        answer = await running.stub.Tokenize(pb.TokenizeRequest())

    assert list(answer.token_ids) == [1, 2]


async def test_calls_that_are_reset_at_once_leave_nothing() -> None:
    """Rapid reset: a connection may have any number of calls one after the other."""
    head = FIELDS.replace(b"\x04/a/B", bytes([len(METHOD) + 8]) + f"{METHOD}Tokenize".encode())
    head += literal("te", "trailers") + literal("content-type", "application/grpc")
    resets = b"".join(
        frame(HEADERS, END_HEADERS, number, head) + frame(RST_STREAM, 0, number, b"\0\0\0\x08")
        for number in range(1, 4001, 2)
    )
    async with (
        run_rpc_server() as running,
        open_grpc_connection(running.server.address) as connection,
    ):
        await connection.send(resets)
        answer = await running.stub.Tokenize(pb.TokenizeRequest())
        in_flight = running.metrics()[f'corral_rpc_server_in_flight{{method="{METHOD}Tokenize"}}']

    assert list(answer.token_ids) == [1, 2]
    assert in_flight < 100


async def test_a_message_that_decompresses_to_too_much_is_refused() -> None:
    """Before it is decompressed as a whole."""
    settings = ServerSettings(max_message_bytes=MIB)
    async with run_rpc_server(settings=settings) as running:
        call = running.stub.Tokenize(
            pb.TokenizeRequest(text="x" * 50 * MIB), compression=grpc.Compression.Gzip
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call

    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_large_metadata_is_refused() -> None:
    """Before the handler."""
    async with run_rpc_server() as running:
        call = running.stub.Tokenize(
            pb.TokenizeRequest(), metadata=[(f"x-{number}", "y" * 1000) for number in range(40)]
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call

    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
