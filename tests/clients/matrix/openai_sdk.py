"""OpenAI's package: chat completions, with `parse` and its replayed messages."""

import asyncio

import openai
from pydantic import BaseModel

from tests.clients.matrix.scenario import ANSWER, BASE_URL, KEY, MODEL, QUESTION, WEATHER, ask, run

client = openai.OpenAI(base_url=BASE_URL, api_key=KEY)


class City(BaseModel):
    """A city."""

    name: str


class GetWeather(BaseModel):
    """The weather of a city."""

    city: str


TOOL = openai.pydantic_function_tool(GetWeather, name="get_weather")


def answer() -> object:
    reply = client.chat.completions.create(model=MODEL, messages=ask(QUESTION), temperature=0)
    return ANSWER in reply.choices[0].message.content


def stream() -> object:
    with client.chat.completions.stream(
        model=MODEL, messages=ask(QUESTION), temperature=0, max_tokens=64
    ) as events:
        texts = [event.delta for event in events if event.type == "content.delta"]
        whole = events.get_final_completion()
    return "".join(texts) == whole.choices[0].message.content


def tools() -> object:
    messages = ask(WEATHER)
    options = {"model": MODEL, "tools": [TOOL], "temperature": 0, "max_tokens": 100}
    first = client.chat.completions.parse(messages=messages, tool_choice="required", **options)
    message = first.choices[0].message
    call = message.tool_calls[0]
    city = call.function.parsed_arguments.city
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": f"sunny in {city}"}]
    second = client.chat.completions.parse(messages=messages, **options)
    messages += [second.choices[0].message, *ask("Thank you!")]
    return client.chat.completions.parse(messages=messages, **options).choices[0].message


def structured() -> object:
    messages = ask("Name a city.")
    options = {"model": MODEL, "response_format": City, "temperature": 0, "max_tokens": 100}
    message = client.chat.completions.parse(messages=messages, **options).choices[0].message
    messages += [message, *ask("Name another city.")]
    again = client.chat.completions.parse(messages=messages, **options).choices[0].message
    return isinstance(message.parsed, City) and isinstance(again.parsed, City)


def error() -> object:
    try:
        client.chat.completions.create(model="no-such-model", messages=ask("?"))
    except openai.NotFoundError as problem:
        return problem.code == "model_not_found"
    return False


def cancel() -> object:
    pieces = client.chat.completions.create(
        model=MODEL, messages=ask(QUESTION), max_tokens=500, stream=True
    )
    next(iter(pieces))
    pieces.close()
    return answer()


if __name__ == "__main__":
    asyncio.run(run(answer, stream, tools, structured, error, cancel))
