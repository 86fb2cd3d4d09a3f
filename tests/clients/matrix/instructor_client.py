"""instructor: objects by tools and by schemas, and as they stream."""

import asyncio
from contextlib import aclosing

import instructor
import openai
from pydantic import BaseModel

from tests.clients.matrix.scenario import BASE_URL, KEY, MODEL, run


class City(BaseModel):
    """A city."""

    name: str


CLIENT = openai.OpenAI(base_url=BASE_URL, api_key=KEY)
OPTIONS = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Name a city."}],
    "temperature": 0,
    "max_tokens": 100,
    "max_retries": 1,
}


def extract(mode: instructor.Mode) -> object:
    client = instructor.from_openai(CLIENT, mode=mode)
    return client.create(response_model=City, **OPTIONS)


def answer() -> object:
    return isinstance(extract(instructor.Mode.TOOLS_STRICT), City)


def stream() -> object:
    client = instructor.from_openai(CLIENT, mode=instructor.Mode.TOOLS)
    pieces = list(client.create_partial(response_model=City, **OPTIONS))
    return pieces and pieces[-1].name


def tools() -> object:
    return isinstance(extract(instructor.Mode.TOOLS), City)


def structured() -> object:
    return isinstance(extract(instructor.Mode.JSON_SCHEMA), City)


def error() -> object:
    client = instructor.from_openai(CLIENT)
    try:
        client.create(response_model=City, **{**OPTIONS, "model": "no-such-model"})
    except Exception as problem:
        return "no-such-model" in str(problem)
    return False


async def cancel() -> object:
    other = openai.AsyncOpenAI(base_url=BASE_URL, api_key=KEY)
    client = instructor.from_openai(other, mode=instructor.Mode.TOOLS)
    pieces = client.create_partial(response_model=City, **OPTIONS)
    async with aclosing(pieces):
        await anext(pieces)
    return answer()


asyncio.run(run(answer, stream, tools, structured, error, cancel))
