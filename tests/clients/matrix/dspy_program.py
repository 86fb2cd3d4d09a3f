"""DSPy's `LM`, which sends schemas only to models that it knows."""

import asyncio

import dspy

from tests.clients.matrix.scenario import ANSWER, BASE_URL, KEY, MODEL, QUESTION, run


def client(model: str = MODEL) -> dspy.LM:
    return dspy.LM(
        f"openai/{model}",
        api_base=BASE_URL,
        api_key=KEY,
        temperature=0.0,
        max_tokens=100,
        cache=False,
        num_retries=0,
    )


lm = client()


def answer() -> object:
    return ANSWER in lm(QUESTION)[0]


def error() -> object:
    try:
        client("no-such-model")("?")
    except Exception as problem:
        return "no-such-model" in str(problem)
    return False


asyncio.run(run(answer, error))
