"""Anthropic's Messages API in front of a scripted inference service."""

import asyncio
from typing import Any

import httpx
import orjson
import pytest
from corral.inference.v1 import chat_pb2, generation_pb2

from svc_kit.errors import ContextLengthExceeded, EngineRestarting, InvalidField, QueueFull
from tests.support.fake_inference import FakeInference, Script
from tests.support.loopback_gateway import run_gateway

HI: Any = {"model": "fake", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}
CALLS = [
    chat_pb2.ToolCallDelta(index=0, id="call_1", name="look", arguments_json='{"a"'),
    chat_pb2.ToolCallDelta(index=0, arguments_json=":1}"),
    chat_pb2.ToolCallDelta(index=1, id="call_2", name="go"),
]
VERSION = {"anthropic-version": "2023-06-01"}


async def create(client: httpx.AsyncClient, **fields: Any) -> Any:
    """The message that answers a body with these fields."""
    answer = await client.post("/v1/messages", json=HI | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def events(client: httpx.AsyncClient, **fields: Any) -> list[Any]:
    """The events of a stream; each has the name that its data has."""
    answer = await client.post("/v1/messages", json=HI | {"stream": True} | fields)
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
    found = []
    for frame in answer.text.removesuffix("\n\n").split("\n\n"):
        name, data = frame.split("\n")
        found.append(orjson.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def usage(input_tokens: int, cached: int, output: int, thinking: int = 0) -> dict[str, Any]:
    return {
        "input_tokens": input_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": output,
        "output_tokens_details": {"thinking_tokens": thinking},
        "service_tier": "standard",
    }


async def test_a_message_has_blocks_a_reason_and_usage(
    fake: FakeInference, client: httpx.AsyncClient
) -> None:
    """Input tokens are those that the cache did not have."""
    fake.script = Script(cached_tokens=2)
    message = await create(client)

    assert message.pop("id").startswith("msg_")
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": "fake",
        "content": [{"type": "text", "text": "Hello world"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "stop_details": None,
        "usage": usage(1, 2, 3),
    }


async def test_thoughts_texts_and_calls_are_blocks_in_their_order(
    fake: FakeInference, client: httpx.AsyncClient
) -> None:
    """An input that is not JSON is kept as text."""
    bad = chat_pb2.ToolCallDelta(index=2, id="c3", name="look", arguments_json='{"a":')
    fake.script = Script(reasoning=("h", "m"), tool_calls=[*CALLS, bad])
    message = await create(client)

    thought, *others = message["content"]
    assert (thought.pop("signature")[:8], thought) == (
        "corral1.",
        {"type": "thinking", "thinking": "hm"},
    )
    assert others == [
        {"type": "text", "text": "Hello world"},
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"a": 1}},
        {"type": "tool_use", "id": "toolu_2", "name": "go", "input": {}},
        {"type": "tool_use", "id": "toolu_c3", "name": "look", "input": {"INVALID_JSON": '{"a":'}},
    ]
    assert message["stop_reason"] == "tool_use"


async def test_a_stream_has_every_event_of_the_sequence(
    fake: FakeInference, client: httpx.AsyncClient
) -> None:
    """One block is open at a time, and the counts are totals."""
    fake.script = Script(
        pieces=("Hi",), reasoning=("h", "m"), tool_calls=CALLS[:2], cached_tokens=1
    )
    found = await events(client)

    start = found[0].pop("message")
    assert start.pop("id").startswith("msg_")
    assert start == {
        "type": "message",
        "role": "assistant",
        "model": "fake",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "stop_details": None,
        "usage": usage(2, 1, 0),
    }
    assert found[5]["delta"].pop("signature").startswith("corral1.")
    call = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    assert found == [
        {"type": "message_start"},
        {"type": "ping"},
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "thinking", "thinking": "", "signature": ""},
        },
        delta(0, type="thinking_delta", thinking="h"),
        delta(0, type="thinking_delta", thinking="m"),
        delta(0, type="signature_delta"),
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        delta(1, type="text_delta", text="Hi"),
        {"type": "content_block_stop", "index": 1},
        {"type": "content_block_start", "index": 2, "content_block": call},
        delta(2, type="input_json_delta", partial_json='{"a"'),
        delta(2, type="input_json_delta", partial_json=":1}"),
        {"type": "content_block_stop", "index": 2},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": usage(2, 1, 5, 2),
        },
        {"type": "message_stop"},
    ]


def delta(index: int, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": fields}


async def test_an_omitted_thought_comes_back_in_its_signature(
    fake: FakeInference, client: httpx.AsyncClient
) -> None:
    """Whole and streamed; the next turn has its text."""
    thinking = {"type": "adaptive", "display": "omitted"}
    fake.script = Script(reasoning=("Think", "ing"))
    whole = (await create(client, thinking=thinking))["content"][0]
    found = await events(client, thinking=thinking)
    signature = found[3]["delta"]["signature"]

    assert whole == {"type": "thinking", "thinking": "", "signature": signature}
    assert [event["type"] for event in found[2:5]] == [
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
    ]
    await create(client, messages=[*HI["messages"], {"role": "assistant", "content": [whole]}])
    assert fake.calls.requests[-1].conversation.messages[1].reasoning == "Thinking"


@pytest.mark.parametrize(
    ("script", "reason", "text"),
    [
        (Script(stop_text="END"), "stop_sequence", "END"),
        (Script(stop_text="<|end|>"), "end_turn", None),
        (Script(reason=generation_pb2.FINISH_REASON_LENGTH, max_tokens=64), "max_tokens", None),
        (
            Script(reason=generation_pb2.FINISH_REASON_LENGTH, max_tokens=63),
            "model_context_window_exceeded",
            None,
        ),
    ],
    ids=["stop sequence", "the template's stop text", "max_tokens", "context"],
)
async def test_the_stop_reason_tells_why_a_message_ended(
    fake: FakeInference, client: httpx.AsyncClient, script: Script, reason: str, text: str | None
) -> None:
    """Only a text of the request is a stop sequence; a clamped limit is the context's."""
    fake.script = script
    whole = await create(client, stop_sequences=["END"])
    streamed = (await events(client, stop_sequences=["END"]))[-2]["delta"]

    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, text)
    assert streamed == {"stop_reason": reason, "stop_sequence": text}
    assert list(fake.calls.requests[0].options.stopping.stop) == ["END"]


async def test_pings_are_sent_before_the_computation_starts(fake: FakeInference) -> None:
    """The message starts afterwards, when it is known what the cache saved."""
    gate = asyncio.Event()
    fake.script = Script(start_gate=gate, cached_tokens=3)
    async with (
        run_gateway(fake, ping_interval_s=0.05) as gateway,
        gateway.client() as client,
        client.stream("POST", "/v1/messages", json=HI | {"stream": True}) as answer,
    ):
        lines = answer.aiter_lines()
        assert [await anext(lines), await anext(lines)] == ["event: ping", 'data: {"type":"ping"}']
        gate.set()
        rest = [line async for line in lines if line.startswith("event: ")]

    names = [line for line in rest if line != "event: ping"]
    assert names[0] == "event: message_start"
    assert names[-1] == "event: message_stop"


async def test_errors_have_the_dialects_envelope(
    fake: FakeInference, client: httpx.AsyncClient
) -> None:
    """With the field of the body; a prompt that is too long has the words that clients read."""
    long = ContextLengthExceeded(field="prompt", prompt_tokens=5000, context_tokens=4096)
    tool = InvalidField(field="tools[0].function.parameters", problem="no")
    errors = []
    for refusal in (long, tool, QueueFull(bound="requests", depth=1, limit=1)):
        fake.script = Script(refusal=refusal)
        answer = await client.post("/v1/messages", json=HI)
        error = answer.json()["error"]
        errors.append((answer.status_code, error["type"], error["message"]))
        assert answer.json()["request_id"] == answer.headers["request-id"]

    assert errors[0] == (
        400,
        "invalid_request_error",
        "prompt is too long: 5000 tokens > 4096 maximum",
    )
    assert errors[1] == (400, "invalid_request_error", "Invalid 'tools[0].input_schema': no")
    assert errors[2][:2] == (429, "rate_limit_error")


async def test_a_failed_stream_ends_with_an_error_event(
    fake: FakeInference, client: httpx.AsyncClient
) -> None:
    """And with nothing after it."""
    failure = EngineRestarting(phase="running")
    fake.script = Script(failure=failure)
    found = await events(client)

    error = {"type": "overloaded_error", "message": failure.message}
    assert found[-1] == {"type": "error", "error": error}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": None}, "Missing required parameter: 'max_tokens'."),
        ({"max_token": 1}, "Unknown parameter: 'max_token'."),
        ({"messages": []}, "'messages'"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "content[0].text"),
        ({"max_completion_tokens": 5}, "/v1/chat/completions"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"stop_sequences": ["x" * 300]}, "stop_sequences[0]"),
    ],
)
async def test_a_bad_field_is_named(
    client: httpx.AsyncClient, fields: dict[str, Any], message: str
) -> None:
    """Also one that belongs to another dialect, with the route to use."""
    answer = await client.post("/v1/messages", json=HI | fields)

    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert message in error["message"]


async def test_what_has_no_effect_is_named_in_a_header(client: httpx.AsyncClient) -> None:
    """Also in blocks and tools; a strict request is refused."""
    mark = {"cache_control": {"type": "ephemeral"}}
    body = HI | {
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "context_management": {"edits": []},
        "system": [{"type": "text", "text": "Be brief.", **mark}],
        "tools": [{"name": "a", "input_schema": {}, "eager_input_streaming": True}],
    }
    answer = await client.post("/v1/messages?beta=true", json=body)
    strict = {"x-corral-strict-parameters": "true"}
    refused = await client.post("/v1/messages", json=body, headers=strict)

    assert answer.status_code == 200
    assert set(answer.headers["x-corral-ignored"].split(", ")) == {
        "metadata",
        "context_management",
        "system[].cache_control",
        "tools[].eager_input_streaming",
    }
    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")


async def test_tokens_are_counted(fake: FakeInference, client: httpx.AsyncClient) -> None:
    """The body of a message is accepted too."""
    bare = {name: HI[name] for name in ("model", "messages")}
    counts = [
        (await client.post("/v1/messages/count_tokens", json=body)).json() for body in (bare, HI)
    ]

    assert counts == [{"input_tokens": 1}] * 2


async def test_models_have_anthropics_shape_where_its_header_is_sent(
    client: httpx.AsyncClient,
) -> None:
    """With its cursors; others get OpenAI's."""
    listed = (await client.get("/v1/models", headers=VERSION)).json()
    first = (await client.get("/v1/models?limit=1", headers=VERSION)).json()
    after = (await client.get("/v1/models?after_id=fake", headers=VERSION)).json()
    before = (await client.get("/v1/models?before_id=org/other:1b", headers=VERSION)).json()
    wrong = await client.get("/v1/models?before_id=nothing", headers=VERSION)
    one = (await client.get("/v1/models/org/other:1b", headers=VERSION)).json()

    assert listed["data"][0] == {
        "type": "model",
        "id": "fake",
        "display_name": "fake",
        "created_at": "1970-01-01T00:00:00Z",
        "lifecycle": "active",
        "max_input_tokens": 4096,
        "max_tokens": 4096,
    }
    assert listed["data"][1] == one
    pages = [(page["first_id"], page["last_id"], page["has_more"]) for page in (first, after)]
    assert pages == [("fake", "fake", True), ("org/other:1b", "org/other:1b", False)]
    assert (before["last_id"], before["has_more"]) == ("fake", False)
    assert wrong.status_code == 400
    assert (await client.get("/v1/models")).json()["object"] == "list"


async def test_a_client_that_leaves_cancels_its_message(fake: FakeInference) -> None:
    """As soon as it has left."""
    fake.script = Script(endless=True)
    async with run_gateway(fake) as gateway, gateway.client() as client:
        async with client.stream("POST", "/v1/messages", json=HI | {"stream": True}) as answer:
            async for line in answer.aiter_lines():
                if "text_delta" in line:
                    break
        await fake.calls.ended.wait()

    assert fake.calls.num_cancelled == 1
