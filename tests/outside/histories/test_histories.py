"""Later turns that clients sent, with the answers of earlier ones as they keep them.

Recorded from the clients at the releases that the files name; long texts are shortened.
"""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from corral.control.v1 import item_pb2

from tests.support.fake_inference import FakeInference
from tests.support.fake_responses import FakeResponses, run_response_service
from tests.support.loopback_gateway import run_gateway

RECORDED = [
    pytest.param(recording["path"], body, id=f"{path.stem}-{number}")
    for path in sorted(Path(__file__).parent.glob("*.json"))
    for recording in [json.loads(path.read_text(encoding="utf-8"))]
    for number, body in enumerate(recording["bodies"])
]
CHAT = [each for each in RECORDED if each.values[0] != "/v1/responses"]
RESPONSES = [each for each in RECORDED if each.values[0] == "/v1/responses"]
HINTS = ("stream_options", "client_metadata", "tools.web_search", "tools[].description")
"""What these clients send without effect."""


@dataclass
class Setup:
    """A gateway and the services behind it."""

    http: httpx.AsyncClient
    inference: FakeInference
    control: FakeResponses


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    """A gateway in front of fake services."""
    inference, control = FakeInference(), FakeResponses()
    async with (
        run_response_service(control) as target,
        run_gateway(inference, control_target=target) as gateway,
        gateway.client() as http,
    ):
        yield Setup(http, inference, control)


@pytest.mark.parametrize(("path", "body"), CHAT)
async def test_a_chat_is_continued(path: str, body: dict[str, Any], setup: Setup) -> None:
    """With every text, thought, call and result that the client sent."""
    answer = await setup.http.post(path, json=body)

    assert answer.status_code == 200, answer.text
    assert set(answer.headers.get("x-corral-ignored", "").split(", ")) <= {"", *HINTS}
    received = setup.inference.calls.requests[-1].conversation.messages
    assert len(received) == len(body["messages"])
    for sent, message in zip(body["messages"], received, strict=True):
        assert "".join(part.text for part in message.parts) == text_of(sent.get("content"))
        assert message.reasoning == (sent.get("reasoning_content") or sent.get("thinking", ""))
        calls = [
            (call.id, call.name, json.loads(call.arguments_json)) for call in message.tool_calls
        ]
        assert calls == [
            (call["id"], call["function"]["name"], arguments_of(call["function"]["arguments"]))
            for call in sent.get("tool_calls") or ()
        ]
        assert message.tool_call_id == sent.get("tool_call_id", "")


@pytest.mark.parametrize(("path", "body"), RESPONSES)
async def test_a_response_is_continued(path: str, body: dict[str, Any], setup: Setup) -> None:
    """With every item that the client sent, thoughts in text included."""
    answer = await setup.http.post(path, json=body)

    assert answer.status_code == 200, answer.text
    assert set(answer.headers.get("x-corral-ignored", "").split(", ")) <= {"", *HINTS}
    received = setup.control.requests[-1].input
    assert [kind_of(item) for item in received] == [sent_kind(sent) for sent in body["input"]]
    thoughts = [item.reasoning.text for item in received if item.HasField("reasoning")]
    assert thoughts == [
        text_of(sent["summary"]) for sent in body["input"] if sent.get("type") == "reasoning"
    ]


def arguments_of(arguments: str | dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call, which are a text or, over Ollama's API, an object."""
    parsed: dict[str, Any] = json.loads(arguments) if isinstance(arguments, str) else arguments
    return parsed


def kind_of(item: item_pb2.Item) -> str:
    return item.WhichOneof("content") or "item_reference"


def sent_kind(item: dict[str, Any]) -> str:
    """The type of an item of a body; that of messages may be missing."""
    return str(item.get("type") or "message")


def text_of(content: str | Sequence[dict[str, Any]] | None) -> str:
    """The text of a content, which may be missing or have parts."""
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content or ())
