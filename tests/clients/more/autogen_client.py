"""AutoGen's client (autogen-ext) and agent (autogen-agentchat)."""

import asyncio
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelFamily, UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient
from pydantic import BaseModel

from tests.clients.matrix.scenario import ANSWER, BASE_URL, KEY, MODEL, QUESTION, WEATHER, run


class City(BaseModel):
    """A city."""

    name: str


def make_client(model: str = MODEL) -> OpenAIChatCompletionClient:
    """A client of a model that AutoGen does not know."""
    info: Any = {
        "vision": False,
        "function_calling": True,
        "json_output": True,
        "structured_output": True,
        "family": ModelFamily.UNKNOWN,
    }
    return OpenAIChatCompletionClient(
        model=model, base_url=BASE_URL, api_key=KEY, model_info=info, temperature=0, max_retries=0
    )


client = make_client()
cities: list[str] = []


async def get_weather(city: str) -> str:
    """The weather of a city."""
    cities.append(city)
    return f"sunny in {city}"


def ask(text: str) -> list[UserMessage]:
    """A chat with one message."""
    return [UserMessage(content=text, source="user")]


async def answer() -> object:
    return ANSWER in str((await client.create(ask(QUESTION))).content)


async def stream() -> object:
    pieces = [each async for each in client.create_stream(ask(QUESTION))]
    return ANSWER in "".join(each for each in pieces if isinstance(each, str))


async def tools() -> object:
    agent = AssistantAgent(
        "assistant", client, tools=[get_weather], reflect_on_tool_use=True, system_message=None
    )
    await agent.run(task=WEATHER)
    return bool(cities) and (await agent.run(task="Thank you!")).messages[-1]


async def structured() -> object:
    reply = await client.create(ask("Name a city."), json_output=City)
    return City.model_validate_json(str(reply.content))


async def error() -> object:
    try:
        await make_client("no-such-model").create(ask("?"))
    except Exception as problem:
        return "no-such-model" in str(problem)
    return False


async def cancel() -> object:
    pieces = client.create_stream(ask(QUESTION), extra_create_args={"max_tokens": 500})
    await anext(aiter(pieces))
    await pieces.aclose()  # type: ignore[attr-defined]  # it is a generator
    return await answer()


asyncio.run(run(answer, stream, tools, structured, error, cancel))
