"""POST /api/chat and /api/generate in front of a fake service."""

import asyncio
import json
from base64 import b64encode
from typing import Any

import pytest
from corral.inference.v1 import chat_pb2, inference_service_pb2
from httpx import AsyncClient, Response

from svc_kit.errors import ContextLengthExceeded, DecodeFailed, ModelCannot, QueueFull
from tests.support.fake_inference import FakeInference, Script
from tests.support.loopback_gateway import run_gateway
from tests.support.raw_http import RawConnection

CHAT = "/api/chat"
GENERATE = "/api/generate"
BODY: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
PROMPT: dict[str, Any] = {"model": "fake", "prompt": "hi"}
COUNTS = (
    "total_duration",
    "load_duration",
    "prompt_eval_count",
    "prompt_eval_duration",
    "eval_count",
    "eval_duration",
)
PIXEL = b64encode(b"\x89PNG\r\n\x1a\n").decode()


def lines(answer: Response) -> list[dict[str, Any]]:
    return [json.loads(line) for line in answer.text.splitlines()]


async def test_a_chat_is_streamed_in_lines_that_end_with_the_counts(client: AsyncClient) -> None:
    """Each line is one object, without blank lines between them."""
    answer = await client.post(CHAT, json=BODY)
    *deltas, last = lines(answer)

    assert answer.headers["content-type"] == "application/x-ndjson"
    assert "".join(each["message"]["content"] for each in deltas) == "Hello world"
    assert [each["done"] for each in deltas] == [False] * 3
    assert (last["done"], last["done_reason"], last["model"]) == (True, "stop", "fake")
    assert last["message"] == {"role": "assistant", "content": ""}
    assert all(isinstance(last[name], int) for name in COUNTS)
    assert (last["prompt_eval_count"], last["eval_count"]) == (3, 3)


async def test_without_a_stream_there_is_one_object(
    fake: FakeInference, client: AsyncClient
) -> None:
    """With thinking, text and counts; durations are in nanoseconds."""
    fake.script = Script(reasoning=("Hm", "."), times_s=(0.001, 0.5))
    answer = (await client.post(CHAT, json=BODY | {"stream": False, "think": True})).json()

    assert answer["message"] == {
        "role": "assistant",
        "content": "Hello world",
        "thinking": "Hm.",
    }
    assert answer["done"]
    assert answer["total_duration"] > 1000


@pytest.mark.parametrize(
    ("value", "enabled", "required", "effort"),
    [
        (None, True, False, chat_pb2.REASONING_EFFORT_UNSPECIFIED),
        (True, True, True, chat_pb2.REASONING_EFFORT_UNSPECIFIED),
        (False, False, False, chat_pb2.REASONING_EFFORT_UNSPECIFIED),
        ("low", True, True, chat_pb2.REASONING_EFFORT_LOW),
    ],
)
async def test_thinking_is_on_unless_it_is_switched_off(
    value: object,
    enabled: bool,
    required: bool,
    effort: int,
    fake: FakeInference,
    client: AsyncClient,
) -> None:
    """Only a client that asks for it is refused by a model that cannot."""
    await client.post(CHAT, json=BODY | {"think": value})
    template = fake.calls.requests[-1].conversation.template

    assert template.enable_thinking == enabled
    assert (template.require_thinking, template.reasoning_effort) == (required, effort)


async def test_options_are_mapped_with_the_defaults_of_ollama(
    fake: FakeInference, client: AsyncClient
) -> None:
    """Null means "not given", fractions are cut, other keys have no effect."""
    options: dict[str, Any] = {
        "temperature": None,
        "top_k": 7.9,
        "num_predict": 5,
        "num_ctx": 99,
        "seed": 3,
    }
    options |= {"stop": ["x"], "unheard_of": 1}
    told = await client.post(
        CHAT, json=BODY | {"options": options, "format": "json", "other": True, "keep_alive": "5m"}
    )
    await client.post(CHAT, json=BODY | {"options": None, "format": {"type": "object"}})
    first, second = (request.options for request in fake.calls.requests)

    ignored = set(told.headers["x-corral-ignored"].split(", "))
    assert ignored == {"options.num_ctx", "options.unheard_of", "other", "keep_alive"}
    assert (first.sampling.temperature, first.sampling.top_p) == pytest.approx((0.8, 0.9))
    assert (first.sampling.top_k, first.sampling.seed) == (7, 3)
    assert (first.stopping.max_tokens, list(first.stopping.stop)) == (5, ["x"])
    assert first.constraint.json_object
    assert [second.sampling.HasField(name) for name in ("top_k", "seed")] == [False, False]
    assert not second.stopping.HasField("max_tokens")
    assert json.loads(second.constraint.json_schema) == {"type": "object"}


async def test_calls_of_tools_are_whole_and_have_objects(
    fake: FakeInference, client: AsyncClient
) -> None:
    """A call is sent when the next begins. Other arguments are kept as text."""
    parts = [(0, "a", '{"x":'), (0, "", "1}"), (1, "b", ""), (2, "c", '{"x"')]
    fake.script = Script(
        pieces=(),
        tool_calls=[
            chat_pb2.ToolCallDelta(
                index=i, id=f"call_{i}" * bool(name), name=name, arguments_json=t
            )
            for i, name, t in parts
        ],
    )
    answer = await client.post(CHAT, json=BODY)
    *deltas, last = lines(answer)

    assert [each["message"].get("tool_calls") for each in deltas] == [
        [{"id": "call_0", "function": {"index": 0, "name": "a", "arguments": {"x": 1}}}],
        [{"id": "call_1", "function": {"index": 1, "name": "b", "arguments": {}}}],
        [
            {
                "id": "call_2",
                "function": {"index": 2, "name": "c", "arguments": {"INVALID_JSON": '{"x"'}},
            }
        ],
    ]
    assert deltas[-1]["message"]["content"] == ""
    assert last["done_reason"] == "stop"


async def test_results_of_tools_are_paired_without_ids(
    fake: FakeInference, client: AsyncClient
) -> None:
    """By id, then by name, then in order, as clients play them back."""
    calls = [{"function": {"name": name, "arguments": {"n": name}}} for name in ("a", "b", "c")]
    messages = [
        {"role": "User", "content": "go"},
        {"role": "assistant", "thinking": "Hm.", "tool_calls": calls},
        {"role": "tool", "content": "2", "tool_name": "b"},
        {"role": "tool", "content": "1", "tool_call_id": "unknown"},
        {"role": "tool", "content": "3"},
    ]
    tool = {"type": "function", "function": {"name": "a", "parameters": {"type": "object"}}}
    answer = await client.post(CHAT, json=BODY | {"messages": messages, "tools": [tool]})
    conversation = fake.calls.requests[-1].conversation
    ids = [call.id for call in conversation.messages[1].tool_calls]

    assert answer.status_code == 200
    assert [each.tool_call_id for each in conversation.messages[2:]] == [ids[1], ids[0], ids[2]]
    assert conversation.messages[1].reasoning == "Hm."
    assert json.loads(conversation.messages[1].tool_calls[0].arguments_json) == {"n": "a"}
    assert conversation.tools[0].name == "a"


async def test_pictures_come_before_the_text(fake: FakeInference, client: AsyncClient) -> None:
    """In base64; an empty list, which some clients always send, is none."""
    message = {"role": "user", "content": "what?", "images": [PIXEL]}
    await client.post(CHAT, json=BODY | {"messages": [message]})
    await client.post(CHAT, json=BODY | {"messages": [message | {"images": []}]})
    first, second = (each.conversation.messages[0].parts for each in fake.calls.requests)

    assert [part.WhichOneof("part") for part in first] == ["image", "text"]
    assert first[0].image.data.startswith(b"\x89PNG")
    assert [part.WhichOneof("part") for part in second] == ["text"]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"model": ""}, "Missing required parameter: 'model'."),
        ({"model": "none"}, "model 'none' not found"),
        ({"messages": [{"content": "hi"}]}, "Missing required parameter: 'messages[0].role'."),
        ({"options": {"top_k": "many"}}, "Invalid type for 'options.top_k': expected an integer."),
        ({"format": "xml"}, "Invalid 'format': it must be \"json\" or a JSON Schema"),
        (
            {"messages": [{"role": "tool", "content": "1"}]},
            "Invalid 'messages[0]': it is the result of a tool, but no call before it lacks one",
        ),
    ],
    ids=["no-model", "unknown-model", "no-role", "type", "format", "result"],
)
async def test_bad_bodies_get_ollamas_envelope(
    body: dict[str, Any], text: str, client: AsyncClient
) -> None:
    answer = await client.post(CHAT, json=BODY | body)

    assert answer.json() == {"error": text}
    assert answer.status_code == (404 if "not found" in text else 400)


async def test_an_error_in_a_stream_is_a_line(fake: FakeInference, client: AsyncClient) -> None:
    """The last one; a refusal before the stream is a response of its own."""
    fake.script = Script(failure=DecodeFailed(request_id="r"))
    *_, last = lines(await client.post(CHAT, json=BODY))
    fake.script = Script(refusal=QueueFull(bound="requests", depth=1, limit=1))
    refused = await client.post(CHAT, json=BODY)

    assert list(last) == ["error"]
    assert (refused.status_code, list(refused.json())) == (429, ["error"])


async def test_a_client_that_leaves_cancels(fake: FakeInference, connection: RawConnection) -> None:
    """Generation stops at once."""
    fake.script = Script(endless=True)
    await connection.request(CHAT, BODY)
    await connection.chunk()
    connection.leave()
    await fake.calls.ended.wait()

    assert fake.calls.num_cancelled == 1


async def test_no_ping_is_sent_between_lines(fake: FakeInference) -> None:
    """A blank line breaks ollama's client for Python."""
    gate = asyncio.Event()
    fake.script = Script(gate=gate)
    events = {"model": "fake", "messages": BODY["messages"], "stream": True}
    async with (
        run_gateway(fake, ping_interval_s=0.01) as gateway,
        gateway.client() as client,
        client.stream("POST", CHAT, json=BODY) as answer,
        client.stream("POST", "/v1/chat/completions", json=events) as other,
    ):
        text = answer.aiter_text()
        first = await anext(text)
        async for event in other.aiter_lines():
            if event == ": ping":  # the interval has passed
                break
        gate.set()
        rest = "".join([each async for each in text])

    assert all(json.loads(line) for line in (first + rest).splitlines())


class SmallContext(FakeInference):
    """Refuses conversations of more than four parts, as a small context does."""

    async def Chat(self, request: inference_service_pb2.ChatRequest, context: Any) -> Any:
        """Answer according to the script."""
        size = sum(len(message.parts) for message in request.conversation.messages)
        if size > 4:
            raise ContextLengthExceeded(field="messages", prompt_tokens=size, context_tokens=5)
        async for event in super().Chat(request, context):
            yield event


TURNS = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "1"},
    {"role": "assistant", "content": "c", "tool_calls": [{"function": {"name": "a"}}]},
    {"role": "tool", "content": "2"},
    {"role": "assistant", "content": "3"},
    {"role": "user", "content": "4"},
]


async def test_the_oldest_turns_of_a_long_chat_are_dropped() -> None:
    """System messages and the last turn stay; no result of a tool loses its call."""
    fake = SmallContext()
    body = BODY | {"messages": TURNS, "stream": False}
    async with run_gateway(fake) as gateway, gateway.client() as client:
        answer = await client.post(CHAT, json=body)
        refused = await client.post(CHAT, json=body | {"truncate": False})
        hopeless = await client.post(
            CHAT, json=body | {"messages": [TURNS[0]] * 4 + TURNS[-1:], "stream": False}
        )
    kept = [message.parts[0].text for message in fake.calls.requests[-1].conversation.messages]

    assert answer.json()["message"]["content"] == "Hello world"
    assert [each.status_code for each in (refused, hopeless)] == [400, 400]
    assert kept == ["s", "3", "4"]


async def test_a_prompt_is_answered_through_the_template(
    fake: FakeInference, client: AsyncClient
) -> None:
    """The last line has the tokens of prompt and answer, which the next request continues."""
    answer = await client.post(GENERATE, json=PROMPT | {"system": "be kind"})
    *deltas, last = lines(answer)
    request = fake.calls.requests[-1]
    continued = await client.post(GENERATE, json=PROMPT | {"context": last["context"]})

    assert "".join(each["response"] for each in deltas) == "Hello world"
    assert [message.parts[0].text for message in request.conversation.messages] == ["be kind", "hi"]
    assert last["context"][:2] == [1, 2]
    assert list(fake.calls.requests[-1].token_ids.ids) == [*last["context"], 2]
    assert lines(continued)[-1]["context"][: len(last["context"])] == last["context"]


async def test_raw_prompts_and_suffixes_need_no_template(
    fake: FakeInference, client: AsyncClient
) -> None:
    """A model without tokens for a suffix says so in Ollama's words."""
    raw = await client.post(GENERATE, json=PROMPT | {"raw": True, "stream": False})
    await client.post(GENERATE, json=PROMPT | {"suffix": "end"})
    first, second = fake.calls.requests
    fake.script = Script(
        refusal=ModelCannot(model="fake", model_class="decoder", operation="infill")
    )
    refused = await client.post(GENERATE, json=PROMPT | {"suffix": "end"})

    assert raw.json()["response"] == "Hello world"
    assert "context" not in raw.json()
    assert (first.text, first.HasField("infill")) == ("hi", False)
    assert (second.text, second.infill.suffix) == ("hi", "end")
    assert refused.json() == {"error": '"fake" does not support insert'}


@pytest.mark.parametrize(
    ("path", "output"),
    [(CHAT, {"message": {"role": "assistant", "content": ""}}), (GENERATE, {"response": ""})],
)
async def test_an_empty_prompt_loads_the_model(
    path: str, output: dict[str, Any], fake: FakeInference, client: AsyncClient
) -> None:
    """A model that is not loaded computes one token; an unknown one is 404."""
    loaded = (await client.post(path, json={"model": "fake:latest"})).json()
    fake.models[0].state = fake.models[0].STATE_AVAILABLE
    await client.post(path, json={"model": "fake"})
    unknown = await client.post(path, json={"model": "none"})
    (request,) = fake.calls.requests

    assert loaded.items() >= ({"done": True, "done_reason": "load"} | output).items()
    assert loaded["model"] == "fake:latest"
    assert request.options.stopping.max_tokens == 0
    assert unknown.status_code == 404


@pytest.mark.parametrize(
    "fields",
    [
        {"template": "{{ .Prompt }}"},
        {"raw": True, "system": "s"},
        {"suffix": "x", "context": [1]},
        {"context": [1], "think": True},
    ],
)
async def test_what_cannot_be_combined_is_refused(
    fields: dict[str, Any], client: AsyncClient
) -> None:
    answer = await client.post(GENERATE, json=PROMPT | fields)

    assert answer.status_code == 400
    assert any(f"'{name}'" in answer.json()["error"] for name in fields)
