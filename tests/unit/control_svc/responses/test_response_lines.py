"""Lines of batches for /v1/responses."""

from typing import cast

import pytest

from control_svc.responses.ephemeral import EphemeralResponses
from control_svc.responses.servicer import ResponseLines
from svc_kit.errors import UnsupportedValue


async def test_a_line_calls_no_remote_server() -> None:
    """A line whose process ends is computed again from its beginning, and so would be the call."""
    lines = ResponseLines(cast(EphemeralResponses, None))  # nobody is asked
    tools = [{"type": "function", "name": "mine"}, {"type": "mcp", "server_label": "shop"}]
    with pytest.raises(UnsupportedValue) as error:
        await lines.answer("p", {"model": "m", "input": "Tea", "tools": tools})

    assert error.value.field == "tools[1].type"
