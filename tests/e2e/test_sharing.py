"""Continuous batching: concurrent streams share the engine's steps."""

import asyncio

import openai
import pytest
from corral.inference.v1 import engine_service_pb2 as engine_pb
from corral.inference.v1 import generation_pb2
from openai.types.chat import ChatCompletionChunk

from tests.support.rpc import Rpc, endless_chat, gather, read_delta
from tests.support.services import MODEL, Corral

pytestmark = pytest.mark.e2e

SHORT = 150


async def counts(rpc: Rpc) -> tuple[int, int]:
    """Return the numbers of tokens and steps. They are exact only while no request runs, also one
    that was cancelled and that the engine has not ended yet."""
    async with asyncio.timeout(50):
        while True:
            requests = (await rpc.engine.ListRequests(engine_pb.ListRequestsRequest())).requests
            load = (await rpc.engine.GetLoad(engine_pb.GetLoadRequest())).load
            if not requests and load.num_used_cells == load.num_idle_cells:
                return load.completion_tokens_total, load.num_steps


async def test_a_joining_stream_needs_no_additional_steps(rpc: Rpc) -> None:
    """Each of its tokens is computed in a step of the other stream. Without drafts, which are
    several tokens of a step."""
    no_drafts = {"enabled": False}
    tokens_before, steps_before = await counts(rpc)
    long = rpc.inference.Chat(endless_chat(speculation=no_drafts))
    await read_delta(long)
    limits = {"max_tokens": SHORT}
    request = endless_chat("Count to ten.", stopping=limits, speculation=no_drafts)
    short = await gather(rpc.inference.Chat(request))
    await read_delta(long)
    long.cancel()
    tokens, steps = await counts(rpc)
    shared = (tokens - tokens_before) - (steps - steps_before)

    assert short.done.usage.completion_tokens == SHORT
    assert 0.9 * SHORT <= shared <= SHORT


async def test_streams_over_http_share_steps_too(up: Corral, rpc: Rpc) -> None:
    """Four concurrent streams need about as many steps as one."""
    tokens_before, steps_before = await counts(rpc)
    async with up.sdk() as client:
        streams = [
            await client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": f"Tell me story {number}."}],
                stream=True,
                extra_body={"ignore_eos": True},
            )
            for number in range(4)
        ]
        # All four run now; each takes at least this many more steps.
        await asyncio.gather(*(read_on(stream) for stream in streams))
        for stream in streams:
            await stream.close()
    tokens, steps = await counts(rpc)

    assert (tokens - tokens_before) - (steps - steps_before) >= 2 * SHORT


async def test_the_prompt_of_a_running_stream_is_reused(rpc: Rpc) -> None:
    """The second stream computes only its own part and reports the source of the rest, unless it
    opts out."""
    text = "Tell me of the road over the hills. " * 6
    lender = rpc.inference.Chat(endless_chat(text))
    await read_delta(lender)
    usage = (
        await gather(rpc.inference.Chat(endless_chat(text, stopping={"max_tokens": 5})))
    ).done.usage
    apart = endless_chat(text, stopping={"max_tokens": 5}, cache={"reuse": False})
    without_reuse = (await gather(rpc.inference.Chat(apart))).done.usage
    lender.cancel()

    assert (without_reuse.cached_tokens, without_reuse.prompt_tokens) == (0, usage.prompt_tokens)
    assert usage.cached_tokens == usage.prompt_tokens - 1
    assert usage.cache_source == generation_pb2.CACHE_SOURCE_LIVE


async def read_on(stream: openai.AsyncStream[ChatCompletionChunk]) -> None:
    num_chunks = 0
    async for _ in stream:
        num_chunks += 1
        if num_chunks == SHORT:
            return
