"""Batch lines for /v1/responses."""

from typing import cast

import pytest

from control_svc.responses.ephemeral import EphemeralResponses
from control_svc.responses.servicer import ResponseLines
from svc_kit.errors import TooLong, UnsupportedValue


async def test_a_batch_line_with_an_mcp_tool_is_refused() -> None:
    """A line may run twice after a crash, and so would its calls of the remote server."""
    lines = ResponseLines(cast(EphemeralResponses, None))  # never called
    tools = [{"type": "function", "name": "mine"}, {"type": "mcp", "server_label": "shop"}]
    with pytest.raises(UnsupportedValue) as error:
        await lines.answer("p", {"model": "m", "input": "Tea", "tools": tools})

    assert error.value.field == "tools[1].type"


async def test_a_batch_line_beyond_a_limit_of_its_request_is_refused() -> None:
    """It does not come as a request, whose limits the server checks."""
    lines = ResponseLines(cast(EphemeralResponses, None))  # never called
    with pytest.raises(TooLong) as error:
        await lines.answer("p", {"model": "m", "input": "Tea", "user": "x" * 513})

    assert error.value.field == "user"
