"""A server with one slot and a queue of one request: its limits, and malicious templates."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping

import grpc
import httpx
import openai
import pytest
from corral.inference.v1 import engine_service_pb2 as engine_pb
from corral.inference.v1 import generation_pb2
from corral.inference.v1 import inference_service_pb2 as pb
from google.protobuf.duration_pb2 import Duration

from inference_svc.models.sources import BUNDLED_PATH
from tests.support.gguf_patch import copy_with_template
from tests.support.plain_http import CHAT, chat_body, error_of
from tests.support.rpc import (
    CAPITAL,
    PARIS,
    ChatStream,
    Rpc,
    accepted,
    endless_chat,
    expect_refusal,
    make_chat,
    read_delta,
    read_error,
)
from tests.support.services import MODEL, Corral, corral_up

pytestmark = pytest.mark.e2e

HOSTILE = "hostile"
"""The demo model with a chat template that never ends."""
ENDLESS_TEMPLATE = (
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    "{{ messages[0].content }}"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    folder = tmp_path_factory.mktemp("small")
    model = copy_with_template(BUNDLED_PATH, folder / "hostile.gguf", ENDLESS_TEMPLATE)
    flags = ("--model", "bundled", "--model", f"{HOSTILE}={model}")
    inference = {
        "engine.slots": 1,
        "engine.queued_requests": 1,
        "limits.caller_templates": True,
    }
    with corral_up(folder, *flags, inference=inference) as corral:
        yield corral


@pytest.fixture
async def full(rpc: Rpc) -> AsyncIterator[list[ChatStream]]:
    """Fill the slot and the queue with endless streams; cancel them afterwards."""
    running = rpc.inference.Chat(endless_chat())
    await read_delta(running)
    waiting = rpc.inference.Chat(endless_chat())
    await accepted(waiting)
    yield [running, waiting]
    await cancel([running, waiting], rpc)


async def cancel(streams: list[ChatStream], rpc: Rpc) -> None:
    """Cancel streams; return when the server has removed them."""
    for stream in streams:
        stream.cancel()
    async with asyncio.timeout(50):
        while (await rpc.engine.ListRequests(engine_pb.ListRequestsRequest())).requests:
            pass


async def test_a_full_queue_refuses_over_grpc(rpc: Rpc, full: list[ChatStream]) -> None:
    """RESOURCE_EXHAUSTED with the limit and a retry delay. Other streams continue."""
    error = await read_error(rpc.inference.Chat(make_chat()))
    listed = (await rpc.engine.ListRequests(engine_pb.ListRequestsRequest())).requests

    assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    bound = {"bound": "requests", "depth": "2", "limit": "1"}
    assert error.metadata == bound | {"held": "1", "share": "1"}
    assert error.retry_after is not None
    assert 1 <= error.retry_after <= 60
    assert len(listed) == len(full)


async def test_a_full_queue_refuses_over_http(server: Corral, full: list[ChatStream]) -> None:
    """The SDK's RateLimitError, with Retry-After."""
    async with server.sdk() as client:
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
    server: Corral, rpc: Rpc, full: list[ChatStream]
) -> None:
    """It waits for the time in Retry-After."""
    mark = server.program.bookmark()
    async with openai.AsyncOpenAI(base_url=server.api, api_key="x", max_retries=3) as client:
        asking = asyncio.create_task(
            client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": CAPITAL}], temperature=0
            )
        )
        await server.program.line("^request$", after=mark, status="429")
        await cancel(full, rpc)
        answer = await asking

    assert answer.choices[0].message.content == PARIS


async def test_a_queued_request_is_accepted_with_its_position(rpc: Rpc) -> None:
    """It starts when the slot is free."""
    running = rpc.inference.Chat(endless_chat())
    await read_delta(running)
    waiting = rpc.inference.Chat(make_chat())
    position = (await accepted(waiting)).queue_position
    listed = (await rpc.engine.ListRequests(engine_pb.ListRequestsRequest())).requests
    running.cancel()
    text = "".join([response.delta.content async for response in waiting])

    assert position == 0, "no request is ahead in the queue"
    assert [live.choices[0].HasField("slot") for live in listed] == [True, False]
    assert text == PARIS


async def test_a_queue_timeout_removes_a_waiting_request(rpc: Rpc, full: list[ChatStream]) -> None:
    """DEADLINE_EXCEEDED with the phase. Running requests continue."""
    full[1].cancel()
    await wait_until_live(rpc, 1)
    request = make_chat(
        scheduling=generation_pb2.SchedulingOptions(queue_timeout=Duration(nanos=200_000_000))
    )
    error = await read_error(rpc.inference.Chat(request))

    assert (error.code, error.reason) == (
        grpc.StatusCode.DEADLINE_EXCEEDED,
        "DEADLINE_EXPIRED",
    )
    assert error.metadata == {"phase": "queued"}
    await wait_until_live(rpc, 1)


async def wait_until_live(rpc: Rpc, count: int) -> None:
    """Return when `count` requests are live. Each poll is an RPC."""
    async with asyncio.timeout(50):
        while True:
            listed = await rpc.engine.ListRequests(engine_pb.ListRequestsRequest())
            if len(listed.requests) == count:
                return


async def test_a_draining_server_refuses_new_requests(rpc: Rpc) -> None:
    """Running streams continue. After Undrain requests are accepted again."""
    running = rpc.inference.Chat(endless_chat())
    await read_delta(running)
    drained = await rpc.engine.Drain(engine_pb.DrainRequest())
    try:
        error = await read_error(rpc.inference.Chat(make_chat()))
        load = (await rpc.engine.GetLoad(engine_pb.GetLoadRequest())).load
        await read_delta(running)
    finally:
        await rpc.engine.Undrain(engine_pb.UndrainRequest())
    running.cancel()

    assert drained.num_requests == 1
    assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    assert error.retry_after is not None
    assert load.draining
    assert (await rpc.chat(make_chat())).text[0] == PARIS


# --- malicious templates ---


async def test_a_malicious_template_of_a_model_blocks_no_other_request(
    server: Corral, rpc: Rpc, http: httpx.AsyncClient
) -> None:
    """A template that never ends is refused at its deadline."""
    hostile = pb.ChatRequest(model=HOSTILE, conversation=make_chat().conversation)
    attack = asyncio.gather(
        read_error(rpc.inference.Chat(hostile)),
        http.post(CHAT, json=chat_body(model=HOSTILE)),
    )
    answers = [(await rpc.chat(make_chat())).text[0] for _ in range(3)]
    error, response = await attack

    assert answers == [PARIS] * 3
    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "TEMPLATE_FAILED")
    assert "longer than 2 s" in error.metadata["problem"]
    assert (response.status_code, error_of(response)["code"]) == (400, "template_failed")


HOSTILE_TEMPLATES: Mapping[str, tuple[str, str]] = {
    "escape": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "forbidden operation"),
    "memory": ("{% set x = 'x' * 9000000000 %}{{ x }}", "memory"),
    "output": ("{% for i in range(9999) %}{{ 'x' * 9999 }}{% endfor %}", "output"),
    "syntax": ("{% if %}", "line 1"),
    "refusal": ("{{ raise_exception('no such role') }}", "no such role"),
    "recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", ""),
}


@pytest.mark.parametrize("name", HOSTILE_TEMPLATES)
async def test_a_malicious_template_of_a_caller_is_refused(rpc: Rpc, name: str) -> None:
    """If caller templates are allowed, they have the limits of model templates."""
    template, problem = HOSTILE_TEMPLATES[name]
    request = make_chat()
    request.conversation.template.template = template
    error = await expect_refusal(rpc, request)

    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "TEMPLATE_FAILED")
    assert problem in error.metadata["problem"]
    assert (await rpc.chat(make_chat())).text[0] == PARIS
