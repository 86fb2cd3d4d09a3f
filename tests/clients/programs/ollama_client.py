"""A program with Ollama's client: chat, a stream, thinking, tools, formats, models, errors."""

import asyncio
import json
import os
import sys

import ollama
from pydantic import BaseModel

HOST = os.environ["OPENAI_BASE_URL"].removesuffix("/v1")
MODEL = "demo-chat"
GREEDY = {"temperature": 0, "num_predict": 200}
client = ollama.Client(host=HOST)
CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]


class City(BaseModel):
    """A city."""

    name: str


def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: The name of the city.
    """
    return f"sunny in {city}"


whole = client.chat(MODEL, CAPITAL, options=GREEDY)
parts = list(client.chat(MODEL, CAPITAL, options=GREEDY, stream=True, think=True))
question = [{"role": "user", "content": "What is the weather in Paris?"}]
called = client.chat(MODEL, question, options=GREEDY, tools=[get_weather], think=False)
calls = called.message.tool_calls or []
results = [
    {
        "role": "tool",
        "content": get_weather(**call.function.arguments),
        "tool_name": call.function.name,
    }
    for call in calls
]
history = [*question, called.message, *results]
answered = client.chat(MODEL, history, options=GREEDY, tools=[get_weather], think=False)
formed = client.chat(
    MODEL,
    [{"role": "user", "content": "Name a city."}],
    options=GREEDY,
    format=City.model_json_schema(),
    think=False,
)
generated = client.generate(MODEL, CAPITAL[0]["content"], options=GREEDY)
loaded = client.generate(MODEL, "")
shown = client.show(MODEL)
try:
    client.chat("missing", CAPITAL)
    error = None
except ollama.ResponseError as problem:
    error = [problem.status_code, problem.error]


async def leave() -> str:
    """Leave a stream, and ask again."""
    other = ollama.AsyncClient(host=HOST)
    stream = await other.chat(MODEL, CAPITAL, stream=True)
    async for _ in stream:
        break
    await stream.aclose()
    return (await other.chat(MODEL, CAPITAL, options=GREEDY)).message.role


json.dump(
    {
        "same_text": whole.message.content == "".join(p.message.content for p in parts),
        "counts": whole.prompt_eval_count > 0 and whole.eval_count > 0 and whole.eval_duration > 0,
        "done": [parts[-1].done, parts[-1].done_reason],
        "calls": [call.function.name for call in calls],
        "answered": bool(answered.message.content),
        "formed": bool(City.model_validate_json(formed.message.content).name),
        "continued": len(client.generate(MODEL, "Thanks!", context=generated.context).context)
        > len(generated.context),
        "loaded": loaded.done_reason,
        "vectors": [
            len(client.embed(MODEL, ["a", "b"]).embeddings),
            bool(client.embeddings(MODEL, "a").embedding),
        ],
        "listed": f"{MODEL}:latest" in [each.model for each in client.list().models],
        "running": [each.model for each in client.ps().models],
        "shown": sorted(shown.capabilities),
        "family": shown.modelinfo["general.architecture"],
        "pulled": client.pull(MODEL, stream=False).status,
        "error": error,
        "after_leaving": asyncio.run(leave()),
    },
    sys.stdout,
)
