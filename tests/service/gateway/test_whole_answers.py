"""Answers that are not streamed: their tokens come in few messages."""

from typing import Any, Final

import pytest

from tests.support.loopback_gateway import run_gateway

MESSAGES: Final = [{"role": "user", "content": "hi"}]
BODIES: Final[dict[str, dict[str, Any]]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": ["hi", "ho"]},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 9},
    "/api/chat": {"messages": MESSAGES},
    "/api/generate": {"prompt": "hi"},
    "/completion": {"prompt": "hi"},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
async def test_only_tokens_of_streams_are_sent_when_they_come(path: str, stream: bool) -> None:
    async with run_gateway() as gateway, gateway.client() as client:
        body = {"model": "fake", **BODIES[path], "stream": stream}
        (await client.post(path, json=body)).raise_for_status()
        requests = [each for each in gateway.fake.calls.requests if hasattr(each, "options")]

    assert requests
    assert [each.options.output.interval_ms > 0 for each in requests] == [not stream] * len(
        requests
    )
