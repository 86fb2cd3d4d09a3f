"""Clients whose calls have the shape of OpenAI's package, by the name of their package."""

import asyncio
import json
import sys
from typing import Any

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

ROOT = BASE_URL.removesuffix("/v1")


def make_client(package: str) -> Any:
    """A client of the package; its import is the package's."""
    match package:
        case "groq":
            import groq

            return groq.Groq(base_url=ROOT, api_key=KEY)
        case "together":
            import together

            return together.Together(base_url=ROOT, api_key=KEY)
        case "cerebras-cloud-sdk":
            from cerebras.cloud.sdk import Cerebras

            return Cerebras(base_url=ROOT, api_key=KEY, warm_tcp_connection=False)
        case "huggingface_hub":
            import huggingface_hub

            return huggingface_hub.InferenceClient(base_url=BASE_URL, api_key=KEY)
        case "fireworks-ai":
            import fireworks

            return fireworks.Fireworks(base_url=ROOT, api_key=KEY)
        case "portkey-ai":
            import portkey_ai

            return portkey_ai.Portkey(base_url=BASE_URL, api_key=KEY)
        case "langfuse":
            from langfuse.openai import openai

            return openai.OpenAI(base_url=BASE_URL, api_key=KEY)
        case "azure":
            import openai

            return openai.AzureOpenAI(azure_endpoint=ROOT, api_key=KEY, api_version="2024-10-21")
        case _:
            import openai

            return openai.OpenAI(base_url=f"{ROOT}/openai/v1", api_key=KEY)


client = make_client(sys.argv[1])
create = client.chat.completions.create


def answer() -> object:
    reply = create(model=MODEL, messages=ask(QUESTION), temperature=0)
    return ANSWER in reply.choices[0].message.content


def stream() -> object:
    pieces = create(model=MODEL, messages=ask(QUESTION), temperature=0, stream=True)
    return ANSWER in "".join(each.choices[0].delta.content or "" for each in pieces if each.choices)


def tools() -> object:
    messages: list[Any] = ask(WEATHER)
    options = {"model": MODEL, "tools": [TOOL], "temperature": 0, "max_tokens": 100}
    message = create(messages=messages, tool_choice="required", **options).choices[0].message
    call = message.tool_calls[0]
    written = call.function.arguments
    city = (json.loads(written) if isinstance(written, str) else written)["city"]
    function = {"name": call.function.name, "arguments": json.dumps({"city": city})}
    played = {"id": call.id, "type": "function", "function": function}
    messages.append({"role": "assistant", "content": message.content, "tool_calls": [played]})
    messages.append({"role": "tool", "tool_call_id": call.id, "content": f"sunny in {city}"})
    return create(messages=messages, **options).choices[0].message.content


def structured() -> object:
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}
    reply = create(model=MODEL, messages=ask("Name a city."), response_format=form, temperature=0)
    return json.loads(reply.choices[0].message.content)["name"]


def error() -> object:
    try:
        create(model="no-such-model", messages=ask("?"))
    except Exception as problem:
        return "no-such-model" in str(problem)
    return False


def cancel() -> object:
    pieces = create(model=MODEL, messages=ask(QUESTION), max_tokens=500, stream=True)
    next(iter(pieces))
    pieces.close()
    return answer()


asyncio.run(run(answer, stream, tools, structured, error, cancel))
