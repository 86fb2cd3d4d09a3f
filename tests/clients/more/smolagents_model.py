"""smolagents' model for OpenAI's API, with its tools."""

import asyncio
import json

from smolagents import OpenAIServerModel, tool

from tests.clients.matrix.scenario import (
    ANSWER,
    BASE_URL,
    KEY,
    MODEL,
    QUESTION,
    SCHEMA,
    WEATHER,
    ask,
    run,
)


def make_model(name: str = MODEL) -> OpenAIServerModel:
    """A model of the server."""
    return OpenAIServerModel(name, api_base=BASE_URL, api_key=KEY, temperature=0, max_tokens=100)


model = make_model()


@tool
def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: The city.
    """
    return f"sunny in {city}"


def answer() -> object:
    return ANSWER in model.generate(ask(QUESTION)).content


def stream() -> object:
    pieces = [each.content or "" for each in model.generate_stream(ask(QUESTION))]
    return ANSWER in "".join(pieces)


def tools() -> object:
    message = model.generate(ask(WEATHER), tools_to_call_from=[get_weather])
    return message.tool_calls[0].function.name == "get_weather"


def structured() -> object:
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}
    return json.loads(model.generate(ask("Name a city."), response_format=form).content)["name"]


def error() -> object:
    try:
        make_model("no-such-model").generate(ask("?"))
    except Exception as problem:
        return "no-such-model" in str(problem)
    return False


def cancel() -> object:
    pieces = model.generate_stream(ask(QUESTION))
    next(iter(pieces))
    pieces.close()
    return answer()


asyncio.run(run(answer, stream, tools, structured, error, cancel))
