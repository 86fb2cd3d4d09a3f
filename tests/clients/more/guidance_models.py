"""guidance, whose constraints are sent under several names."""

import asyncio
import json

import guidance
from guidance import assistant, gen, user
from guidance.models import OpenAI

from tests.clients.matrix.scenario import (
    ANSWER,
    BASE_URL,
    KEY,
    MODEL,
    QUESTION,
    SCHEMA,
    run,
)


def model(name: str = MODEL) -> OpenAI:
    """A model of the server."""
    return OpenAI(name, base_url=BASE_URL, api_key=KEY, echo=False)


def ask(text: str, name: str = MODEL, **options: object) -> str:
    """The answer to a text."""
    state = model(name)
    with user():
        state += text
    with assistant():
        state += gen("answer", max_tokens=64, **options)
    return str(state["answer"])


def answer() -> object:
    return ANSWER in ask(QUESTION, temperature=0.0)


def structured() -> object:
    state = model()
    with user():
        state += "Name a city."
    with assistant():
        state += guidance.json("city", schema=SCHEMA)
    return json.loads(state["city"])["name"]


def error() -> object:
    try:
        ask("?", "no-such-model")
    except Exception as problem:
        return "no-such-model" in str(problem)
    return False


asyncio.run(run(answer, structured, error))
