"""Agno's agents, by the name of their model's API."""

import asyncio
import sys
from typing import Any

from agno.agent import Agent
from pydantic import BaseModel

from tests.clients.matrix.scenario import ANSWER, BASE_URL, KEY, MODEL, QUESTION, WEATHER, run

ROOT = BASE_URL.removesuffix("/v1")
KIND = sys.argv[1]


def make_model(name: str = MODEL) -> Any:
    """A model; its import is that of the API's package."""
    if KIND == "anthropic":
        from agno.models.anthropic import Claude

        return Claude(id=name, api_key=KEY, client_params={"base_url": ROOT}, max_tokens=100)
    from agno.models.openai import OpenAIResponses
    from agno.models.openai.like import OpenAILike

    if KIND == "responses":
        return OpenAIResponses(id=name, base_url=BASE_URL, api_key=KEY, temperature=0)
    return OpenAILike(id=name, base_url=BASE_URL, api_key=KEY, temperature=0, max_tokens=100)


class City(BaseModel):
    """A city."""

    name: str


cities: list[str] = []


def get_weather(city: str) -> str:
    """The weather of a city."""
    cities.append(city)
    return f"sunny in {city}"


def agent(**options: Any) -> Agent:
    """An agent of the model."""
    return Agent(model=make_model(), telemetry=False, **options)


def answer() -> object:
    return ANSWER in agent().run(QUESTION).content


def stream() -> object:
    pieces = [each.content for each in agent().run(QUESTION, stream=True)]
    return ANSWER in "".join(each for each in pieces if isinstance(each, str))


def tools() -> object:
    return agent(tools=[get_weather]).run(WEATHER).content and bool(cities)


def structured() -> object:
    found = agent(output_schema=City, structured_outputs=True).run("Name a city.").content
    return isinstance(found, City)


def cancel() -> object:
    pieces = agent().run(QUESTION, stream=True)
    next(iter(pieces))
    pieces.close()
    return answer()


asyncio.run(run(answer, stream, tools, structured, cancel))
