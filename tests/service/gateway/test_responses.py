"""Responses over HTTP, with a fake response service."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import httpx2
import openai
import pytest

from svc_kit.errors import (
    ContextLengthExceeded,
    ConversationLocked,
    DomainError,
    EngineRestarting,
    InvalidField,
    ItemNotFound,
    PreviousResponseNotFound,
    ToolCallMissing,
    ToolOutputMissing,
    UpstreamUnavailable,
)
from tests.support.fake_responses import FakeResponses, run_response_service
from tests.support.loopback_gateway import Loopback, run_gateway
from tests.support.open_responses import check_response, check_stream

MODEL = "m"


@dataclass
class Setup:
    gateway: Loopback
    fake: FakeResponses
    http: httpx.AsyncClient

    async def post(self, path: str = "", **body: Any) -> httpx.Response:
        return await self.http.post(f"/v1/responses{path}", json=body)

    async def frames(self, method: str, path: str, **options: Any) -> list[bytes]:
        async with self.http.stream(method, path, **options) as answer:
            assert answer.status_code == 200, await answer.aread()
            assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert answer.headers["x-request-id"].startswith("req_")
            text = await answer.aread()
        return [frame + b"\n\n" for frame in text.split(b"\n\n") if frame]


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    fake = FakeResponses()
    async with (
        run_response_service(fake) as target,
        run_gateway(control_target=target) as gateway,
        gateway.client() as http,
    ):
        yield Setup(gateway, fake, http)


def parse_frame(frame: bytes) -> dict[str, Any]:
    """The event of a frame. Checks `id` and `event` of the frame; errors have no id."""
    *number, name, data = frame.decode().strip().split("\n")
    event: dict[str, Any] = json.loads(data.removeprefix("data: "))
    is_stored = event["type"] != "error"
    assert number == ([f"id: {event['sequence_number']}"] if is_stored else [])
    assert name == f"event: {event['type']}"
    return event


@pytest.mark.parametrize("stream", [False, True])
async def test_errors_behind_an_ignored_item_have_the_index_of_the_caller(
    setup: Setup, stream: bool
) -> None:
    setup.fake.failure = ItemNotFound(item="msg_none", field="input[1].id")
    search = {"type": "web_search_call", "id": "ws_1"}
    answer = await setup.post(
        model=MODEL,
        stream=stream,
        input=[search, {"role": "user", "content": "x"}, search, {"id": "msg_none"}],
    )

    assert '"param":"input[3].id"' in answer.text.replace(" ", "")


async def test_mcp_servers_are_listed(setup: Setup) -> None:
    """Their labels are ids, and no id of a response is among their paths."""
    listed = (await setup.http.get("/v1/responses/mcp_servers")).json()

    assert listed["data"] == [{"id": "shop", "object": "mcp_server"}]
    assert (listed["object"], listed["has_more"]) == ("list", False)


async def test_a_follower_of_an_ended_stream_gets_its_end(setup: Setup) -> None:
    """After the last event nothing follows but the end, however often it is asked for."""
    created = (await setup.post(model=MODEL, input="hi", store=True)).json()
    frames = await setup.frames("GET", f"/v1/responses/{created['id']}", params={"stream": "true"})
    last = parse_frame(frames[-2])["sequence_number"]

    after = {"stream": "true", "starting_after": last}
    for _ in range(2):
        assert await setup.frames("GET", f"/v1/responses/{created['id']}", params=after) == [
            frames[-1]
        ]
    assert frames[-1] == b"data: [DONE]\n\n"


async def test_a_stream_is_continued_before_its_first_event(setup: Setup) -> None:
    """After -1, as by a client that had an error before any event."""
    created = (await setup.post(model=MODEL, input="hi", store=True)).json()
    path = f"/v1/responses/{created['id']}"
    whole = await setup.frames("GET", path, params={"stream": "true"})
    after = {"stream": "true", "starting_after": "-1"}

    assert await setup.frames("GET", path, params=after) == whole
    assert parse_frame(whole[0])["sequence_number"] == 0


async def test_a_silent_stream_is_answered_at_once(setup: Setup) -> None:
    """A client that continues after the newest event has its status before the next event comes."""
    created = (await setup.post(model=MODEL, input="hi", store=True)).json()
    setup.fake.gate = asyncio.Event()
    path, after = f"/v1/responses/{created['id']}", {"stream": "true", "starting_after": "4"}

    async with setup.http.stream("GET", path, params=after) as answer:
        assert answer.status_code == 200
        setup.fake.gate.set()
        body = (await answer.aread()).decode()

    assert body.startswith("id: 5\n")


async def test_a_response_object_is_valid_open_responses(setup: Setup) -> None:
    """It contains the settings of the request."""
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    answer = await setup.post(
        model=MODEL,
        input="hello",
        instructions="be brief",
        temperature=0.7,
        tools=[tool],
        tool_choice={"type": "function", "name": "f"},
        text={"format": {"type": "json_object"}, "verbosity": "low"},
        reasoning={"effort": "low"},
        metadata={"a": "b"},
    )

    response = answer.json()
    check_response(response)
    assert response["output"][0]["content"][0]["text"] == "hello"
    assert response["temperature"] == 0.7
    assert response["instructions"] == "be brief"
    assert response["tools"] == [{**tool, "description": None, "strict": None}]
    assert response["tool_choice"] == {"type": "function", "name": "f"}
    assert response["text"] == {"format": {"type": "json_object"}, "verbosity": "low"}
    assert response["reasoning"] == {"effort": "low", "summary": None}
    assert response["metadata"] == {"a": "b"}


async def test_what_a_model_does_not_enforce_is_named(setup: Setup) -> None:
    """In the object, and in the header of an answer that is not streamed, also of a strict one."""
    setup.fake.ignored = ("tools[0].function.parameters", "reasoning_effort", "response_format")
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
    names = ["tools[0].parameters", "reasoning.effort", "text.format.schema"]
    answer = await setup.post(model=MODEL, input="hi", tools=tools)
    stream = {"model": MODEL, "input": "hi", "tools": tools, "stream": True}
    frames = await setup.frames("POST", "/v1/responses", json=stream)

    assert answer.json()["ignored_parameters"] == names
    assert answer.headers["x-corral-ignored"] == ", ".join(names).replace("[0]", "[]")
    assert parse_frame(frames[-2])["response"]["ignored_parameters"] == names


async def test_events_have_a_type_and_a_number(setup: Setup) -> None:
    body = {"model": MODEL, "input": "hey", "stream": True}
    *frames, end = await setup.frames("POST", "/v1/responses", json=body)

    events = [parse_frame(frame) for frame in frames]
    check_stream(events)
    assert end == b"data: [DONE]\n\n"
    assert "".join(event.get("delta", "") for event in events) == "hey"


async def test_an_error_event_has_both_formats(setup: Setup) -> None:
    """Flat for OpenAI's clients, nested for Open Responses."""
    setup.fake.failure = EngineRestarting(phase="running")
    body = {"model": MODEL, "input": "hello", "stream": True}

    events = [parse_frame(each) for each in await setup.frames("POST", "/v1/responses", json=body)]

    check_stream(events)
    assert events[-1]["code"] == events[-1]["error"]["code"] == "engine_restarting"
    async with sdk(setup) as client:
        stream = await client.responses.create(model=MODEL, input="hello", stream=True)
        with pytest.raises(openai.APIError, match="engine"):
            async for _ in stream:
                pass


async def test_a_rejection_has_a_status_and_the_callers_field(setup: Setup) -> None:
    """Whether streamed or not."""
    setup.fake.refusal = InvalidField(
        field="new_response.settings.options.sampling.temperature", problem="too hot"
    )
    for stream in (False, True):
        answer = await setup.post(model=MODEL, input="x", stream=stream)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "temperature"
    setup.fake.refusal = UpstreamUnavailable(service="database", retry_after=2)
    answer = await setup.post(model=MODEL, input="x")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")


@pytest.mark.parametrize(
    ("refusal", "param", "code", "message"),
    [
        (PreviousResponseNotFound(response="resp_x"), "previous_response_id",
         "previous_response_not_found", "resp_x"),
        (ConversationLocked(conversation="conv_x", response="r"), "conversation",
         "conversation_locked", "conv_x"),
        (ToolOutputMissing(call="c"), "input", None, "No tool output found for function call c."),
        (ToolCallMissing(call="c"), "input", None,
         "No tool call found for function call output with call_id c."),
        (ContextLengthExceeded(field="messages", prompt_tokens=9, context_tokens=5), "input",
         "context_length_exceeded", "maximum context length is 5 tokens"),
    ],
)  # fmt: skip
async def test_documented_errors(
    setup: Setup, refusal: DomainError, param: str, code: str | None, message: str
) -> None:
    """All have status 400, which clients do not retry."""
    setup.fake.refusal = refusal
    answer = await setup.post(model=MODEL, input="x")
    error = answer.json()["error"]

    assert (answer.status_code, error["param"], error["code"]) == (400, param, code)
    assert message in error["message"]


async def test_a_disconnect_ends_the_stream_call(setup: Setup) -> None:
    """The service continues stored responses."""
    setup.fake.gate = asyncio.Event()
    body = {"model": MODEL, "input": "hello", "stream": True}
    async with setup.http.stream("POST", "/v1/responses", json=body):
        await setup.fake.started.wait()

    await setup.fake.ended.wait()


async def test_the_sdk_reads_a_stream_with_pings() -> None:
    """A pause between events is filled with comments, which are no events."""
    fake = FakeResponses(gate=asyncio.Event())
    body = {"model": MODEL, "input": "hello", "stream": True}
    received = b""
    async with (
        run_response_service(fake) as target,
        run_gateway(control_target=target, ping_interval_s=0.01) as gateway,
        gateway.client() as http,
        http.stream("POST", "/v1/responses", json=body) as answer,
    ):
        async for chunk in answer.aiter_raw():
            received += chunk
            if received.count(b": ping\n") == 2 and fake.gate is not None:
                fake.gate.set()
    replay = httpx2.MockTransport(
        lambda _: httpx2.Response(
            200, content=received, headers={"content-type": "text/event-stream"}
        )
    )
    with openai.OpenAI(
        api_key="any", http_client=openai.DefaultHttpxClient(transport=replay)
    ) as sdk:
        events = list(sdk.responses.create(model=MODEL, input="hello", stream=True))

    assert received.count(b": ping\n") >= 2
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "response.completed"


async def test_other_routes_of_responses(setup: Setup) -> None:
    """Get, input items, token count, compaction, cancel and delete."""
    created = (await setup.post(model=MODEL, input="hello")).json()
    path = f"/v1/responses/{created['id']}"

    assert (await setup.http.get(path)).json() == created
    listed = (await setup.http.get(f"{path}/input_items?limit=1&order=asc")).json()
    assert (listed["object"], listed["has_more"]) == ("list", True)
    assert listed["data"][0]["content"] == [{"type": "input_text", "text": "hello"}]
    counted = (await setup.post("/input_tokens", model=MODEL, input="hello")).json()
    assert counted == {"object": "response.input_tokens", "input_tokens": 1}
    compacted = (await setup.post("/compact", model=MODEL, input="hello")).json()
    assert compacted["object"] == "response.compaction"
    continued = await setup.post(model=MODEL, input=compacted["output"])
    assert continued.status_code == 200
    assert setup.fake.requests[-1].input[-1].compaction.sealed == "s"
    assert (await setup.http.post(f"{path}/cancel")).json() == created
    deleted = (await setup.http.delete(path)).json()
    assert deleted == {"id": created["id"], "object": "response", "deleted": True}


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"input": "x", "tools": [{"type": "telepathy"}]}, "tools[0].type", "unsupported_value"),
        ({"input": [{"type": "telepathy_call", "id": "x"}]}, "input[0].type", "unsupported_value"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "invalid_value"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input", "invalid_value"),
        ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]},
         "input[0].content[0].type", "unsupported_value"),
        ({"input": "x", "prompt": {"id": "p"}}, "prompt", "unsupported_parameter"),
        ({"input": "x", "background": True, "store": False}, "background", "invalid_value"),
        ({"input": "x", "previous_response_id": "a", "conversation": "b"},
         "previous_response_id", "invalid_value"),
        ({}, "input", "missing_required_parameter"),
        ({"input": "x", "include": ["nonsense"]}, "include[0]", "invalid_value"),
        ({"input": "x", "tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"input": "x", "text": {"format": {"type": "json_schema"}}},
         "text.format.name", "missing_required_parameter"),
        ({"input": "x", "no_such_thing": 1}, "no_such_thing", "unknown_parameter"),
        ({"input": "x", "metadata": {"a": 1}}, "metadata.a", "invalid_type"),
        ({"input": "x", "tools": [{"type": "mcp", "server_label": "l", "server_url": "http://x"}]},
         "tools[0].server_url", "unsupported_parameter"),
    ],
)  # fmt: skip
async def test_unsupported_requests_are_rejected(
    setup: Setup, body: dict[str, Any], param: str, code: str
) -> None:
    """Before they reach the service."""
    answer = await setup.post(model=MODEL, **body)

    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code)
    assert setup.fake.requests == []


async def test_only_stored_responses_have_an_idempotency_key(setup: Setup) -> None:
    """Others are generated again on a retry."""
    for body, names in (({}, ["k"]), ({"store": False}, [""])):
        setup.fake.request_ids.clear()
        await setup.http.post(
            "/v1/responses",
            json={"model": MODEL, "input": "x", **body},
            headers={"Idempotency-Key": "k"},
        )
        assert setup.fake.request_ids == names


async def test_fields_without_effect_are_accepted_in_responses(setup: Setup) -> None:
    """As OpenAI's clients send them."""
    answer = await setup.post(
        model=MODEL,
        input=[{"role": "user", "content": "x"}],
        user="u",
        service_tier="auto",
        prompt_cache_retention="24h",
        prompt_cache_key="k",
        safety_identifier="s",
        truncation="disabled",
        include=["web_search_call.action.sources"],
        conversation=None,
        moderation=None,
    )

    check_response(answer.json())
    assert setup.fake.requests[0].settings.options.cache.affinity == "k"


def sdk(setup: Setup) -> openai.AsyncOpenAI:
    """The official client without retries."""
    return openai.AsyncOpenAI(base_url=f"{setup.gateway.url}/v1", api_key="none", max_retries=0)
