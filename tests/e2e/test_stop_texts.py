"""Stop texts belong to the answer: within reasoning and calls they end no turn, in any dialect."""

from typing import Any

import httpx
import pytest

from tests.support.services import MODEL

pytestmark = pytest.mark.e2e

SUM = "What is 17 plus 25?"
WEATHER = "What is the weather in Paris?"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Weather of a city", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}


async def post(http: httpx.AsyncClient, path: str, text: str, **fields: Any) -> Any:
    messages = [{"role": "user", "content": text}]
    answer = await http.post(path, json={"model": MODEL, "messages": messages, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("stop", ["Paris", "tool_call", '"arguments"', "\n"])
async def test_a_stop_text_in_a_call_does_not_cut_it(http: httpx.AsyncClient, stop: str) -> None:
    """In chat completions, messages, and Ollama's API: the call is whole, and the turn says so."""
    chat = await post(
        http, "/v1/chat/completions", WEATHER, temperature=0, tools=[TOOL], stop=[stop]
    )
    tool = {"name": "get_weather", "description": "Weather of a city", "input_schema": SCHEMA}
    messages = await post(
        http,
        "/v1/messages",
        WEATHER,
        temperature=0,
        tools=[tool],
        stop_sequences=[stop],
        max_tokens=200,
    )
    options = {"temperature": 0, "stop": [stop]}
    ollama = await post(http, "/api/chat", WEATHER, tools=[TOOL], options=options, stream=False)

    (choice,) = chat["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert (choice["finish_reason"], call["function"]["arguments"]) == (
        "tool_calls",
        '{"city": "Paris"}',
    )
    (block,) = messages["content"]
    assert (messages["stop_reason"], block["input"]) == ("tool_use", {"city": "Paris"})
    (called,) = ollama["message"]["tool_calls"]
    assert called["function"]["arguments"] == {"city": "Paris"}


async def test_a_stop_text_in_a_thought_does_not_end_the_turn(http: httpx.AsyncClient) -> None:
    """It ends the answer behind the thought, where the same text is."""
    free = await post(http, "/v1/chat/completions", SUM, temperature=0, reasoning_effort="high")
    (whole,) = (choice["message"] for choice in free["choices"])
    assert "17" in whole["reasoning_content"]
    for stop, content in (("17", whole["content"].partition("17")[0]), ("think", whole["content"])):
        answer = await post(
            http, "/v1/chat/completions", SUM, temperature=0, reasoning_effort="high", stop=stop
        )
        (message,) = (choice["message"] for choice in answer["choices"])
        assert message["reasoning_content"] == whole["reasoning_content"]
        assert (message["content"] or "") == content
        assert answer["choices"][0]["finish_reason"] == "stop"
