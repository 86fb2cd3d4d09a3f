"""Open WebUI's backend with two connections to the server, Ollama's and OpenAI's API."""

import asyncio
import json
import sys
from pathlib import Path

import httpx

from tests.clients.matrix.background import running
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
from tools.corral_server import free_address

ADDRESS = free_address()
MODELS = (f"{MODEL}:latest", MODEL)
"""The model over the connections to Ollama and OpenAI."""
SETTINGS = {
    "DATA_DIR": ".",
    "STATIC_DIR": "static",
    "ENABLE_PERSISTENT_CONFIG": "False",
    "OFFLINE_MODE": "True",
    "OLLAMA_BASE_URL": BASE_URL.removesuffix("/v1"),
    "OPENAI_API_BASE_URL": BASE_URL,
    "OPENAI_API_KEY": KEY,
    "USE_SLIM_DOCKER": "true",
    "WEBUI_AUTH": "False",
    "WEBUI_SECRET_KEY": "none",
}
TASKS = ("title", "tags", "follow_up", "queries")
client = httpx.Client(base_url=f"http://{ADDRESS}", timeout=60)


def request(model: str, messages: object, *, params: object = None, **more: object) -> dict:
    options = {"temperature": 0, "max_tokens": 200, **(params or {})}
    return {"model": model, "messages": messages, "params": options, **more}


def chat(model: str, messages: object, **more: object) -> dict:
    reply = client.post("/api/chat/completions", json=request(model, messages, **more))
    reply.raise_for_status()
    return reply.json()["choices"][0]["message"]


def answer() -> object:
    listed = {model["id"] for model in client.get("/api/models").json()["data"]}
    told = [ANSWER in chat(model, ask(QUESTION))["content"] for model in MODELS]
    history = [*ask(QUESTION), {"role": "assistant", "content": ANSWER}]
    tasks = {
        client.post(
            f"/api/v1/tasks/{task}/completions",
            json={"model": model, "messages": history, "type": "web_search"},
        ).status_code
        for task, model in zip(TASKS, MODELS * 2, strict=True)
    }
    versions = client.get("/ollama/api/version").json(), client.get("/ollama/api/ps").json()
    return listed == {*MODELS} and all(told) and tasks == {200} and all(versions)


def stream() -> object:
    for model in MODELS:
        body = request(model, ask(QUESTION), stream=True)
        with client.stream("POST", "/api/chat/completions", json=body) as reply:
            lines = [line.removeprefix("data: ") for line in reply.iter_lines() if line]
        choices = [each for line in lines[:-1] for each in json.loads(line)["choices"]]
        text = "".join(choice["delta"].get("content") or "" for choice in choices)
        if ANSWER not in text or lines[-1] != "[DONE]":
            return lines
    return True


def tools() -> object:
    for model in MODELS:
        history = ask(WEATHER)
        history.append(chat(model, history, tools=[TOOL]))
        call = history[-1]["tool_calls"][0]
        history.append({"role": "tool", "tool_call_id": call["id"], "content": "sunny"})
        history.append(chat(model, history, tools=[TOOL]))
        last = chat(model, [*history, *ask("Thank you!")], tools=[TOOL])
        if not history[-1]["content"] or last["role"] != "assistant":
            return history
    return True


def structured() -> object:
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}
    over_ollama = chat(MODELS[0], ask("Name a city."), params={"format": SCHEMA, "think": False})
    over_openai = chat(MODELS[1], ask("Name a city."), response_format=form)
    return all(json.loads(each["content"])["name"] for each in (over_ollama, over_openai))


def error() -> object:
    for model in MODELS:
        body = request(model, ask("?"), params={"temperature": 9})
        reply = client.post("/api/chat/completions", json=body)
        if reply.status_code != 400 or "temperature" not in reply.text:
            return reply.text
    return True


def cancel() -> object:
    for model in MODELS:
        body = request(model, ask(QUESTION), stream=True)
        with client.stream("POST", "/api/chat/completions", json=body) as reply:
            next(reply.iter_lines())
    return all(ANSWER in chat(model, ask(QUESTION))["content"] for model in MODELS)


if __name__ == "__main__":
    host, _, port = ADDRESS.rpartition(":")
    program = str(Path(sys.executable).parent / "open-webui")
    command = [program, "serve", "--host", host, "--port", port]
    with running(command, f"http://{ADDRESS}/health", **SETTINGS):
        user = client.post("/api/v1/auths/signin", json={"email": "", "password": ""}).json()
        client.headers["Authorization"] = f"Bearer {user['token']}"
        asyncio.run(run(answer, stream, tools, structured, error, cancel))
