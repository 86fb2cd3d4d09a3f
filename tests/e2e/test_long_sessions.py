"""Sessions as long as those of coding agents, on the real engine: in each turn, also after a
restart, all is reused that had not changed; what several have in common is computed and held once;
a compaction and a preemption lose nothing else."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from corral.inference.v1 import chat_pb2 as chat
from corral.inference.v1 import engine_service_pb2 as engine_pb
from corral.inference.v1 import generation_pb2 as generation
from corral.inference.v1 import inference_service_pb2 as pb
from corral.inference.v1 import load_pb2

from tests.support.rpc import Answer, Rpc, connect, gather, make_chat, read_delta, user
from tests.support.scripted_model import Turn, run_scripted_model
from tests.support.services import MODEL, run_inference
from tools.long_model import write_long_model

pytestmark = pytest.mark.e2e

RULES = "\n".join(f"Rule {number} of the house is to be kind to animals." for number in range(400))
"""About 8,000 tokens."""
LONG_RULES = RULES + "\n".join(f"Rule {number} is to be kind to plants." for number in range(900))
"""About 20,000 tokens."""
NUM_TURNS, RESTARTED = 30, 15
LEAST_REUSED = 0.98
READ_FILE: Any = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Reads a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    },
}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of an inference service with the long model."""
    file = write_long_model(tmp_path_factory.mktemp("model") / "long.gguf")
    return {
        "models": [f"{MODEL}={file}"],
        "engine.context_tokens": 32 * 1024,
        "engine.saved_prefix_mib": 256,
        "engine.threads": 2,
    }


async def test_each_of_thirty_turns_computes_only_what_is_new(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    """Of a session with a tool, whose client writes the arguments of calls as JavaScript does: what
    the model has written is found again, too. The server is restarted between two turns."""

    def script(conversation: pb.Conversation) -> Turn:
        number = len(conversation.messages)
        return Turn(f"I need file {number}.", ("read_file", {"path": f"/files/{number}.txt"}))

    messages: Any = [{"role": "system", "content": RULES}]
    messages.append({"role": "user", "content": "Read all files."})
    async with run_scripted_model(script) as model:
        for _ in range(0, NUM_TURNS, RESTARTED):
            async with model.run_corral(tmp_path, settings) as corral, corral.sdk() as client:
                for _ in range(RESTARTED):
                    answer = await client.chat.completions.create(
                        model=MODEL, messages=messages, tools=[READ_FILE]
                    )
                    messages += follow_up(answer.choices[0].message.model_dump(exclude_none=True))
    first, *others = model.chats
    sources = [each.usage.cache_source for each in others]

    assert first.usage.cached_tokens == 0
    assert len(first.prompt) > 7_000
    assert len(others) == NUM_TURNS - 1
    assert min(map(model.reused, others)) >= LEAST_REUSED
    lost = [
        len(before.tokens) - model.unchanged_tokens(after)
        for before, after in zip(model.chats, others, strict=False)
    ]
    assert lost == [0] * len(lost)
    assert sources.index(generation.CACHE_SOURCE_DISK) == RESTARTED - 1


def follow_up(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of the next turn: the answer, with its arguments written anew, and the
    result."""
    (call,) = message["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    call["function"]["arguments"] = json.dumps(arguments, separators=(",", ":"))
    text = "\n".join(f"Line {number} of {arguments['path']}" for number in range(10))
    return [message, {"role": "tool", "tool_call_id": call["id"], "content": text}]


@pytest.fixture
async def long_rpc(
    request: pytest.FixtureRequest, tmp_path: Path, settings: dict[str, Any]
) -> AsyncIterator[Rpc]:
    """A service with as many slots as the test says, which share their cells."""
    slots = {"engine.slots": request.param, "engine.layout": "unified"}
    with run_inference(tmp_path, {**settings, **slots}) as service:
        async with connect(service.target) as rpc:
            yield rpc


def session(*texts: str, rules: str = RULES, **options: Any) -> pb.ChatRequest:
    """A chat behind rules that writes four tokens, if the options do not say otherwise."""
    system = chat.ChatMessage(role=chat.ROLE_SYSTEM, parts=[chat.ContentPart(text=rules)])
    stopping = {"max_tokens": 4, "ignore_eos": True}
    return make_chat(system, *map(user, texts), **{"stopping": stopping, **options})


async def send(rpc: Rpc, request: pb.ChatRequest) -> Answer:
    return await gather(rpc.inference.Chat(request))


async def load_of(rpc: Rpc) -> load_pb2.Load:
    return (await rpc.engine.GetLoad(engine_pb.GetLoadRequest())).load


@pytest.mark.parametrize("long_rpc", [4], indirect=True)
async def test_parallel_sessions_compute_and_hold_what_they_share_once(long_rpc: Rpc) -> None:
    """Sessions that start at the same time, as subagents do."""
    tasks = [session(f"You are agent {number}.", rules=LONG_RULES) for number in range(4)]
    answers = await asyncio.gather(*(send(long_rpc, each) for each in tasks))
    load = await load_of(long_rpc)
    lengths = [each.done.usage.prompt_tokens for each in answers]

    assert min(lengths) > 20_000
    assert load.prompt_tokens_total < 1.02 * max(lengths)
    assert load.num_used_cells < 1.02 * max(lengths)


@pytest.mark.parametrize("long_rpc", [2], indirect=True)
async def test_a_compaction_computes_only_the_summary(long_rpc: Rpc) -> None:
    """The system prompt that it keeps is reused, also while another session has the other slot;
    and so is the whole session, when its user goes back to before the compaction."""
    await send(long_rpc, session("Read the files.", RULES[:5000]))
    other = await send(long_rpc, session("You are a subagent.", RULES[:2000]))
    compacted = await send(long_rpc, session("What has happened so far: nothing."))
    back = await send(long_rpc, session("Read the files.", RULES[:5000], "Go on."))
    shares = [
        each.done.usage.cached_tokens / each.done.usage.prompt_tokens for each in (compacted, back)
    ]

    assert other.done.usage.cached_tokens > 7_000
    assert min(shares) >= LEAST_REUSED


@pytest.mark.parametrize("long_rpc", [1], indirect=True)
async def test_a_preempted_session_comes_back_without_prefill(long_rpc: Rpc) -> None:
    """Its slot was another one's meanwhile, but its state is restored from memory."""
    background = generation.SchedulingOptions(priority=generation.PRIORITY_BATCH)
    urgent = generation.SchedulingOptions(priority=generation.PRIORITY_INTERACTIVE)
    endless = {"ignore_eos": True}
    long = session("Go.", stopping=endless, scheduling=background)
    counted = await long_rpc.inference.CountTokens(
        pb.CountTokensRequest(conversation=long.conversation)
    )
    stream = long_rpc.inference.Chat(long)
    await read_delta(stream)
    short = make_chat(user("Hello!"), stopping={"max_tokens": 4}, scheduling=urgent)
    answer = await send(long_rpc, short)
    for _ in range(20):
        await read_delta(stream)
    load = await load_of(long_rpc)
    stream.cancel()

    num_prompts = counted.prompt_tokens, answer.done.usage.prompt_tokens
    assert counted.prompt_tokens > 7_000
    assert load.preemptions_total == 1
    assert load.prompt_tokens_total == sum(num_prompts)
