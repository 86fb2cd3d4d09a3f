"""Requests with the official SDK for several tests."""

from typing import Any, Final

import openai
from openai.types.chat import ChatCompletionChunk

from tests.support.rpc import CAPITAL
from tests.support.services import MODEL

WEATHER: Final[Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather for a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
"""A function that the demo model calls reliably."""


async def start_story(sdk: openai.AsyncOpenAI) -> openai.AsyncStream[ChatCompletionChunk]:
    """Start an endless stream and read its first content."""
    stream = await sdk.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Tell me a story."}],
        stream=True,
        extra_body={"ignore_eos": True},
    )
    async for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    return stream


async def capital_of_france(sdk: openai.AsyncOpenAI) -> str | None:
    """Ask the question that the demo model answers reliably."""
    answer = await sdk.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": CAPITAL}], temperature=0
    )
    return answer.choices[0].message.content
