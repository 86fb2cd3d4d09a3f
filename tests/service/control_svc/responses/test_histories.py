"""Histories that clients play back, with the response service itself; see tests/outside."""

import json
from pathlib import Path
from typing import Any

import pytest
from corral.control.v1 import response_pb2
from corral.control.v1 import response_service_pb2 as pb

from dialects.openai.responses.requests import new_response, parse_response
from tests.support.response_client import ResponseClient, output_text
from tests.support.scripted_turns import text_script
from tests.support.small_window import SmallWindow

HISTORIES = Path(__file__).parents[3] / "outside" / "histories"
BODIES = [
    pytest.param(body, id=f"{path.stem}-{number}")
    for path in sorted(HISTORIES.glob("*.json"))
    for number, body in enumerate(json.loads(path.read_text(encoding="utf-8"))["bodies"])
    if "input" in body and not any(item.get("type") == "item_reference" for item in body["input"])
]


@pytest.mark.parametrize("body", BODIES)
async def test_a_history_is_continued(
    body: dict[str, Any], client: ResponseClient, model: SmallWindow
) -> None:
    """Also with the client's own ids, and with encrypted reasoning of another server."""
    model.script = text_script("Fine")
    request = pb.CreateResponseRequest(new_response=new_response(parse_response(body)))
    reply = await client.client.call(client.stub.CreateResponse, request)

    assert reply.response.state == response_pb2.Response.STATE_COMPLETED, reply.response.error
    assert output_text(reply.response) == "Fine"
