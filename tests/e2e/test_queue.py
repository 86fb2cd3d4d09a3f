"""Queue limits and timeouts of a server with one slot and a queue of one request."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import openai
import pytest
from corral.inference.v1 import engine_service_pb2 as engine_pb
from corral.inference.v1 import generation_pb2
from google.protobuf.duration_pb2 import Duration

from tests.support.rpc import (
    CAPITAL,
    PARIS,
    ChatStream,
    Rpc,
    accepted,
    endless_chat,
    make_chat,
    read_delta,
    read_error,
)
from tests.support.services import MODEL, Corral

pytestmark = pytest.mark.e2e


@pytest.fixture
async def full(small_rpc: Rpc) -> AsyncIterator[list[ChatStream]]:
    """Fill the slot and the queue with endless streams; cancel them afterwards."""
    running = small_rpc.inference.Chat(endless_chat())
    await read_delta(running)
    waiting = small_rpc.inference.Chat(endless_chat())
    await accepted(waiting)
    yield [running, waiting]
    await cancel([running, waiting], small_rpc)


async def cancel(streams: list[ChatStream], rpc: Rpc) -> None:
    """Cancel streams; return when the server has removed them."""
    for stream in streams:
        stream.cancel()
    async with asyncio.timeout(10):
        while (await rpc.engine.ListRequests(engine_pb.ListRequestsRequest())).requests:
            pass


async def test_a_full_queue_refuses_over_grpc(small_rpc: Rpc, full: list[ChatStream]) -> None:
    """RESOURCE_EXHAUSTED with the limit and a retry delay. Other streams continue."""
    error = await read_error(small_rpc.inference.Chat(make_chat()))
    listed = (await small_rpc.engine.ListRequests(engine_pb.ListRequestsRequest())).requests

    assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    assert error.metadata == {"bound": "requests", "depth": "2", "limit": "1"}
    assert error.retry_after is not None
    assert 1 <= error.retry_after <= 60
    assert len(listed) == len(full)


async def test_a_full_queue_refuses_over_http(small: Corral, full: list[ChatStream]) -> None:
    """The SDK's RateLimitError, with Retry-After."""
    async with small.sdk() as client:
        for stream in (False, True):
            with pytest.raises(openai.RateLimitError) as failure:
                await client.post(
                    "/chat/completions",
                    body={
                        "model": MODEL,
                        "messages": [{"role": "user", "content": CAPITAL}],
                        "stream": stream,
                    },
                    cast_to=object,
                )

            assert len(full) == 2
            assert failure.value.code == "queue_full"
            assert 1 <= int(failure.value.response.headers["retry-after"]) <= 60
            assert failure.value.response.headers["content-type"] == "application/json"


async def test_a_retry_of_the_sdk_succeeds_after_the_queue_has_room(
    small: Corral, small_rpc: Rpc, full: list[ChatStream]
) -> None:
    """It waits for the time in Retry-After."""
    mark = small.program.bookmark()
    async with openai.AsyncOpenAI(base_url=small.api, api_key="x", max_retries=3) as client:
        asking = asyncio.create_task(
            client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": CAPITAL}], temperature=0
            )
        )
        await small.program.line("^request$", after=mark, status="429")
        await cancel(full, small_rpc)
        answer = await asking

    assert answer.choices[0].message.content == PARIS


async def test_a_queued_request_is_accepted_with_its_position(small_rpc: Rpc) -> None:
    """It starts when the slot is free."""
    running = small_rpc.inference.Chat(endless_chat())
    await read_delta(running)
    waiting = small_rpc.inference.Chat(make_chat())
    position = (await accepted(waiting)).queue_position
    listed = (await small_rpc.engine.ListRequests(engine_pb.ListRequestsRequest())).requests
    running.cancel()
    text = "".join([response.delta.content async for response in waiting])

    assert position == 0, "no request is ahead in the queue"
    assert [live.choices[0].HasField("slot") for live in listed] == [True, False]
    assert text == PARIS


async def test_a_queue_timeout_removes_a_waiting_request(
    small_rpc: Rpc, full: list[ChatStream]
) -> None:
    """DEADLINE_EXCEEDED with the phase. Running requests continue."""
    full[1].cancel()
    await wait_until_live(small_rpc, 1)
    request = make_chat(
        scheduling=generation_pb2.SchedulingOptions(queue_timeout=Duration(nanos=200_000_000))
    )
    error = await read_error(small_rpc.inference.Chat(request))

    assert (error.code, error.reason) == (
        grpc.StatusCode.DEADLINE_EXCEEDED,
        "DEADLINE_EXPIRED",
    )
    assert error.metadata == {"phase": "queued"}
    await wait_until_live(small_rpc, 1)


async def wait_until_live(rpc: Rpc, count: int) -> None:
    """Return when `count` requests are live. Each poll is an RPC."""
    async with asyncio.timeout(10):
        while True:
            listed = await rpc.engine.ListRequests(engine_pb.ListRequestsRequest())
            if len(listed.requests) == count:
                return


async def test_a_draining_server_refuses_new_requests(small_rpc: Rpc) -> None:
    """Running streams continue. After Undrain requests are accepted again."""
    running = small_rpc.inference.Chat(endless_chat())
    await read_delta(running)
    drained = await small_rpc.engine.Drain(engine_pb.DrainRequest())
    try:
        error = await read_error(small_rpc.inference.Chat(make_chat()))
        load = (await small_rpc.engine.GetLoad(engine_pb.GetLoadRequest())).load
        await read_delta(running)
    finally:
        await small_rpc.engine.Undrain(engine_pb.UndrainRequest())
    running.cancel()

    assert drained.num_requests == 1
    assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    assert error.retry_after is not None
    assert load.draining
    assert (await small_rpc.chat(make_chat())).text[0] == PARIS
