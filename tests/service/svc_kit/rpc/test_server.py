"""A grpc.aio server with all interceptors: errors, deadlines, message sizes, drain."""

import asyncio
import io
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
from svc_kit.errors import DomainError
from svc_kit.errors.status import from_rpc_error, request_id_of
from svc_kit.lifecycle import StartupError
from svc_kit.logs import JsonFormatter, current_request_id
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
    add_service_without_scopes,
    allow_all,
    run_rpc_server,
    stub_on,
    two_tokens,
)


async def read_rpc_error(call: Any) -> grpc.aio.AioRpcError:
    """Read a call or a stream to its end and return its gRPC error."""
    try:
        if isinstance(call, grpc.aio.UnaryStreamCall):
            while await call.read() is not grpc.aio.EOF:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return error
    pytest.fail("the call succeeded")


async def read_sequence_numbers(call: Any) -> list[int]:
    """Read a stream to its end and return the sequence numbers of its events."""
    return [event.sequence_number async for event in call]


def raw_call(channel: grpc.aio.Channel, name: str, request: bytes) -> Any:
    call: Any = channel.unary_unary(name)
    return call(request)


async def read_domain_error(call: Any) -> DomainError:
    return from_rpc_error(await read_rpc_error(call))


def make_failing_unary(error: Exception) -> ScriptedInference:
    async def tokenize(request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        raise error

    return ScriptedInference(tokenize=tokenize)


def make_failing_stream(error: Exception) -> ScriptedInference:
    """Build a service whose Generate raises an error after two events."""

    async def generate(
        request: pb.GenerateRequest, context: Context
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        yield pb.GenerateResponse(sequence_number=0)
        yield pb.GenerateResponse(sequence_number=1)
        raise error

    return ScriptedInference(generate=generate)


def make_unary_after(work: Callable[[], Awaitable[None]]) -> ScriptedInference:
    """Build a service whose Tokenize awaits `work` before it responds."""

    async def tokenize(request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        await work()
        return await two_tokens(request, context)

    return ScriptedInference(tokenize=tokenize)


# ---- errors that are replaced


async def test_the_caller_gets_the_error_that_replaces_the_methods() -> None:
    async def map_error(error: DomainError) -> DomainError:
        return errors.ModelLoading(model=error.metadata["model"])

    missing = errors.ModelNotFound(model="voice")
    mapped = []
    async with run_rpc_server(make_failing_unary(missing), map_error=map_error) as running:
        mapped.append(await read_domain_error(running.stub.Tokenize(pb.TokenizeRequest())))
    async with run_rpc_server(make_failing_stream(missing), map_error=map_error) as running:
        mapped.append(await read_domain_error(running.stub.Generate(pb.GenerateRequest())))

    assert mapped == [errors.ModelLoading(model="voice")] * 2


# ---- successful calls


async def test_a_unary_response_has_a_request_id() -> None:
    """The server generates it, also if the caller sends one."""
    async with run_rpc_server() as running:
        call = running.stub.Tokenize(
            pb.TokenizeRequest(text="x"), metadata=(("x-request-id", "mine"),)
        )
        answer = await call
        trailers = dict(await call.trailing_metadata())

    assert list(answer.token_ids) == [1, 2]
    assert str(trailers["x-request-id"]).startswith("req_")


async def test_a_stream_sends_its_request_id_with_the_first_message() -> None:
    """It is known before the stream ends."""
    async with run_rpc_server() as running:
        call = running.stub.Generate(pb.GenerateRequest())
        first = dict(await call.initial_metadata())
        events = await read_sequence_numbers(call)
        last = dict(await call.trailing_metadata())

    assert events == [0, 1, 2]
    assert first["x-request-id"] == last["x-request-id"]


async def test_no_metadata_is_sent_before_the_first_message() -> None:
    """A call that is refused at admission stays retryable."""
    admit = asyncio.Event()

    async def generate(
        request: pb.GenerateRequest, context: Context
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        await admit.wait()
        yield pb.GenerateResponse()

    async with run_rpc_server(ScriptedInference(generate=generate)) as running:
        call = running.stub.Generate(pb.GenerateRequest())
        headers = asyncio.ensure_future(call.initial_metadata())
        # Any headers would arrive during the round trip of another call.
        await running.stub.Tokenize(pb.TokenizeRequest())
        arrived_early = headers.done()
        admit.set()
        await headers
        call.cancel()

    assert not arrived_early


async def test_a_servicer_can_send_initial_metadata() -> None:
    """Before its first message, as a sign of admission."""

    async def generate(
        request: pb.GenerateRequest, context: Context
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        await context.send_initial_metadata((("x-admitted", "yes"),))
        yield pb.GenerateResponse(sequence_number=5)

    async with run_rpc_server(ScriptedInference(generate=generate)) as running:
        call = running.stub.Generate(pb.GenerateRequest())
        headers = dict(await call.initial_metadata())
        events = await read_sequence_numbers(call)

    assert (headers["x-admitted"], events) == ("yes", [5])


async def test_a_servicer_can_write_to_the_context() -> None:
    """The alternative to async generators in grpc.aio."""

    class Writer(pb_grpc.InferenceServiceServicer):
        async def Generate(self, request: Any, context: Any) -> None:  # type: ignore[override]
            await context.write(pb.GenerateResponse(sequence_number=7))

    async with run_rpc_server(Writer()) as running:  # type: ignore[arg-type]
        events = await read_sequence_numbers(running.stub.Generate(pb.GenerateRequest()))

    assert events == [7]


async def test_context_variables_contain_request_id_principal_and_deadline() -> None:
    """They are set while the servicer runs."""
    values: dict[str, Any] = {}

    async def record_context() -> None:
        deadline = current_deadline()
        values["id"], values["project"] = current_request_id(), current_principal().project
        values["remaining_s"] = (
            None if deadline is None else deadline - asyncio.get_running_loop().time()
        )

    settings = ServerSettings(default_deadline_s=50)
    async with run_rpc_server(make_unary_after(record_context), settings=settings) as running:
        call = running.stub.Tokenize(pb.TokenizeRequest())
        await call
        trailers = dict(await call.trailing_metadata())

    assert (values["id"], values["project"]) == (trailers["x-request-id"], "default")
    assert 45 < values["remaining_s"] <= 50


# ---- errors


async def test_a_domain_error_is_received_unchanged() -> None:
    """Class, metadata, message and retry delay."""
    error = errors.QueueFull(bound="requests", depth=3, limit=3, retry_after=2.5)
    async with run_rpc_server(make_failing_unary(error)) as running:
        received = await read_domain_error(running.stub.Tokenize(pb.TokenizeRequest()))

    assert received == error
    assert received.message == error.message


async def test_an_error_after_tokens_has_its_details_in_the_trailers() -> None:
    """After the events that were sent before it."""
    async with run_rpc_server(
        make_failing_stream(errors.EngineRestarting(retry_after=3))
    ) as running:
        call: Any = running.stub.Generate(pb.GenerateRequest())
        events = [(await call.read()).sequence_number for _ in range(2)]
        failed = await read_rpc_error(call)
    status = status_pb2.Status.FromString(
        dict(failed.trailing_metadata())["grpc-status-details-bin"]
    )
    info = error_details_pb2.ErrorInfo()
    status.details[0].Unpack(info)

    assert events == [0, 1]
    assert (failed.code(), info.reason) == (grpc.StatusCode.UNAVAILABLE, "ENGINE_RESTARTING")
    assert from_rpc_error(failed) == errors.EngineRestarting(retry_after=3)


@pytest.mark.parametrize("make", [make_failing_unary, make_failing_stream])
async def test_an_unexpected_exception_reveals_only_the_request_id(
    make: Callable[[Exception], ScriptedInference], caplog: pytest.LogCaptureFixture
) -> None:
    """Class and text of the exception are logged only."""
    async with run_rpc_server(make(RuntimeError("the password is hunter2"))) as running:
        call: Any = running.stub.Tokenize(pb.TokenizeRequest())
        if make is make_failing_stream:
            call = running.stub.Generate(pb.GenerateRequest())
        failed = await read_rpc_error(call)
    request_id = request_id_of(failed)
    sent = repr(failed) + repr(tuple(failed.trailing_metadata()))

    assert from_rpc_error(failed) == errors.InternalError(request_id=request_id)
    assert request_id.startswith("req_")
    assert "hunter2" not in sent
    assert "RuntimeError" not in sent
    assert "hunter2" in caplog.text


async def test_a_timeout_error_of_the_servicer_is_an_internal_error() -> None:
    """Only an expired deadline of the call is DEADLINE_EXCEEDED."""
    async with run_rpc_server(make_failing_unary(TimeoutError("a database"))) as running:
        received = await read_domain_error(running.stub.Tokenize(pb.TokenizeRequest()))

    assert type(received) is errors.InternalError


async def test_a_method_without_an_implementation_is_unimplemented() -> None:
    """The error names the method."""
    async with run_rpc_server() as running:
        unary = await read_domain_error(
            running.stub.Embed(pb.EmbedRequest(inputs=[pb.TextOrTokens(text="a")]))
        )
        stream = await read_domain_error(running.stub.Chat(pb.ChatRequest()))

    assert unary == errors.FeatureUnsupported(feature=f"{METHOD}Embed")
    assert stream == errors.FeatureUnsupported(feature=f"{METHOD}Chat")


async def test_an_unknown_method_is_unimplemented_with_details() -> None:
    """Metrics count all unknown methods as one, to bound the number of labels."""
    async with run_rpc_server() as running:
        for name in ("/a.B/C", "/a.B/D"):
            received = await read_domain_error(raw_call(running.channel, name, b"x"))
            assert received == errors.FeatureUnsupported(feature="the method of this call")
        samples = running.metrics()

    labels = 'code="UNIMPLEMENTED",method="unknown",reason="FEATURE_UNSUPPORTED"'
    assert samples[f"corral_rpc_server_calls_total{{{labels}}}"] == 2


async def test_malformed_request_bytes_are_an_invalid_argument() -> None:
    """Not an internal error."""
    async with run_rpc_server() as running:
        received = await read_domain_error(
            raw_call(running.channel, f"{METHOD}Tokenize", b"\xff\xff")
        )

    assert (received.reason, received.field) == ("INVALID_FIELD", "request")


@pytest.mark.parametrize(("size", "limit"), [(70_000, 65_536), (300_000, 131_072)])
async def test_a_message_over_the_limit_is_refused_with_size_and_limit(
    size: int, limit: int
) -> None:
    """By an interceptor, or by gRPC if it is far too large."""
    settings = ServerSettings(max_message_bytes=65_536)
    async with run_rpc_server(settings=settings) as running:
        received = await read_domain_error(
            running.stub.Tokenize(pb.TokenizeRequest(text="x" * size))
        )

    assert isinstance(received, errors.RequestTooLarge)
    assert received.size > size
    assert received.limit == limit
    assert str(limit) in received.message


async def test_a_message_at_the_limit_is_accepted() -> None:
    """The limit is inclusive."""
    settings = ServerSettings(max_message_bytes=65_536)
    request = pb.TokenizeRequest(text="x" * (65_536 - 4))
    async with run_rpc_server(settings=settings) as running:
        answer = await running.stub.Tokenize(request)

    assert request.ByteSize() == 65_536
    assert list(answer.token_ids) == [1, 2]


# ---- deadlines and cancellation


async def test_a_call_without_a_deadline_gets_the_default() -> None:
    """The servicer is cancelled at the deadline."""
    endless = EndlessStream()
    settings = ServerSettings(default_deadline_s=1)
    async with run_rpc_server(ScriptedInference(generate=endless), settings=settings) as running:
        received = await read_domain_error(running.stub.Generate(pb.GenerateRequest()))
        await endless.ended.wait()

    assert received == errors.DeadlineExpired(phase="call")


async def test_a_deadline_is_capped_at_the_maximum() -> None:
    """A caller cannot occupy a slot longer. The call is counted as DEADLINE_EXCEEDED."""
    endless = EndlessStream()
    settings = ServerSettings(default_deadline_s=100, max_deadline_s=1)
    async with run_rpc_server(ScriptedInference(generate=endless), settings=settings) as running:
        call = running.stub.Generate(pb.GenerateRequest(), timeout=100)
        received = await read_domain_error(call)
        await endless.ended.wait()
        samples = running.metrics()

    assert received == errors.DeadlineExpired(phase="call")
    labels = f'code="DEADLINE_EXCEEDED",method="{METHOD}Generate",reason="DEADLINE_EXPIRED"'
    assert samples[f"corral_rpc_server_calls_total{{{labels}}}"] == 1


async def test_a_deadline_may_exceed_the_default() -> None:
    """The default applies only to calls without a deadline."""
    deadlines: list[float | None] = []

    async def record_context() -> None:
        deadlines.append(current_deadline())

    settings = ServerSettings(default_deadline_s=1, max_deadline_s=100)
    async with run_rpc_server(make_unary_after(record_context), settings=settings) as running:
        await running.stub.Tokenize(pb.TokenizeRequest(), timeout=60)
        remaining_s = (deadlines[0] or 0) - asyncio.get_running_loop().time()

    assert 50 < remaining_s <= 62  # gRPC rounds timeouts up


async def test_the_deadline_of_a_call_cancels_the_servicer() -> None:
    """The client's or the server's clock may end the call, so its count depends on who is first."""
    endless = EndlessStream()
    async with run_rpc_server(ScriptedInference(generate=endless)) as running:
        call = running.stub.Generate(pb.GenerateRequest(), timeout=0.1)
        received = await read_domain_error(call)
        await endless.ended.wait()

    assert received == errors.DeadlineExpired(phase="call")


async def test_a_cancelled_call_runs_the_finally_of_the_servicer() -> None:
    """Where a sequence is removed from the engine."""
    endless = EndlessStream()
    async with run_rpc_server(ScriptedInference(generate=endless)) as running:
        call = running.stub.Generate(pb.GenerateRequest())
        await call.read()
        await endless.began.wait()
        call.cancel()
        await endless.ended.wait()


async def test_a_cancelled_call_ends_a_servicer_blocked_by_flow_control() -> None:
    """It is suspended in `yield`, where no exception is raised."""
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
        # Round trips of another call, until flow control stops the stream.
        while before != number:
            before = number
            for _ in range(5):
                await running.stub.Tokenize(pb.TokenizeRequest())
        call.cancel()
        await ended.wait()

    assert number < 200


async def test_closing_the_channel_cancels_its_calls() -> None:
    endless = EndlessStream()
    async with run_rpc_server(ScriptedInference(generate=endless)) as running:
        channel = grpc.aio.insecure_channel(running.target)
        call = stub_on(channel).Generate(pb.GenerateRequest())
        await call.read()
        await channel.close()
        await endless.ended.wait()


# ---- logs and metrics


async def test_each_call_is_one_log_line_without_its_prompt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With method, code, key, peer and the caller's request id."""
    caplog.set_level(logging.INFO)
    labels = (("x-request-id", "mine" * 100),)
    async with run_rpc_server() as running:
        await running.stub.Tokenize(pb.TokenizeRequest(text="my secret"), metadata=labels)
    lines = [getattr(r, "fields", {}) for r in caplog.records if r.message == "call ended"]

    assert len(lines) == 1
    assert (lines[0]["method"], lines[0]["code"]) == (f"{METHOD}Tokenize", "OK")
    assert (lines[0]["key"], lines[0]["peer"][:15]) == ("keyless", "ipv4:127.0.0.1:")
    assert lines[0]["caller_request_id"] == ("mine" * 100)[:128]
    assert "my secret" not in json.dumps(lines) + caplog.text


async def test_the_lines_of_a_call_have_the_callers_trace_id(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also where this server records no spans."""
    caplog.set_level(logging.INFO)
    stream, log = io.StringIO(), logging.getLogger("svc_kit.rpc.interceptors")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter("tests"))
    log.addHandler(handler)
    try:
        traceparent = ("traceparent", f"00-{1:032x}-{2:016x}-01")
        async with run_rpc_server() as running:
            await running.stub.Tokenize(pb.TokenizeRequest(), metadata=(traceparent,))
            await running.stub.Tokenize(pb.TokenizeRequest())
    finally:
        log.removeHandler(handler)

    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line.get("trace_id") for line in lines] == [f"{1:032x}", None]


async def test_calls_are_counted_by_method_code_and_reason() -> None:
    error = errors.ModelNotFound(model="m")
    async with run_rpc_server(make_failing_unary(error)) as running:
        await read_domain_error(running.stub.Tokenize(pb.TokenizeRequest()))
        async for _ in running.stub.Generate(pb.GenerateRequest()):
            pass
        samples = running.metrics()

    failed = f'code="NOT_FOUND",method="{METHOD}Tokenize",reason="MODEL_NOT_FOUND"'
    done = f'code="OK",method="{METHOD}Generate",reason=""'
    assert samples[f"corral_rpc_server_calls_total{{{failed}}}"] == 1
    assert samples[f"corral_rpc_server_calls_total{{{done}}}"] == 1
    assert samples[f'corral_rpc_server_in_flight{{method="{METHOD}Generate"}}'] == 0
    timed = f'code="OK",method="{METHOD}Generate"'
    assert samples[f"corral_rpc_server_duration_seconds_count{{{timed}}}"] == 1


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


# ---- start


def make_server(listen: str = "127.0.0.1:0", *, service: Service | None = None) -> RpcServer:
    add = pb_grpc.add_InferenceServiceServicer_to_server
    return RpcServer(
        [service or Service(add, ScriptedInference(), SERVICE)],
        listen=listen,
        authenticator=allow_all(),
        registry=CollectorRegistry(),
    )


async def test_a_port_of_another_server_is_refused() -> None:
    """gRPC would share the port between both servers."""
    async with run_rpc_server() as running:
        with pytest.raises(StartupError, match=f"{running.target}: the port is already in use"):
            await make_server(running.target).start()


async def test_other_processes_cannot_share_the_port() -> None:
    """gRPC enables SO_REUSEPORT by default."""
    async with run_rpc_server() as running:
        with socket.socket() as second:
            second.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            with pytest.raises(OSError, match="in use"):
                second.bind(("127.0.0.1", running.server.port))


async def test_a_port_of_another_program_is_refused() -> None:
    """The error says that it is in use."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(StartupError, match="the port is already in use"):
            await make_server(address).start()


async def test_an_address_of_another_machine_is_refused() -> None:
    """192.0.2.1 is reserved for documentation."""
    with pytest.raises(StartupError, match=r"Cannot listen on 192\.0\.2\.1:0"):
        await make_server("192.0.2.1:0").start()


async def test_a_server_with_a_method_without_a_scope_does_not_start() -> None:
    name = add_service_without_scopes()
    service = Service(lambda servicer, server: None, None, name)

    with pytest.raises(StartupError, match=f"/{name}/Call has no scope"):
        await make_server(service=service).start()


# ---- drain


async def test_a_drain_lets_running_calls_finish() -> None:
    resume, began = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        began.set()
        await resume.wait()

    async with run_rpc_server(make_unary_after(work)) as running:
        call = asyncio.ensure_future(running.stub.Tokenize(pb.TokenizeRequest()))
        await began.wait()
        watch = health_pb2_grpc.HealthStub(running.channel).Watch(health_pb2.HealthCheckRequest())
        await watch.read()
        drain = asyncio.create_task(running.server.drain(20))
        await read_rpc_error(watch)
        channel = grpc.aio.insecure_channel(running.target)
        refused = await read_rpc_error(stub_on(channel).Tokenize(pb.TokenizeRequest()))
        await channel.close()
        resume.set()
        answer = await call
        await drain

    assert list(answer.token_ids) == [1, 2]
    assert refused.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_drain_cancels_calls_after_the_grace_period() -> None:
    """The servicer's finally runs before `drain` returns."""
    endless = EndlessStream()
    async with run_rpc_server(ScriptedInference(generate=endless)) as running:
        call = running.stub.Generate(pb.GenerateRequest())
        await call.read()
        await endless.began.wait()
        await running.server.drain(0.05)
        received = await read_domain_error(call)

    assert endless.ended.is_set()
    assert received == errors.Draining()


async def test_health_is_not_serving_before_calls_are_refused() -> None:
    """During the drain delay load balancers stop sending calls."""
    settings = ServerSettings(drain_delay_s=0.5)
    async with run_rpc_server(settings=settings) as running:
        drain = asyncio.create_task(running.server.drain(0))
        health = health_pb2_grpc.HealthStub(running.channel)
        state = await health.Check(health_pb2.HealthCheckRequest())
        answer = await running.stub.Tokenize(pb.TokenizeRequest())
        await drain

    assert state.status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert list(answer.token_ids) == [1, 2]


async def test_a_server_that_did_not_start_can_be_drained() -> None:
    """As cleanup after a failed start."""
    await make_server().drain()


async def test_a_servicer_that_ignores_cancellation_does_not_block_the_drain() -> None:
    """gRPC closes the connection after `abort_after_s`."""
    began, never = asyncio.Event(), asyncio.Event()

    async def ignore_cancellation() -> None:
        began.set()
        for _ in range(2):
            try:
                await never.wait()
            except asyncio.CancelledError:
                continue

    async with run_rpc_server(make_unary_after(ignore_cancellation)) as running:
        call = asyncio.ensure_future(read_rpc_error(running.stub.Tokenize(pb.TokenizeRequest())))
        await began.wait()
        await running.server.drain(0, abort_after_s=0.05)
        failed = await call

    assert failed.code() is grpc.StatusCode.UNAVAILABLE


async def test_errors_of_a_stream_are_translated() -> None:
    """By the same context manager as errors of unary calls."""
    sent = errors.SlowReader(unread_events=9, limit_s=60)
    events: list[int] = []

    async def read(call: Any) -> None:
        with translate_errors("inference"):
            events.extend([(await call.read()).sequence_number for _ in range(2)])
            await call.read()

    async with run_rpc_server(make_failing_stream(sent)) as running:
        with pytest.raises(errors.SlowReader):
            await read(running.stub.Generate(pb.GenerateRequest()))

    assert events == [0, 1]


async def test_clients_connect_again_after_a_while_without_a_loss_of_calls() -> None:
    """So they resolve the name of the server again."""
    peers: list[str] = []
    stream = EndlessStream()

    async def tokenize(request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        peers.append(context.peer())
        return pb.TokenizeResponse()

    settings = ServerSettings(max_connection_age_s=0.2)
    async with run_rpc_server(ScriptedInference(tokenize, stream), settings=settings) as running:
        call = running.stub.Generate(pb.GenerateRequest(text="t"))
        await call.read()
        while len({*peers}) < 3:
            await running.stub.Tokenize(pb.TokenizeRequest(text="t"))

        assert not call.done()
        assert not stream.ended.is_set()
