"""litellm's SDK as an OpenAI-compatible client."""

import asyncio

import litellm

from tests.clients.matrix.scenario import (
    ANSWER,
    BASE_URL,
    KEY,
    MODEL,
    QUESTION,
    SCHEMA,
    TOOL,
    WEATHER,
    ask,
    run,
)

TARGET = {"model": f"openai/{MODEL}", "api_base": BASE_URL, "api_key": KEY, "temperature": 0}


def answer() -> object:
    reply = litellm.completion(messages=ask(QUESTION), max_tokens=64, **TARGET)
    return ANSWER in reply.choices[0].message.content and reply.usage.total_tokens > 0


def stream() -> object:
    chunks = list(litellm.completion(messages=ask(QUESTION), max_tokens=64, stream=True, **TARGET))
    whole = litellm.stream_chunk_builder(chunks)
    return ANSWER in whole.choices[0].message.content


def tools() -> object:
    messages = ask(WEATHER)
    first = litellm.completion(messages=messages, tools=[TOOL], tool_choice="required", **TARGET)
    message = first.choices[0].message
    call = message.tool_calls[0]
    messages += [
        message,
        {
            "role": "tool",
            "tool_call_id": call.id,
            "name": call.function.name,
            "content": "sunny, 21 degrees",
        },
    ]
    second = litellm.completion(messages=messages, tools=[TOOL], max_tokens=64, **TARGET)
    messages.append(second.choices[0].message)
    messages += ask("Thank you!")
    third = litellm.completion(messages=messages, tools=[TOOL], max_tokens=64, **TARGET)
    return second.choices[0].message.content and third.choices[0].finish_reason


def structured() -> object:
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}
    reply = litellm.completion(messages=ask("Name a city."), response_format=form, **TARGET)
    return '"name"' in reply.choices[0].message.content


def error() -> object:
    try:
        litellm.completion(messages=ask("?"), **{**TARGET, "model": "openai/no-such-model"})
    except litellm.NotFoundError as problem:
        return "no-such-model" in str(problem)
    return False


def cancel() -> object:
    pieces = litellm.completion(messages=ask(QUESTION), max_tokens=500, stream=True, **TARGET)
    next(iter(pieces))
    pieces.completion_stream.close()
    return answer()


asyncio.run(run(answer, stream, tools, structured, error, cancel))
