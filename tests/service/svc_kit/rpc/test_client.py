"""Retries and errors of client channels."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from corral.inference.v1 import inference_service_pb2 as pb

from svc_kit import errors
from svc_kit.rpc.client import open_channel, translate_errors
from svc_kit.settings.groups import UpstreamTlsSettings
from tests.support.replicas import Replica, serve_replica
from tests.support.rpc_servers import (
    Context,
    ScriptedInference,
    run_rpc_server,
    stub_on,
    two_tokens,
)

NUM_DRAINS: Final = 3
NUM_CALLERS: Final = 8


async def test_a_call_refused_before_admission_is_retried() -> None:
    """UNAVAILABLE without initial metadata."""
    attempts = 0

    async def tokenize(request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise errors.EngineRestarting(retry_after=1)
        return await two_tokens(request, context)

    async with run_rpc_server(ScriptedInference(tokenize)) as running:
        answer = await running.stub.Tokenize(pb.TokenizeRequest())

    assert (list(answer.token_ids), attempts) == ([1, 2], 3)


async def test_a_stream_is_not_retried_after_its_first_event() -> None:
    """Its tokens would be repeated."""
    attempts = 0

    async def generate(
        request: pb.GenerateRequest, context: Context
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        nonlocal attempts
        attempts += 1
        yield pb.GenerateResponse(sequence_number=0)
        raise errors.EngineRestarting(retry_after=1)

    async def read(stub: Any) -> None:
        with translate_errors():
            async for _ in stub.Generate(pb.GenerateRequest()):
                pass

    async with run_rpc_server(ScriptedInference(generate=generate)) as running:
        with pytest.raises(errors.EngineRestarting):
            await read(running.stub)

    assert attempts == 1


async def test_other_errors_are_not_retried() -> None:
    """Such as a full queue."""
    attempts = 0

    async def tokenize(request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        nonlocal attempts
        attempts += 1
        raise errors.QueueFull(bound="requests", depth=1, limit=1, retry_after=1)

    async with run_rpc_server(ScriptedInference(tokenize)) as running:
        with pytest.raises(errors.QueueFull), translate_errors():
            await running.stub.Tokenize(pb.TokenizeRequest())

    assert attempts == 1


async def test_an_unreachable_service_is_named_in_the_error() -> None:
    """The gateway passes the name to its callers."""
    async with run_rpc_server() as running:
        target = running.target
    async with open_channel(target) as channel:
        with pytest.raises(errors.UpstreamUnavailable) as raised, translate_errors("inference"):
            await stub_on(channel).Tokenize(pb.TokenizeRequest())

    assert raised.value == errors.UpstreamUnavailable(service="inference")


async def test_channel_options_override_the_defaults() -> None:
    """Such as the message size."""
    async with (
        run_rpc_server() as running,
        open_channel(running.target, options=[("grpc.max_send_message_length", 10)]) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError, match="larger than max"):
            await stub_on(channel).Tokenize(pb.TokenizeRequest(text="x" * 11))


async def test_an_unreadable_certificate_is_an_os_error(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.touch()
    tls = UpstreamTlsSettings(ca_file=file)
    file.unlink()

    with pytest.raises(FileNotFoundError):
        open_channel("127.0.0.1:1", tls=tls)


async def test_no_call_fails_while_the_first_of_several_services_drains() -> None:
    """Those that it has received and not accepted are cancelled by gRPC, and go to the next one."""
    has_drained, num_answers = asyncio.Event(), 0

    async def call_until_it_has_drained(stub: Any) -> None:
        nonlocal num_answers
        while not has_drained.is_set():
            await stub.Tokenize(pb.TokenizeRequest(text="t"), timeout=20)
            num_answers += 1

    for _ in range(NUM_DRAINS):
        has_drained.clear()
        async with serve_replica(Replica()) as first, serve_replica(Replica()) as second:
            target = f"ipv4:{first.address},{second.address}"
            async with open_channel(target) as channel, asyncio.TaskGroup() as calls:
                for _ in range(NUM_CALLERS):
                    calls.create_task(call_until_it_has_drained(stub_on(channel)))
                wanted = num_answers + 10 * NUM_CALLERS
                while num_answers < wanted:
                    await stub_on(channel).Tokenize(pb.TokenizeRequest(text="t"), timeout=20)
                await first.drain(5)
                has_drained.set()
