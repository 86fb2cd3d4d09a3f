"""Semantic Kernel over chat completions, with a plugin."""

import asyncio
from typing import Any

from openai import AsyncOpenAI
from pydantic import BaseModel
from semantic_kernel import Kernel
from semantic_kernel.connectors.ai.function_choice_behavior import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import (
    OpenAIChatCompletion,
    OpenAIChatPromptExecutionSettings,
)
from semantic_kernel.contents import ChatHistory
from semantic_kernel.functions import kernel_function

from tests.clients.matrix.scenario import ANSWER, BASE_URL, KEY, MODEL, QUESTION, WEATHER, run

cities: list[str] = []


class City(BaseModel):
    """A city."""

    name: str


class Weather:
    """A plugin."""

    @kernel_function(description="The weather of a city.")
    def get_weather(self, city: str) -> str:
        """The weather of a city."""
        cities.append(city)
        return f"sunny in {city}"


def service(model: str = MODEL) -> OpenAIChatCompletion:
    """The service of a model."""
    client = AsyncOpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0)
    return OpenAIChatCompletion(ai_model_id=model, async_client=client)


def history(text: str) -> ChatHistory:
    """A chat with one message."""
    chat = ChatHistory()
    chat.add_user_message(text)
    return chat


def settings(**options: Any) -> OpenAIChatPromptExecutionSettings:
    """Settings with these options."""
    return OpenAIChatPromptExecutionSettings(temperature=0, max_tokens=100, **options)


chat = service()
kernel = Kernel()
kernel.add_service(chat)
kernel.add_plugin(Weather(), "weather")


async def answer() -> object:
    return ANSWER in str(await chat.get_chat_message_content(history(QUESTION), settings()))


async def stream() -> object:
    pieces = chat.get_streaming_chat_message_content(history(QUESTION), settings())
    return ANSWER in "".join([str(each) async for each in pieces])


async def tools() -> object:
    talk = history(WEATHER)
    options = settings(function_choice_behavior=FunctionChoiceBehavior.Auto())
    talk.add_message(await chat.get_chat_message_content(talk, options, kernel=kernel))
    talk.add_user_message("Thank you!")
    return await chat.get_chat_message_content(talk, options, kernel=kernel) and bool(cities)


async def structured() -> object:
    options = settings(response_format=City)
    reply = await chat.get_chat_message_content(history("Name a city."), options)
    return City.model_validate_json(str(reply))


async def error() -> object:
    try:
        await service("no-such-model").get_chat_message_content(history("?"), settings())
    except Exception as problem:
        return "no-such-model" in str(problem)
    return False


async def cancel() -> object:
    pieces = chat.get_streaming_chat_message_content(history(QUESTION), settings())
    async for _ in pieces:
        break
    await pieces.aclose()
    return await answer()


asyncio.run(run(answer, stream, tools, structured, error, cancel))
