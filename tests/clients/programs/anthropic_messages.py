"""The official Anthropic client, run with several releases by tools/test_clients.py.

The basic calls of an application that changes only its base URL, and a batch. Prints what came out
as JSON.
"""

import json
import os
import sys
import time

import anthropic
from pydantic import BaseModel

HI = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = {
    "name": "get_weather",
    "description": "Get the current weather for a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
ASK = {"role": "user", "content": "What is the weather in Paris?"}
# No argument of newer releases any more.
GREEDY = {"max_tokens": 48, "extra_body": {"temperature": 0}}


class City(BaseModel):
    """The city of a question."""

    city: str


def main() -> None:
    """Run every step."""
    root = os.environ["OPENAI_BASE_URL"].removesuffix("/v1")
    client = anthropic.Anthropic(base_url=root, api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    whole = client.messages.create(model=model, messages=HI, **GREEDY)
    with client.messages.stream(model=model, messages=HI, **GREEDY) as stream:
        streamed = stream.get_final_message()
    tokens = client.messages.count_tokens(model=model, messages=HI).input_tokens
    parsed = client.messages.parse(model=model, messages=[ASK], output_format=City, **GREEDY)
    output = {
        "retrieved": client.models.retrieve(model).id == model,
        "text": whole.content[0].text,
        "same_text": streamed.content[0].text == whole.content[0].text,
        "reason": (whole.stop_reason, streamed.stop_reason),
        "counted": tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens,
        "cached": streamed.usage.cache_read_input_tokens > 0,
        "parsed": type(parsed.parsed_output).__name__,
        "request_id": whole._request_id.startswith("req_"),
        **use_tool(client, model),
        **fail(client, model),
        **leave(client, model),
        **run_batch(client, model),
    }
    json.dump(output, sys.stdout)


def use_tool(client: anthropic.Anthropic, model: str) -> dict[str, object]:
    """A forced call and the answer to its result; the first turn is sent back as it came."""
    tools = {"tools": [WEATHER], **GREEDY}
    first = client.messages.create(
        model=model, messages=[ASK], tool_choice={"type": "any"}, **tools
    )
    (call,) = [block for block in first.content if block.type == "tool_use"]
    result = {
        "type": "tool_result",
        "tool_use_id": call.id,
        "content": [{"type": "text", "text": "sunny, 21 degrees"}],
        "is_error": False,
    }
    history = [
        ASK,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    second = client.messages.create(model=model, messages=history, **tools)
    return {
        "call": (call.name, list(call.input), first.stop_reason),
        "answered": second.content[0].type,
    }


def fail(client: anthropic.Anthropic, model: str) -> dict[str, object]:
    """Errors of the right class, with the dialect's type."""
    try:
        client.messages.create(model="nothing", messages=HI, max_tokens=8)
    except anthropic.NotFoundError as error:
        missing = error.body["error"]["type"]
    try:
        client.messages.create(
            model=model, messages=[{"role": "user", "content": "word " * 20_000}], max_tokens=8
        )
    except anthropic.BadRequestError as error:
        long = error.body["error"]["message"]
    return {"missing": missing, "too_long": long.startswith("prompt is too long: ")}


def leave(client: anthropic.Anthropic, model: str) -> dict[str, object]:
    """A stream that is closed early; the next request is answered."""
    story = [{"role": "user", "content": "Tell me a story."}]
    with client.messages.stream(model=model, messages=story, max_tokens=2000) as stream:
        for _ in stream.text_stream:
            break
    after = client.messages.create(model=model, messages=HI, max_tokens=4)
    return {"after_leaving": after.type}


def run_batch(client: anthropic.Anthropic, model: str) -> dict[str, object]:
    """A batch with a good and a bad request, and its results."""
    params = {"model": model, "max_tokens": 8, "messages": HI}
    requests = [
        {"custom_id": "good", "params": params},
        {"custom_id": "bad", "params": {**params, "messages": []}},
    ]
    batch = client.messages.batches.create(requests=requests)
    while batch.processing_status != "ended":
        time.sleep(0.2)
        batch = client.messages.batches.retrieve(batch.id)
    results = {each.custom_id: each.result for each in client.messages.batches.results(batch.id)}
    listed = [each.id for each in client.messages.batches.list(limit=1)]
    deleted = client.messages.batches.delete(batch.id)
    return {
        "results": {name: result.type for name, result in sorted(results.items())},
        "message": results["good"].message.role,
        "listed": batch.id in listed,
        "deleted": deleted.type,
    }


main()
