"""What a call held is freed when it ends, without the garbage collector."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Final

import grpc
import pytest
from corral.inference.v1 import inference_service_pb2 as pb

from svc_kit.errors import QueueFull
from tests.support.garbage import collecting
from tests.support.rpc_servers import Context, EndlessStream, ScriptedInference, run_rpc_server

FAILURES: Final[dict[str, Callable[[], Exception]]] = {
    "refusal": lambda: QueueFull(bound="requests", depth=1, limit=1),
    "defect": lambda: RuntimeError("a defect"),
}


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_call_that_has_failed_is_freed(failure: str) -> None:

    async def tokenize(request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        raise FAILURES[failure]()

    with collecting("tests") as found:
        async with run_rpc_server(ScriptedInference(tokenize=tokenize)) as running:
            with pytest.raises(grpc.aio.AioRpcError):
                await running.stub.Tokenize(pb.TokenizeRequest(text="a"))
    assert found == []


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_stream_that_has_failed_is_freed(failure: str) -> None:
    async def generate(
        request: pb.GenerateRequest, context: Context
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        yield pb.GenerateResponse()
        raise FAILURES[failure]()

    with collecting("tests") as found:
        async with run_rpc_server(ScriptedInference(generate=generate)) as running:
            with pytest.raises(grpc.aio.AioRpcError):
                async for _ in running.stub.Generate(pb.GenerateRequest(text="a")):
                    pass
    assert found == []


async def test_a_stream_whose_caller_leaves_is_freed() -> None:
    """It leaves after the first event: grpcio's own client leaves a request to the collector if it
    is cancelled before the server's metadata came."""
    with collecting("tests") as found:
        stream = EndlessStream()
        async with run_rpc_server(ScriptedInference(generate=stream)) as running:
            call = running.stub.Generate(pb.GenerateRequest(text="a"))
            await call.read()
            await stream.began.wait()
            call.cancel()
            await stream.ended.wait()
            with pytest.raises(asyncio.CancelledError):
                await call.read()
        del call, stream
    assert found == []
