"""A real grpc.aio server with the whole stack: errors, deadlines, sizes, drain."""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import grpc
import pytest
from corral.inference.v1 import inference_service_pb2 as pb
from corral.inference.v1 import inference_service_pb2_grpc as pb_grpc
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from prometheus_client import CollectorRegistry

from svc_kit import errors
from svc_kit.auth.principal import current_principal
from svc_kit.auth.scopes import METHOD_SCOPES
from svc_kit.errors import DomainError
from svc_kit.errors.status import from_rpc_error, request_id_of
from svc_kit.lifecycle import StartupError
from svc_kit.logs import current_request_id
from svc_kit.rpc.client import translate_errors
from svc_kit.rpc.interceptors import current_deadline
from svc_kit.rpc.server import RpcServer, Service
from svc_kit.settings.groups import ServerSettings
from tests.support.rpc_servers import (
    METHOD,
    SERVICE,
    Context,
    EndlessStream,
    ScriptedInference,
    allow_all,
    run_rpc_server,
    stub_on,
    two_tokens,
)


async def failure_of(call: Any) -> grpc.aio.AioRpcError:
    """What a call fails with; a stream is read to its end."""
    try:
        if isinstance(call, grpc.aio.UnaryStreamCall):
            while await call.read() is not grpc.aio.EOF:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return error
    pytest.fail("the call succeeded")


async def numbers_of(call: Any) -> list[int]:
    """The sequence numbers of a stream's events, to its end."""
    return [event.sequence_number async for event in call]


def raw_call(channel: grpc.aio.Channel, name: str, request: bytes) -> Any:
    """Call a method with bytes."""
    call: Any = channel.unary_unary(name)
    return call(request)


async def error_of(call: Any) -> DomainError:
    """The domain error that a call fails with."""
    return from_rpc_error(await failure_of(call))


def unary_that_raises(error: Exception) -> ScriptedInference:
    """Tokenize fails with this."""

    async def tokenize(request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        raise error

    return ScriptedInference(tokenize=tokenize)


def stream_that_raises(error: Exception) -> ScriptedInference:
    """Generate sends two events and then fails with this."""

    async def generate(
        request: pb.GenerateRequest, context: Context
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        yield pb.GenerateResponse(sequence_number=0)
        yield pb.GenerateResponse(sequence_number=1)
        raise error

    return ScriptedInference(generate=generate)


def unary_that_runs(work: Callable[[], Awaitable[None]]) -> ScriptedInference:
    """Tokenize does this first."""

    async def tokenize(request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        await work()
        return await two_tokens(request, context)

    return ScriptedInference(tokenize=tokenize)


# ---- calls that succeed


async def test_a_unary_call_is_answered_with_a_request_id() -> None:
    """The server makes it, whatever the caller calls the request."""
    async with run_rpc_server() as running:
        call = running.stub.Tokenize(
            pb.TokenizeRequest(text="x"), metadata=(("x-request-id", "mine"),)
        )
        answer = await call
        trailers = dict(await call.trailing_metadata())

    assert list(answer.token_ids) == [1, 2]
    assert str(trailers["x-request-id"]).startswith("req_")


async def test_a_stream_names_its_request_with_the_first_message() -> None:
    """Whoever reads a stream can name it before it ends."""
    async with run_rpc_server() as running:
        call = running.stub.Generate(pb.GenerateRequest())
        first = dict(await call.initial_metadata())
        events = await numbers_of(call)
        last = dict(await call.trailing_metadata())

    assert events == [0, 1, 2]
    assert first["x-request-id"] == last["x-request-id"]


async def test_no_metadata_before_the_first_message() -> None:
    """A call that is refused at admission must stay retryable."""
    admit = asyncio.Event()

    async def generate(
        request: pb.GenerateRequest, context: Context
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        await admit.wait()
        yield pb.GenerateResponse()

    async with run_rpc_server(ScriptedInference(generate=generate)) as running:
        call = running.stub.Generate(pb.GenerateRequest())
        headers = asyncio.ensure_future(call.initial_metadata())
        # A round trip of another call gives headers the time to arrive, were there any.
        await running.stub.Tokenize(pb.TokenizeRequest())
        arrived_early = headers.done()
        admit.set()
        await headers
        call.cancel()

    assert not arrived_early


async def test_a_servicer_may_send_metadata_itself() -> None:
    """To say that a call is admitted, before its first message."""

    async def generate(
        request: pb.GenerateRequest, context: Context
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        await context.send_initial_metadata((("x-admitted", "yes"),))
        yield pb.GenerateResponse(sequence_number=5)

    async with run_rpc_server(ScriptedInference(generate=generate)) as running:
        call = running.stub.Generate(pb.GenerateRequest())
        headers = dict(await call.initial_metadata())
        events = await numbers_of(call)

    assert (headers["x-admitted"], events) == ("yes", [5])


async def test_a_servicer_may_write_to_the_context() -> None:
    """The other way of streaming that grpc.aio knows."""

    class Writer(pb_grpc.InferenceServiceServicer):
        async def Generate(self, request: Any, context: Any) -> None:  # type: ignore[override]
            await context.write(pb.GenerateResponse(sequence_number=7))

    async with run_rpc_server(Writer()) as running:  # type: ignore[arg-type]
        events = await numbers_of(running.stub.Generate(pb.GenerateRequest()))

    assert events == [7]


async def test_the_servicer_knows_request_principal_and_deadline() -> None:
    """Context variables, so that nobody passes them along."""
    seen: dict[str, Any] = {}

    async def look() -> None:
        deadline = current_deadline()
        seen["id"], seen["project"] = current_request_id(), current_principal().project
        seen["left"] = None if deadline is None else deadline - asyncio.get_running_loop().time()

    settings = ServerSettings(default_deadline_s=50)
    async with run_rpc_server(unary_that_runs(look), settings=settings) as running:
        call = running.stub.Tokenize(pb.TokenizeRequest())
        await call
        trailers = dict(await call.trailing_metadata())

    assert (seen["id"], seen["project"]) == (trailers["x-request-id"], "default")
    assert 45 < seen["left"] <= 50


# ---- errors


async def test_a_domain_error_arrives_as_itself() -> None:
    """Class, metadata, message and advice."""
    error = errors.QueueFull(bound="requests", depth=3, limit=3, retry_after=2.5)
    async with run_rpc_server(unary_that_raises(error)) as running:
        received = await error_of(running.stub.Tokenize(pb.TokenizeRequest()))

    assert received == error
    assert received.message == error.message


async def test_an_error_after_tokens_has_its_details_in_the_trailers() -> None:
    """The events before it arrive; ErrorInfo ends the stream."""
    async with run_rpc_server(
        stream_that_raises(errors.EngineRestarting(retry_after=3))
    ) as running:
        call: Any = running.stub.Generate(pb.GenerateRequest())
        events = [(await call.read()).sequence_number for _ in range(2)]
        failed = await failure_of(call)
    status = status_pb2.Status.FromString(
        dict(failed.trailing_metadata())["grpc-status-details-bin"]
    )
    info = error_details_pb2.ErrorInfo()
    status.details[0].Unpack(info)

    assert events == [0, 1]
    assert (failed.code(), info.reason) == (grpc.StatusCode.UNAVAILABLE, "ENGINE_RESTARTING")
    assert from_rpc_error(failed) == errors.EngineRestarting(retry_after=3)


@pytest.mark.parametrize("make", [unary_that_raises, stream_that_raises])
async def test_a_defect_tells_the_caller_nothing_but_the_request_id(
    make: Callable[[Exception], ScriptedInference], caplog: pytest.LogCaptureFixture
) -> None:
    """The exception's class and text stay in the log, under that id."""
    async with run_rpc_server(make(RuntimeError("the password is hunter2"))) as running:
        call: Any = running.stub.Tokenize(pb.TokenizeRequest())
        if make is stream_that_raises:
            call = running.stub.Generate(pb.GenerateRequest())
        failed = await failure_of(call)
    request_id = request_id_of(failed)
    sent = repr(failed) + repr(tuple(failed.trailing_metadata()))

    assert from_rpc_error(failed) == errors.InternalError(request_id=request_id)
    assert request_id.startswith("req_")
    assert "hunter2" not in sent
    assert "RuntimeError" not in sent
    assert "hunter2" in caplog.text


async def test_a_timeout_of_the_servicers_own_is_a_defect() -> None:
    """Only the call's deadline is DEADLINE_EXCEEDED."""
    async with run_rpc_server(unary_that_raises(TimeoutError("a database"))) as running:
        received = await error_of(running.stub.Tokenize(pb.TokenizeRequest()))

    assert type(received) is errors.InternalError


async def test_a_method_that_is_not_written_yet_is_unimplemented() -> None:
    """The generated method raises; callers learn its name, and the log stays quiet."""
    async with run_rpc_server() as running:
        unary = await error_of(running.stub.Embed(pb.EmbedRequest()))
        stream = await error_of(running.stub.Chat(pb.ChatRequest()))

    assert unary == errors.FeatureUnsupported(feature=f"{METHOD}Embed")
    assert stream == errors.FeatureUnsupported(feature=f"{METHOD}Chat")


async def test_a_method_that_does_not_exist_is_unimplemented_with_details() -> None:
    """All of them are one method in the metrics, or callers could add names without end."""
    async with run_rpc_server() as running:
        for name in ("/a.B/C", "/a.B/D"):
            received = await error_of(raw_call(running.channel, name, b"x"))
            assert received == errors.FeatureUnsupported(feature=name)
        counted = running.metrics()

    labels = 'code="UNIMPLEMENTED",method="unknown",reason="FEATURE_UNSUPPORTED"'
    assert counted[f"corral_rpc_server_calls_total{{{labels}}}"] == 2


async def test_bytes_that_are_no_request_are_an_invalid_argument() -> None:
    """A client of another schema is told so, not that we are broken."""
    async with run_rpc_server() as running:
        received = await error_of(raw_call(running.channel, f"{METHOD}Tokenize", b"\xff\xff"))

    assert (received.reason, received.field) == ("INVALID_FIELD", "request")


@pytest.mark.parametrize(("size", "limit"), [(70_000, 65_536), (300_000, 131_072)])
async def test_a_message_over_the_limit_is_refused_with_both_numbers(size: int, limit: int) -> None:
    """By us with details, by gRPC itself where it is far too large: the client reads both."""
    settings = ServerSettings(max_message_bytes=65_536)
    async with run_rpc_server(settings=settings) as running:
        received = await error_of(running.stub.Tokenize(pb.TokenizeRequest(text="x" * size)))

    assert isinstance(received, errors.RequestTooLarge)
    assert received.size > size
    assert received.limit == limit
    assert str(limit) in received.message


async def test_a_message_at_the_limit_is_taken() -> None:
    """The limit itself is allowed."""
    settings = ServerSettings(max_message_bytes=65_536)
    request = pb.TokenizeRequest(text="x" * (65_536 - 4))
    async with run_rpc_server(settings=settings) as running:
        answer = await running.stub.Tokenize(request)

    assert request.ByteSize() == 65_536
    assert list(answer.token_ids) == [1, 2]


# ---- deadlines and cancellation


async def test_the_servers_default_deadline_ends_a_call_without_one() -> None:
    """With details, and the generation behind it is ended."""
    endless = EndlessStream()
    settings = ServerSettings(default_deadline_s=0.05)
    async with run_rpc_server(ScriptedInference(generate=endless), settings=settings) as running:
        received = await error_of(running.stub.Generate(pb.GenerateRequest()))
        await endless.ended.wait()

    assert received == errors.DeadlineExpired(phase="call")


async def test_a_longer_deadline_is_capped() -> None:
    """No caller can hold a slot for ever."""
    endless = EndlessStream()
    settings = ServerSettings(default_deadline_s=100, max_deadline_s=0.05)
    async with run_rpc_server(ScriptedInference(generate=endless), settings=settings) as running:
        call = running.stub.Generate(pb.GenerateRequest(), timeout=100)
        received = await error_of(call)
        await endless.ended.wait()

    assert received == errors.DeadlineExpired(phase="call")


async def test_a_callers_deadline_beyond_the_default_holds() -> None:
    """The default is for those who set none."""
    seen: list[float | None] = []

    async def look() -> None:
        seen.append(current_deadline())

    settings = ServerSettings(default_deadline_s=1, max_deadline_s=100)
    async with run_rpc_server(unary_that_runs(look), settings=settings) as running:
        await running.stub.Tokenize(pb.TokenizeRequest(), timeout=60)
        left = (seen[0] or 0) - asyncio.get_running_loop().time()

    assert 50 < left <= 62  # gRPC rounds a timeout up on its way


async def test_a_callers_own_deadline_ends_the_work() -> None:
    """A call that nobody waits for any more frees what it holds, and counts as late."""
    endless = EndlessStream()
    async with run_rpc_server(ScriptedInference(generate=endless)) as running:
        call = running.stub.Generate(pb.GenerateRequest(), timeout=0.1)
        received = await error_of(call)
        await endless.ended.wait()
        await running.stub.Tokenize(pb.TokenizeRequest())
        counted = running.metrics()

    assert received == errors.DeadlineExpired(phase="call")
    labels = f'code="DEADLINE_EXCEEDED",method="{METHOD}Generate",reason="DEADLINE_EXPIRED"'
    assert counted[f"corral_rpc_server_calls_total{{{labels}}}"] == 1


async def test_a_cancel_reaches_the_servicers_finally() -> None:
    """That is where a sequence is taken off the engine."""
    endless = EndlessStream()
    async with run_rpc_server(ScriptedInference(generate=endless)) as running:
        call = running.stub.Generate(pb.GenerateRequest())
        await call.read()
        await endless.began.wait()
        call.cancel()
        await endless.ended.wait()


async def test_a_cancel_reaches_a_servicer_whose_client_does_not_read() -> None:
    """The servicer stands in its yield then, where nothing is raised into it."""
    ended, number = asyncio.Event(), 0

    async def flood(
        request: pb.GenerateRequest, context: Context
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        nonlocal number
        try:
            while True:
                number += 1
                yield pb.GenerateResponse(delta=pb.TextDelta(text="x" * 60_000))
        finally:
            ended.set()

    async with run_rpc_server(ScriptedInference(generate=flood)) as running:
        call = running.stub.Generate(pb.GenerateRequest())
        await call.read()
        before = -1
        # Until flow control stops the server: every round is a round trip of another call.
        while before != number:
            before = number
            for _ in range(5):
                await running.stub.Tokenize(pb.TokenizeRequest())
        call.cancel()
        await ended.wait()

    assert number < 200


async def test_a_client_that_goes_away_ends_its_call() -> None:
    """Closing the channel is a cancel too."""
    endless = EndlessStream()
    async with run_rpc_server(ScriptedInference(generate=endless)) as running:
        channel = grpc.aio.insecure_channel(running.target)
        call = stub_on(channel).Generate(pb.GenerateRequest())
        await call.read()
        await channel.close()
        await endless.ended.wait()


# ---- the log and the metrics


async def test_each_call_is_one_log_line_without_its_prompt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Method, outcome, who, and the caller's own label."""
    caplog.set_level(logging.INFO)
    labels = (("x-request-id", "mine" * 100), ("traceparent", "00-ab-cd-01"))
    async with run_rpc_server() as running:
        await running.stub.Tokenize(pb.TokenizeRequest(text="my secret"), metadata=labels)
    lines = [getattr(r, "fields", {}) for r in caplog.records if r.message == "call ended"]

    assert len(lines) == 1
    assert (lines[0]["method"], lines[0]["code"]) == (f"{METHOD}Tokenize", "OK")
    assert (lines[0]["key"], lines[0]["peer"][:15]) == ("keyless", "ipv4:127.0.0.1:")
    assert lines[0]["caller_request_id"] == ("mine" * 100)[:128]
    assert lines[0]["traceparent"] == "00-ab-cd-01"
    assert "my secret" not in json.dumps(lines) + caplog.text


async def test_calls_are_counted_by_method_code_and_reason() -> None:
    """And none stays in flight."""
    error = errors.ModelNotFound(model="m")
    async with run_rpc_server(unary_that_raises(error)) as running:
        await error_of(running.stub.Tokenize(pb.TokenizeRequest()))
        async for _ in running.stub.Generate(pb.GenerateRequest()):
            pass
        counted = running.metrics()

    failed = f'code="NOT_FOUND",method="{METHOD}Tokenize",reason="MODEL_NOT_FOUND"'
    done = f'code="OK",method="{METHOD}Generate",reason=""'
    assert counted[f"corral_rpc_server_calls_total{{{failed}}}"] == 1
    assert counted[f"corral_rpc_server_calls_total{{{done}}}"] == 1
    assert counted[f'corral_rpc_server_in_flight{{method="{METHOD}Generate"}}'] == 0
    timed = f'code="OK",method="{METHOD}Generate"'
    assert counted[f"corral_rpc_server_duration_seconds_count{{{timed}}}"] == 1


async def test_a_running_call_is_in_flight() -> None:
    """Until it ends."""
    endless = EndlessStream()
    name = f'corral_rpc_server_in_flight{{method="{METHOD}Generate"}}'
    async with run_rpc_server(ScriptedInference(generate=endless)) as running:
        call = running.stub.Generate(pb.GenerateRequest())
        await call.read()
        during = running.metrics()[name]
        call.cancel()
        await endless.ended.wait()
        await running.stub.Tokenize(pb.TokenizeRequest())
        after = running.metrics()[name]

    assert (during, after) == (1, 0)


# ---- starting


def a_server(listen: str = "127.0.0.1:0", **options: Any) -> RpcServer:
    """A server that does not run yet."""
    service = Service(pb_grpc.add_InferenceServiceServicer_to_server, ScriptedInference(), SERVICE)
    return RpcServer(
        [service],
        listen=listen,
        authenticator=allow_all(),
        registry=CollectorRegistry(),
        **options,
    )


async def test_a_taken_port_is_one_clear_line() -> None:
    """Two servers would share the traffic in silence, did the second one start."""
    async with run_rpc_server() as running:
        with pytest.raises(StartupError, match=f"{running.target}: the port is already in use"):
            await a_server(running.target).start()


async def test_nobody_can_share_the_servers_port() -> None:
    """gRPC's default lets a second process take half of the calls in silence."""
    async with run_rpc_server() as running:
        with socket.socket() as second:
            second.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            with pytest.raises(OSError, match="in use"):
                second.bind(("127.0.0.1", running.server.port))


async def test_a_port_taken_by_something_else_is_one_clear_line() -> None:
    """Whatever listens there."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(StartupError, match="the port is already in use"):
            await a_server(address).start()


async def test_an_address_of_another_machine_is_one_clear_line() -> None:
    """192.0.2.1 is for documentation; nobody has it."""
    with pytest.raises(StartupError, match=r"Cannot listen on 192\.0\.2\.1:0"):
        await a_server("192.0.2.1:0").start()


async def test_a_method_without_a_scope_does_not_start() -> None:
    """Nobody can forget to say who may call an RPC."""
    scopes = {name: scope for name, scope in METHOD_SCOPES.items() if name != f"{METHOD}Chat"}

    with pytest.raises(StartupError, match=f"{METHOD}Chat"):
        await a_server(scopes=scopes).start()


# ---- stopping


async def test_a_drain_lets_running_calls_finish() -> None:
    """And takes nothing new."""
    go_on, began = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        began.set()
        await go_on.wait()

    async with run_rpc_server(unary_that_runs(work)) as running:
        call = asyncio.ensure_future(running.stub.Tokenize(pb.TokenizeRequest()))
        await began.wait()
        watch = health_pb2_grpc.HealthStub(running.channel).Watch(health_pb2.HealthCheckRequest())
        await watch.read()
        drain = asyncio.create_task(running.server.drain(20))
        await failure_of(watch)
        channel = grpc.aio.insecure_channel(running.target)
        refused = await failure_of(stub_on(channel).Tokenize(pb.TokenizeRequest()))
        await channel.close()
        go_on.set()
        answer = await call
        await drain

    assert list(answer.token_ids) == [1, 2]
    assert refused.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_drain_cancels_what_outlives_the_grace() -> None:
    """With details; the servicer's finally runs before drain returns."""
    endless = EndlessStream()
    async with run_rpc_server(ScriptedInference(generate=endless)) as running:
        call = running.stub.Generate(pb.GenerateRequest())
        await call.read()
        await endless.began.wait()
        await running.server.drain(0.05)
        received = await error_of(call)

    assert endless.ended.is_set()
    assert received == errors.Draining()


async def test_balancers_are_told_before_calls_are_refused() -> None:
    """In the delay the server is NOT_SERVING and serves."""
    settings = ServerSettings(drain_delay_s=0.5)
    async with run_rpc_server(settings=settings) as running:
        drain = asyncio.create_task(running.server.drain(0))
        health = health_pb2_grpc.HealthStub(running.channel)
        state = await health.Check(health_pb2.HealthCheckRequest())
        answer = await running.stub.Tokenize(pb.TokenizeRequest())
        await drain

    assert state.status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert list(answer.token_ids) == [1, 2]


async def test_draining_a_server_that_never_started_is_nothing() -> None:
    """A start that failed half-way is cleaned up the same way."""
    await a_server().drain()


async def test_a_servicer_that_ignores_its_end_cannot_stop_the_drain() -> None:
    """gRPC drops the connection at last."""
    began, never = asyncio.Event(), asyncio.Event()

    async def stubborn() -> None:
        began.set()
        for _ in range(2):
            try:
                await never.wait()
            except asyncio.CancelledError:
                continue

    async with run_rpc_server(unary_that_runs(stubborn)) as running:
        call = asyncio.ensure_future(failure_of(running.stub.Tokenize(pb.TokenizeRequest())))
        await began.wait()
        await running.server.drain(0, abort_after_s=0.05)
        failed = await call

    assert failed.code() is grpc.StatusCode.UNAVAILABLE


async def test_errors_are_translated_around_a_whole_stream() -> None:
    """One `with` serves unary calls and streams."""
    sent = errors.SlowReader(unread_events=9, limit_s=60)
    events: list[int] = []

    async def read(call: Any) -> None:
        with translate_errors("inference"):
            events.extend([(await call.read()).sequence_number for _ in range(2)])
            await call.read()

    async with run_rpc_server(stream_that_raises(sent)) as running:
        with pytest.raises(errors.SlowReader):
            await read(running.stub.Generate(pb.GenerateRequest()))

    assert events == [0, 1]
