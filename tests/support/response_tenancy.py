"""Responses in the test of tenant isolation."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.control import Client
from tests.support.response_client import ResponseClient

Ids = Mapping[str, str]
Calls = Mapping[str, Sequence[Mapping[str, Any]]]


async def create_response(client: Client, canary: str) -> Ids:
    """Create a background response and wait for its end."""
    responses = ResponseClient(client)
    about = {"canary": canary}
    made = await responses.create(canary, background=True, instructions=canary, metadata=about)
    async for _ in responses.watch(made.id):
        pass
    return {"response": made.id}


async def observe_response(client: Client, ids: Ids) -> object:
    responses, made = ResponseClient(client), ids["response"]
    events = [event async for event in responses.watch(made)]
    return await responses.get(made), await responses.input_items(made), events


ITEM_WITH_FILES: Mapping[str, Any] = {
    "message": {
        "role": "ITEM_ROLE_USER",
        "parts": [
            {"text": {"text": "x"}},
            {"image": {"file_id": "{file}"}},
            {"file": {"file_id": "{file}"}},
        ],
    }
}
# It is not stored, since jobs would change the answers that are compared.
_CONTINUATION = {
    "previous_response_id": "{response}",
    "settings": {"store": False},
    "input": [ITEM_WITH_FILES],
}

RESPONSE_CALLS: Calls = {
    "CreateResponse": [{"new_response": _CONTINUATION}],
    "StreamResponse": [{"new_response": _CONTINUATION}],
    "CountInputTokens": [{"new_response": _CONTINUATION}],
    "PrepareResponse": [{"new_response": _CONTINUATION}],
    "CompactResponse": [{"previous_response_id": "{response}"}],
}
