"""Calls of methods that a server does not have."""

import asyncio
from typing import Any

import grpc

from svc_kit.rpc.method_server import MethodServer

MAX_CALLS = 2


class _NoInterceptor(grpc.aio.ServerInterceptor):
    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        return await continuation(handler_call_details)


async def test_refusals_are_limited_as_calls_are() -> None:
    """Further calls of unknown methods wait until one is refused."""
    running, most, hold = 0, 0, asyncio.Event()

    async def refuse(context: grpc.aio.ServicerContext[Any, Any]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.wait({asyncio.create_task(hold.wait())}, timeout=0.2)
        running -= 1
        await context.abort(grpc.StatusCode.UNIMPLEMENTED)

    server = MethodServer(
        interceptor=_NoInterceptor(), refuse=refuse, options=(), max_calls=MAX_CALLS
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary("/unknown.Service/Method")
        calls: list[Any] = [call(b"") for _ in range(6)]
        errors = await asyncio.gather(*calls, return_exceptions=True)
    await server.stop(None)

    assert most == MAX_CALLS
    assert {each.code() for each in errors if isinstance(each, grpc.aio.AioRpcError)} == {
        grpc.StatusCode.UNIMPLEMENTED
    }
