"""Hostile requests to every route: they succeed or get the error envelope, never 500.

Routes and fields are read from the OpenAPI document, so that new ones are tested too.
"""

import itertools
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from gateway.app import build
from gateway.config import GatewaySettings
from gateway.http.dialect import Dialect, dialect_of
from gateway.http.docs import describe_api
from tests.support.batches import ScriptedInference, serve_inference
from tests.support.control import run_control
from tests.support.examples import every_nth
from tests.support.hostile_http import Call, Document
from tests.support.loopback_gateway import LOOPBACK, run_gateway
from tests.support.response_client import make_model_parts
from tests.support.scripted_turns import ScriptedTurns, text_script

ROUTES = ("/",)
UNDESCRIBED = {
    *("/docs", "/openapi.json", "/v1/health", "/", "/ui", "/ui/{path:path}"),
    "/api/blobs/{digest}",
}
"""Routes that the document leaves out."""
MODEL = "fake"
KNOWN_VALUES = {
    "model": MODEL,
    "role": "user",
    "content": "hi",
    "input": "hi",
    "prompt": "hi",
    "query": "hi",
    "documents": ["hi"],
    "purpose": "user_data",
    "filename": "a",
    "mime_type": "text/plain",
    "bytes": 1,
    "endpoint": "/v1/chat/completions",
    "completion_window": "24h",
    "items": [{"type": "message", "role": "user", "content": "hi"}],
    "store": False,
}
"""Valid values that cannot be derived from the schemas."""
REQUIRED = ("content", "input", "model", "store")
"""Fields of valid requests that the schemas do not require."""
OBJECTS = {
    "assistant_id": ("/v1/assistants", {"model": MODEL}),
    "thread_id": ("/v1/threads", {}),
    "conversation_id": ("/v1/conversations", {}),
    "response_id": ("/v1/responses", {"model": MODEL, "input": "hi"}),
    "store_id": ("/v1/vector_stores", {}),
}
"""Objects that are created first, so that requests with their ids are processed further."""
ENVELOPES = {
    Dialect.OPENAI: {"message", "type", "param", "code"},
    Dialect.ANTHROPIC: {"message", "type"},
    Dialect.LLAMA_SERVER: {"message", "type", "code"},
}
"""The keys of `error` in the form of an API; Ollama's is a text."""
DEFECTS = (500, 502)
SHARES = 3
"""Number of test cases among which the requests are divided."""


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway with a real control service and fake inference services."""
    model = make_model_parts(ScriptedTurns(lambda _: text_script("Hello")))
    async with (
        serve_inference(tmp_path, ScriptedInference()) as target,
        run_control(
            tmp_path, model=model, inference_target=target, embedding_model=MODEL
        ) as control,
        run_gateway(control_target=control.target) as gateway,
        gateway.client() as client,
    ):
        yield client


async def known_values(http: httpx.AsyncClient) -> dict[str, Any]:
    """Valid values, including ids of existing objects."""
    ids = {
        name: (await http.post(path, json=body)).raise_for_status().json()["id"]
        for name, (path, body) in OBJECTS.items()
    }
    return KNOWN_VALUES | ids


def is_clear(answer: httpx.Response) -> bool:
    """Whether it is a success, or an error in the envelope."""
    if answer.status_code < 400:
        return True
    error, dialect = answer.json()["error"], dialect_of({"path": answer.url.path})
    if dialect is Dialect.OLLAMA:
        has_envelope = isinstance(error, str) and error != ""
    else:
        has_envelope = error.keys() == ENVELOPES[dialect] and error["message"] != ""
    return has_envelope and answer.status_code not in DEFECTS


@pytest.mark.parametrize("share", range(SHARES))
async def test_hostile_requests_get_a_valid_response(http: httpx.AsyncClient, share: int) -> None:
    """Success, or the error envelope with a status other than 500 and 502."""
    content = (await http.get("/openapi.json")).json()
    document = Document(content, await known_values(http), REQUIRED)
    unclear: list[tuple[Call, int, str]] = []
    calls = every_nth(document.hostile(ROUTES), 7)
    for call in itertools.islice(calls, share, None, SHARES):
        answer = await http.request(call.method, call.url, **call.options())
        if not is_clear(answer):
            unclear.append((call, answer.status_code, answer.text[:200]))

    assert not unclear


def table(routes: Iterable[Any]) -> Iterator[APIRoute]:
    """The HTTP routes, including those of included routers."""
    for route in routes:
        if isinstance(route, APIRoute):
            yield route
        elif hasattr(route, "original_router"):
            yield from table(route.original_router.routes)


async def test_hostile_requests_cover_every_route_and_field() -> None:
    """As in the OpenAPI document."""
    async with build(GatewaySettings(listen=LOOPBACK, management_listen=None)) as gateway:
        document = Document(describe_api(gateway.api), KNOWN_VALUES, REQUIRED)
        calls = list(document.hostile(ROUTES))
        every = {
            (method, route.path_format)
            for route in table(gateway.api.routes)
            for method in route.methods or ()
            if route.path not in UNDESCRIBED
        }
    chats = [call.body for call in calls if call.path == "/v1/chat/completions"]
    fields = document.content["components"]["schemas"]["ChatCompletionBody"]["properties"]

    assert {(call.method, call.path) for call in calls} == every
    assert {name for body in chats if isinstance(body, dict) for name in body} > fields.keys()
