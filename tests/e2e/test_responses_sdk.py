"""Responses and conversations with the official client over all transports."""

import asyncio
import json
import re
from typing import Any, Literal
from uuid import uuid4

import httpx
import openai
import pytest
from pydantic import BaseModel

from tests.e2e.conftest import ODD_NAME
from tests.support.open_responses import check_response, check_stream
from tests.support.pictures import data_url, noise_png
from tests.support.rpc import CAPITAL
from tests.support.sdk_releases import RELEASES, run_program
from tests.support.services import MODEL, Corral

pytestmark = pytest.mark.e2e

NUMBER = r'[0-9]{3}-[0-9]{4}|say "[a-c]{1,3}"'
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class ValidatingTransport(httpx.AsyncHTTPTransport):
    """Validates every response object against the published rules."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await super().handle_async_request(request)
        if "application/json" in answer.headers.get("content-type", ""):
            body: Any = httpx.Response(200, content=await answer.aread()).json()
            if body.get("object") == "response" and "status" in body:
                check_response(body)
        return answer


async def test_a_call_with_text_behind_it_is_whole_and_can_be_sent_back(
    aclient: openai.AsyncOpenAI,
) -> None:
    """The end of the arguments and what follows come in one batch of tokens. Semantic Kernel sends
    the user's next message before the output."""
    asked = "What is the weather in Paris and in Rome?"
    first = await aclient.responses.create(
        model=MODEL, input=asked, tools=[WEATHER], parallel_tool_calls=False, temperature=0
    )
    calls = [item for item in first.output if item.type == "function_call"]

    assert [call.name for call in calls] == ["get_weather"]
    assert set(json.loads(calls[0].arguments)) == {"city"}
    output: Any = {"type": "function_call_output", "call_id": calls[0].call_id, "output": "sun"}
    sent: list[Any] = [{"role": "user", "content": "Be brief."}, output]
    second = await aclient.responses.create(
        model=MODEL, input=sent, previous_response_id=first.id, max_output_tokens=16
    )
    assert second.status in ("completed", "incomplete")
    with pytest.raises(openai.BadRequestError, match="No tool output found for function call"):
        await aclient.responses.create(
            model=MODEL, input="And?", previous_response_id=first.id, max_output_tokens=16
        )


async def test_a_chain_of_responses(aclient: openai.AsyncOpenAI) -> None:
    """The second continues the first by its id, and its prompt extends that of the first."""
    first = await aclient.responses.create(model=MODEL, input=CAPITAL, temperature=0)
    second = await aclient.responses.create(
        model=MODEL, input="Thank you!", previous_response_id=first.id, temperature=0
    )

    assert "Paris" in first.output_text
    assert second.previous_response_id == first.id
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens > first.usage.total_tokens
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - 2
    assert (await aclient.responses.retrieve(first.id)).output_text == first.output_text
    page = await aclient.responses.input_items.list(second.id)
    assert len(page.data) == 1
    await aclient.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        await aclient.responses.retrieve(first.id)


async def test_a_stream_can_be_read_again_from_any_event(
    up: Corral, aclient: openai.AsyncOpenAI
) -> None:
    """It has the same events, byte for byte."""
    async with aclient.responses.stream(model=MODEL, input=CAPITAL, temperature=0) as stream:
        streamed = [event async for event in stream]
        final = await stream.get_final_response()
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        path = f"{up.api}/responses/{final.id}?stream=true"
        complete = (await http.get(path)).text
        tail = (await http.get(f"{path}&starting_after=5")).text
    events = parse_events(complete)

    check_stream(events)
    assert [event["type"] for event in events] == [event.type for event in streamed]
    assert complete.endswith(tail)
    assert tail.startswith("id: 6\n")
    assert "Paris" in final.output_text


def parse_events(text: str) -> list[Any]:
    lines = [line for line in text.splitlines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def test_the_input_of_a_custom_tool_follows_its_grammar(aclient: openai.AsyncOpenAI) -> None:
    """Text that the model would not write otherwise. Where it may choose, nothing enforces it."""
    grammar = {"type": "grammar", "syntax": "regex", "definition": NUMBER}
    tool: Any = {"type": "custom", "name": "dial", "description": "Dials.", "format": grammar}
    named: Any = {"type": "custom", "name": "dial"}

    created = await aclient.responses.create(
        model=MODEL, input=CAPITAL, tools=[tool], tool_choice=named, temperature=0
    )
    free = await aclient.responses.with_raw_response.create(
        model=MODEL, input=CAPITAL, tools=[tool]
    )
    grammar |= {"syntax": "lark", "definition": 'start: "a"'}
    with pytest.raises(openai.BadRequestError) as lark:
        await aclient.responses.create(model=MODEL, input=CAPITAL, tools=[tool], tool_choice=named)

    call = created.output[-1]  # the model may think first
    assert call.type == "custom_tool_call"
    assert re.fullmatch(NUMBER, call.input)
    assert free.headers["x-corral-ignored"] == "tools[].format"
    assert lark.value.param == "tools[0].format.syntax"


async def test_a_background_response_is_polled_followed_and_cancelled(
    aclient: openai.AsyncOpenAI,
) -> None:
    """It is queued immediately. A cancelled one keeps its partial output."""
    created = await aclient.responses.create(
        model=MODEL, input=CAPITAL, background=True, temperature=0
    )
    assert created.status in ("queued", "in_progress")
    async with await aclient.responses.retrieve(created.id, stream=True) as stream:
        events = [event async for event in stream]
    assert events[-1].type == "response.completed"
    assert (await aclient.responses.retrieve(created.id)).status == "completed"

    endless = await aclient.responses.create(
        model=MODEL, input="Tell me a story.", background=True, extra_body={"ignore_eos": True}
    )
    async with await aclient.responses.retrieve(endless.id, stream=True) as stream:
        async for event in stream:
            if event.type == "response.output_text.delta":
                break
    await aclient.responses.cancel(endless.id)
    async with await aclient.responses.retrieve(endless.id, stream=True) as stream:
        async for _ in stream:
            pass
    assert (await aclient.responses.retrieve(endless.id)).status == "cancelled"


async def test_a_function_is_called_and_answered(aclient: openai.AsyncOpenAI) -> None:
    """The call is forced and streamed; its output is sent with the previous response id."""
    async with aclient.responses.stream(
        model=MODEL,
        input="What is the weather in Paris?",
        tools=[WEATHER],
        tool_choice={"type": "function", "name": "get_weather"},
        temperature=0,
    ) as stream:
        async for _ in stream:
            pass
        called = await stream.get_final_response()
    (call,) = [item for item in called.output if item.type == "function_call"]
    answered = await aclient.responses.create(
        model=MODEL,
        previous_response_id=called.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}],
        tools=[WEATHER],
        temperature=0,
    )

    assert call.name == "get_weather"
    assert answered.status == "completed"
    with pytest.raises(openai.BadRequestError, match="No tool output found"):
        await aclient.responses.create(
            model=MODEL, previous_response_id=called.id, input="And now?"
        )


class City(BaseModel):
    """The output format; free text could be too long."""

    name: Literal["Paris", "Rome"]
    large: bool


async def test_a_parsed_response(aclient: openai.AsyncOpenAI) -> None:
    parsed = await aclient.responses.parse(
        model=MODEL, input="Name a city.", text_format=City, max_output_tokens=200
    )

    assert parsed.output_parsed is not None
    assert parsed.output_parsed.name in {"Paris", "Rome"}


async def test_a_conversation_stores_the_items(aclient: openai.AsyncOpenAI) -> None:
    """Input and output of each response, in order."""
    conversation = await aclient.conversations.create()
    for text in (CAPITAL, "Thank you!"):
        answer = await aclient.responses.create(
            model=MODEL, input=text, conversation=conversation.id, temperature=0
        )
        assert answer.conversation is not None
        assert answer.conversation.id == conversation.id
    items = [item async for item in aclient.conversations.items.list(conversation.id, order="asc")]

    assert [item.to_dict().get("role") for item in items] == ["user", "assistant"] * 2
    await aclient.responses.delete(answer.id)
    stored_items = await aclient.conversations.items.list(conversation.id)
    assert len(stored_items.data) == 4


async def test_a_response_that_is_not_stored_cannot_be_used(aclient: openai.AsyncOpenAI) -> None:
    """Neither retrieved nor continued."""
    created = await aclient.responses.create(
        model=MODEL, input="Hello", store=False, max_output_tokens=20
    )

    with pytest.raises(openai.NotFoundError):
        await aclient.responses.retrieve(created.id)
    with pytest.raises(openai.BadRequestError) as refused:
        await aclient.responses.create(model=MODEL, input="x", previous_response_id=created.id)
    assert refused.value.code == "previous_response_not_found"


async def read_completed(connection: Any) -> Any:
    """Read events until a response is completed; return it."""
    async for event in connection:
        if event.type == "response.completed":
            return event.response
        assert event.type != "error", event
    raise AssertionError("the connection was closed")


# The client uses a deprecated function of the installed websockets library.
@pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager")
async def test_a_connection_can_continue_a_response_that_is_not_stored(
    up: Corral, aclient: openai.AsyncOpenAI
) -> None:
    """`responses.connect`, asynchronous and synchronous."""
    async with aclient.responses.connect() as connection:
        warm_up: Any = {
            "type": "response.create",
            "model": MODEL,
            "store": False,
            "generate": False,
            "input": f"Remember {uuid4().hex} and {uuid4().hex}.",
        }
        await connection.send(warm_up)
        read = await read_completed(connection)
        await connection.response.create(
            model=MODEL, input=CAPITAL, store=False, previous_response_id=read.id
        )
        continued = await read_completed(connection)
        previous: Any = openai.omit
        for text in (CAPITAL, "Thank you!"):
            await connection.response.create(
                model=MODEL, input=text, store=False, previous_response_id=previous, temperature=0
            )
            previous = (await read_completed(connection)).id

    assert read.output == []
    assert continued.usage.input_tokens_details.cached_tokens > read.usage.input_tokens // 2

    def synchronous() -> str:
        with (
            openai.OpenAI(base_url=up.api, api_key="none") as client,
            client.responses.connect() as connection,
        ):
            connection.response.create(model=MODEL, input=CAPITAL, temperature=0)
            for event in connection:
                if event.type == "response.completed":
                    return event.response.output_text
        return ""

    assert "Paris" in await asyncio.to_thread(synchronous)


async def test_token_counting_and_compaction(aclient: openai.AsyncOpenAI) -> None:
    """The compacted output can be used as input."""
    counted = await aclient.responses.input_tokens.count(model=MODEL, input=CAPITAL)
    compacted = await aclient.responses.compact(model=MODEL, input=CAPITAL)
    output: Any = [item.to_dict(warnings=False) for item in compacted.output]
    answered = await aclient.responses.create(
        model=MODEL, input=[*output, *output[:1]], max_output_tokens=20
    )

    assert counted.input_tokens > 0
    assert compacted.output[-1].type == "compaction"
    assert answered.status in ("completed", "incomplete")


async def test_a_text_model_refuses_images(aclient: openai.AsyncOpenAI) -> None:
    """The error names the part, in both APIs, with and without streaming."""
    url = data_url(noise_png(1))
    parts: Any = [
        {"type": "input_text", "text": CAPITAL},
        {"type": "input_image", "image_url": url},
    ]
    chat_parts: Any = [
        {"type": "text", "text": CAPITAL},
        {"type": "image_url", "image_url": {"url": url}},
    ]
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            await aclient.responses.create(
                model=ODD_NAME, input=[{"role": "user", "content": parts}], stream=stream
            )
        assert refused.value.param == "input[0].content[1]"
        with pytest.raises(openai.BadRequestError) as refused:
            await aclient.chat.completions.create(
                model=ODD_NAME, messages=[{"role": "user", "content": chat_parts}], stream=stream
            )
        assert str(refused.value.param).startswith("messages[0].content[1]")


async def test_the_plain_objects_follow_the_published_rules(up: Corral) -> None:
    async with httpx.AsyncClient(transport=ValidatingTransport(), timeout=60) as http:
        for body in (
            {"input": CAPITAL},
            {"input": CAPITAL, "max_output_tokens": 2},
            {"input": CAPITAL, "background": True},
            {"input": CAPITAL, "include": ["message.output_text.logprobs"], "top_logprobs": 2},
        ):
            answer = await http.post(f"{up.api}/responses", json={"model": MODEL, **body})
            assert answer.status_code == 200, answer.text


async def test_log_probabilities_cover_the_text(aclient: openai.AsyncOpenAI) -> None:
    """Of the message, not of the reasoning before it; also in the events of a stream."""
    stream: Any = await aclient.responses.create(
        model=MODEL,
        input=CAPITAL,
        reasoning={"effort": "low"},
        temperature=0,
        include=["message.output_text.logprobs"],
        top_logprobs=1,
        stream=True,
    )
    events = [event async for event in stream]
    streamed = [
        entry
        for event in events
        if event.type == "response.output_text.delta"
        for entry in event.logprobs
    ]
    response = events[-1].response
    (part,) = response.output[-1].content

    assert response.output[0].type == "reasoning"
    assert "".join(entry.token for entry in part.logprobs) == part.text
    assert "".join(entry.token for entry in streamed) == part.text


@pytest.mark.parametrize("release", RELEASES)
def test_a_program_works_with_each_release_of_the_sdk(up: Corral, release: str) -> None:
    """Responses, the stream helper, conversations and background mode."""
    assert run_program("responses.py", release, up.api) == {
        "same_text": True,
        "chained": True,
        "first_event": "response.created",
        "last_events": ["response.completed", "response.completed"],
        "roles": ["user", "assistant"],
        "metadata": {"a": "b"},
        "gone": True,
    }
