"""Errors of one line are its result; they do not affect other lines."""

import json
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any

import grpc.aio
import pytest

from control_svc.batches.line_client import LineClient
from control_svc.batches.lines import LineResult, PendingLine
from control_svc.batches.model import BatchEndpoint, LineState, NewBatch
from svc_kit.errors import FileNotFound
from svc_kit.rpc.client import open_channel
from tests.support.batches import RESPONSES, batch_line
from tests.support.json_numbers import HARD_NUMBERS
from tests.support.stored_files import MemoryFiles

BATCH = NewBatch(input_file_id="f", endpoint=BatchEndpoint.RESPONSES).make(
    "batch_1", datetime(2026, 11, 22, tzinfo=UTC)
)


async def run_response(project: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """A response runner with a bug and an unknown file."""
    match body["input"]:
        case "bug":
            raise ZeroDivisionError
        case "file":
            raise FileNotFound(file="file-1")
    return {"object": "response", "usage": None}


@pytest.fixture
async def channel() -> AsyncIterator[grpc.aio.Channel]:
    async with open_channel("127.0.0.1:1") as channel:
        yield channel


@pytest.mark.parametrize(
    ("prompt", "state", "status", "code"),
    [
        ("ok", LineState.COMPLETED, 200, None),
        ("file", LineState.FAILED, 404, None),
        ("bug", LineState.FAILED, 500, "internal"),
    ],
)
async def test_errors_of_a_line_are_its_result(
    channel: grpc.aio.Channel, prompt: str, state: LineState, status: int, code: str | None
) -> None:
    """With the status and the code of the same request over HTTP; bugs included."""
    client = LineClient(
        channel, None, fingerprint="f", timeout_s=5, responses=run_response, files=MemoryFiles()
    )
    request = json.dumps(batch_line("a", RESPONSES, input=prompt)).encode()
    result: LineResult = await client.run("p", BATCH, PendingLine(1, b"", request))
    response = json.loads(result.text)["response"]

    assert (result.state, response["status_code"]) == (state, status)
    assert response["body"].get("error", {}).get("code") == code


@pytest.mark.parametrize("number", HARD_NUMBERS, ids=lambda number: number[:24])
async def test_no_number_of_a_line_fails_its_batch(channel: grpc.aio.Channel, number: str) -> None:
    """The line has a result, whatever number is in its request."""
    client = LineClient(
        channel, None, fingerprint="f", timeout_s=5, responses=run_response, files=MemoryFiles()
    )
    request = json.dumps(batch_line("a", RESPONSES, input="ok", temperature="NUMBER")).encode()
    line = PendingLine(1, b"", request.replace(b'"NUMBER"', number.encode()))
    if abs(float(number)) > 1e308:
        return  # such a line is refused when the batch is created
    result = await client.run("p", BATCH, line)

    assert result.state is LineState.COMPLETED
