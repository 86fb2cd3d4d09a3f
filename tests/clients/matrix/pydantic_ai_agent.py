"""pydantic-ai's agents over chat completions."""

import asyncio

from pydantic import BaseModel
from pydantic_ai import Agent, ModelHTTPError, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.matrix.scenario import ANSWER, BASE_URL, KEY, MODEL, QUESTION, WEATHER, run

provider = OpenAIProvider(base_url=BASE_URL, api_key=KEY)
model = OpenAIChatModel(MODEL, provider=provider)
settings = {"temperature": 0, "max_tokens": 100}
plain = Agent(model, model_settings=settings)
cities: list[str] = []


class City(BaseModel):
    """A city."""

    name: str


def get_weather(city: str) -> str:
    """The weather of a city."""
    cities.append(city)
    return f"sunny in {city}"


async def answer() -> object:
    return ANSWER in (await plain.run(QUESTION)).output


async def stream() -> object:
    async with plain.run_stream(QUESTION) as result:
        texts = [text async for text in result.stream_text(delta=True, debounce_by=None)]
        return ANSWER in "".join(texts) and result.usage.output_tokens > 0


async def tools() -> object:
    agent = Agent(model, tools=[get_weather], model_settings=settings)
    first = await agent.run(WEATHER)
    second = await agent.run("Thank you!", message_history=first.all_messages())
    return bool(cities) and bool(second.output)


async def structured() -> object:
    agent = Agent(model, output_type=ToolOutput(City), model_settings=settings)
    first = await agent.run("Name a city.")
    second = await agent.run("Name another city.", message_history=first.all_messages())
    return isinstance(first.output, City) and isinstance(second.output, City)


async def error() -> object:
    try:
        await Agent(OpenAIChatModel("no-such-model", provider=provider)).run("?")
    except ModelHTTPError as problem:
        return problem.status_code == 404
    return False


async def cancel() -> object:
    async with plain.run_stream(QUESTION) as result:
        async for _ in result.stream_text(delta=True, debounce_by=None):
            break
    return await answer()


asyncio.run(run(answer, stream, tools, structured, error, cancel))
