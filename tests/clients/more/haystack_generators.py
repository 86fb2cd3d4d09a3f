"""Haystack's chat generators, by the name of their package."""

import asyncio
import json
import os
import sys
from typing import Any

from haystack.dataclasses import ChatMessage
from haystack.tools import Tool

from tests.clients.matrix.scenario import (
    ANSWER,
    BASE_URL,
    CITY,
    KEY,
    MODEL,
    QUESTION,
    SCHEMA,
    WEATHER,
    run,
)

ROOT = BASE_URL.removesuffix("/v1")
PACKAGE = sys.argv[1]
os.environ |= {"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": ROOT}


def make_generator(name: str = MODEL, **options: Any) -> Any:
    """A generator; its import is the package's."""
    kwargs: dict[str, Any] = {"temperature": 0, **options}
    if PACKAGE == "ollama-haystack":
        from haystack_integrations.components.generators.ollama import OllamaChatGenerator

        return OllamaChatGenerator(model=name, url=ROOT, generation_kwargs=kwargs, think=False)
    if PACKAGE == "anthropic-haystack":
        from haystack_integrations.components.generators.anthropic import AnthropicChatGenerator

        return AnthropicChatGenerator(model=name, generation_kwargs={"max_tokens": 100})
    from haystack.components.generators.chat import OpenAIChatGenerator

    return OpenAIChatGenerator(model=name, api_base_url=BASE_URL, generation_kwargs=kwargs)


def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


TOOL = Tool("get_weather", "The weather of a city.", CITY, get_weather)


def ask(messages: list[ChatMessage], **options: Any) -> ChatMessage:
    """The reply to messages."""
    reply: ChatMessage = make_generator().run(messages, **options)["replies"][0]
    return reply


def answer() -> object:
    return ANSWER in (ask([ChatMessage.from_user(QUESTION)]).text or "")


def stream() -> object:
    pieces: list[str] = []
    ask(
        [ChatMessage.from_user(QUESTION)],
        streaming_callback=lambda piece: pieces.append(piece.content),
    )
    return ANSWER in "".join(pieces)


def tools() -> object:
    history = [ChatMessage.from_user(WEATHER)]
    history.append(ask(history, tools=[TOOL]))
    call = history[-1].tool_calls[0]
    history.append(ChatMessage.from_tool(get_weather(**call.arguments), origin=call))
    history.append(ask(history, tools=[TOOL]))
    return ask([*history, ChatMessage.from_user("Thank you!")], tools=[TOOL]).text


def structured() -> object:
    if PACKAGE == "ollama-haystack":
        generator = make_generator()
        generator.response_format = SCHEMA
    else:
        form = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}
        generator = make_generator(response_format=form)
    reply = generator.run([ChatMessage.from_user("Name a city.")])["replies"][0]
    return json.loads(reply.text)["name"]


def error() -> object:
    try:
        make_generator("no-such-model").run([ChatMessage.from_user("?")])
    except Exception as problem:
        return "no-such-model" in str(problem)
    return False


checks = [answer, stream, tools, structured, error]
if PACKAGE == "anthropic-haystack":
    checks.remove(structured)
asyncio.run(run(*checks))
