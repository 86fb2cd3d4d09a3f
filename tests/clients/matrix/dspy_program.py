"""DSPy's `LM` and its modules."""

import asyncio
from typing import Literal

import dspy

from tests.clients.matrix.scenario import ANSWER, BASE_URL, KEY, MODEL, QUESTION, WEATHER, run


class Model(dspy.LM):
    """A model that takes schemas and tools. DSPy knows this of hosted models by their names."""

    supports_function_calling = True
    supports_response_schema = True
    supported_params = frozenset({"response_format", "tool_choice", "tools"})


def client(name: str = MODEL) -> dspy.LM:
    return Model(
        f"openai/{name}",
        api_base=BASE_URL,
        api_key=KEY,
        temperature=0.0,
        max_tokens=100,
        cache=False,
        num_retries=0,
    )


lm = client()
dspy.configure(lm=lm, adapter=dspy.JSONAdapter(use_native_function_calling=True))


class Weather(dspy.Signature):
    """Answer the question."""

    question: str = dspy.InputField()
    history: dspy.History = dspy.InputField()
    tools: list[dspy.Tool] = dspy.InputField()
    calls: dspy.ToolCalls = dspy.OutputField()


def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


def answer() -> object:
    return ANSWER in lm(QUESTION)[0]


async def stream() -> object:
    predict = dspy.streamify(dspy.Predict("question -> answer"))
    *pieces, prediction = [piece async for piece in predict(question=QUESTION)]
    return len(pieces) > 1 and prediction.answer


def tools() -> object:
    predict, offered = dspy.Predict(Weather), [dspy.Tool(get_weather)]
    history, forced = dspy.History(messages=[]), {"tool_choice": "required"}
    first = predict(question=WEATHER, history=history, tools=offered, config=forced)
    call = first.calls.tool_calls[0]
    turn = {"question": WEATHER, "calls": first.calls, "result": get_weather(call.args["city"])}
    history = dspy.History(messages=[turn])
    return predict(question=WEATHER, history=history, tools=offered, config=forced).calls


def structured() -> object:
    return isinstance(dspy.Predict("question -> name: str")(question="Name a city.").name, str)


def error() -> object:
    try:
        client("no-such-model")("?")
    except Exception as problem:
        return "no-such-model" in str(problem)
    return False


async def cancel() -> object:
    predict, started = dspy.streamify(dspy.Predict("question -> answer")), asyncio.Event()

    async def read() -> None:
        async for _ in predict(question=QUESTION):
            started.set()

    reader = asyncio.create_task(read())
    await started.wait()
    reader.cancel()
    await asyncio.wait([reader])
    return answer()


asyncio.run(run(answer, stream, tools, structured, error, cancel))
