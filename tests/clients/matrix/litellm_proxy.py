"""litellm's proxy before the server; its clients are OpenAI's and Anthropic's packages."""

import asyncio
import json
import sys
import tempfile
from pathlib import Path

import anthropic
import openai

from tests.clients.matrix import openai_sdk
from tests.clients.matrix.background import running
from tests.clients.matrix.scenario import (
    ANSWER,
    BASE_URL,
    KEY,
    MODEL,
    QUESTION,
    TOOL,
    WEATHER,
    ask,
    run,
)
from tools.corral_server import free_address

ADDRESS = free_address()
TARGET = {"model": "openai/*", "api_base": BASE_URL, "api_key": KEY}
CONFIG = {"model_list": [{"model_name": "*", "litellm_params": TARGET}]}
SETTINGS = {"LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"}
FUNCTION = TOOL["function"]
ANTHROPIC_TOOL = {"name": FUNCTION["name"], "input_schema": FUNCTION["parameters"]}
messages = anthropic.Anthropic(base_url=f"http://{ADDRESS}", api_key=KEY).messages
OPTIONS = {"model": MODEL, "max_tokens": 100}


def answer() -> object:
    reply = messages.create(messages=ask(QUESTION), **OPTIONS)
    return openai_sdk.answer() and ANSWER in reply.content[-1].text


def stream() -> object:
    with messages.stream(messages=ask(QUESTION), **OPTIONS) as events:
        text = events.get_final_text()
    return openai_sdk.stream() and ANSWER in text


def tools() -> object:
    history = ask(WEATHER)
    forced = {"type": "any"}
    first = messages.create(messages=history, tools=[ANTHROPIC_TOOL], tool_choice=forced, **OPTIONS)
    call = first.content[-1]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    history += [
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    second = messages.create(messages=history, tools=[ANTHROPIC_TOOL], **OPTIONS)
    history += [{"role": "assistant", "content": second.content}, *ask("Thank you!")]
    return (
        openai_sdk.tools()
        and messages.create(messages=history, tools=[ANTHROPIC_TOOL], **OPTIONS).stop_reason
    )


def error() -> object:
    try:
        openai_sdk.client.chat.completions.create(model="no-such-model", messages=ask("?"))
    except openai.NotFoundError as problem:
        return "no-such-model" in str(problem)
    return False


if __name__ == "__main__":
    openai_sdk.client.base_url = f"http://{ADDRESS}/v1"
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.yaml")
        config.write_text(json.dumps(CONFIG))
        host, _, port = ADDRESS.rpartition(":")
        program = str(Path(sys.executable).parent / "litellm")
        command = [program, "--config", str(config), "--host", host, "--port", port]
        with running(command, f"http://{ADDRESS}/health/liveliness", **SETTINGS):
            asyncio.run(run(answer, stream, tools, openai_sdk.structured, error, openai_sdk.cancel))
