"""Every route, told nonsense in every place: an answer, or OpenAI's envelope, and never a defect.

The routes and their fields come from the API's own description, so that one which is added is tried
as well.
"""

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.support.batches import LinesFake, an_inference_for
from tests.support.control import a_control
from tests.support.hostile_http import Call, Document
from tests.support.loopback_gateway import a_gateway

ROUTES = ("/v1/", "/lora-adapters", "/admin/")
KNOWN = {
    "model": "fake",
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
}
"""Good values that no schema can tell."""
WAITING = ("/v1/responses", "/v1/threads")
"""Routes whose good requests are answered when a model has worked: they have tests of their own."""
DEFECTS = (500, 502)
SHARES = 6
"""Of all requests, each with servers of its own."""


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A gateway before a real control service, and fake inference services behind both."""
    async with (
        an_inference_for(tmp_path, LinesFake()) as target,
        a_control(tmp_path, inference_target=target) as control,
        a_gateway(control_target=control.target) as gateway,
        gateway.client() as client,
    ):
        yield client


def is_clear(answer: httpx.Response) -> bool:
    """Whether it is an answer, or an error with the four keys and a type."""
    if answer.status_code < 400:
        return True
    error = answer.json()["error"]
    known = error.keys() == {"message", "type", "param", "code"}
    return known and bool(error["message"]) and answer.status_code not in DEFECTS


@pytest.mark.parametrize("share", range(SHARES))
async def test_nonsense_is_answered_by_a_clear_error(http: httpx.AsyncClient, share: int) -> None:
    """Missing, of a wrong type, huge and hostile: in each field, and in each part of the path."""
    document = Document((await http.get("/openapi.json")).json(), KNOWN)
    unclear: list[tuple[Call, int, str]] = []
    calls = (call for call in document.hostile(ROUTES) if not call.path.startswith(WAITING))
    for call in itertools.islice(calls, share, None, SHARES):
        answer = await http.request(call.method, call.url, **call.options())
        if not is_clear(answer):
            unclear.append((call, answer.status_code, answer.text[:200]))

    assert not unclear


async def test_no_route_and_no_field_is_left_out(http: httpx.AsyncClient) -> None:
    """Nonsense is put into every one that the description names."""
    document = Document((await http.get("/openapi.json")).json(), KNOWN)
    calls = list(document.hostile(ROUTES))
    chats = [call.body for call in calls if call.path == "/v1/chat/completions"]
    fields = document.content["components"]["schemas"]["ChatCompletionBody"]["properties"]

    assert {(call.method.lower(), call.path) for call in calls} == {
        (method, path)
        for path, operations in document.content["paths"].items()
        if path.startswith(ROUTES)
        for method in operations
    }
    assert {name for body in chats if isinstance(body, dict) for name in body} > fields.keys()
