"""Responses with the demo model: the official SDK, and kills of all processes involved."""

import functools
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest

from tests.support.rpc import CAPITAL, PARIS
from tests.support.sdk_batches import (
    CONTROL,
    ENGINE,
    FRONTEND,
    GATEWAY,
    find_processes,
    kill_all,
)
from tests.support.services import MODEL, Corral, corral_up

pytestmark = pytest.mark.e2e

LONG_RESPONSE: dict[str, Any] = {
    "model": MODEL,
    "input": "Tell me a story about a fox.",
    "max_output_tokens": 300,
    "extra_body": {"ignore_eos": True},
}
BROKEN = (openai.APIConnectionError, openai.InternalServerError, httpx2.TransportError)
"""Errors of a client whose server is killed."""
UNAVAILABLE = "upstream_unavailable"
"""The code of the error that ends a stream whose server is killed."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    """A Corral whose processes are killed. Every test leaves it ready."""
    with corral_up(tmp_path_factory.mktemp("server"), control={"jobs.lease_s": 2}) as corral:
        yield corral


def test_a_chain_of_responses_reuses_its_prefix(client: openai.OpenAI) -> None:
    """The prompt of a response extends that of the previous one."""
    first = client.responses.create(model=MODEL, input=CAPITAL, temperature=0)
    second = client.responses.create(
        model=MODEL, input=CAPITAL, previous_response_id=first.id, temperature=0
    )
    assert first.usage is not None
    assert second.usage is not None
    total_tokens = first.usage.total_tokens

    assert PARIS in first.output_text
    assert second.usage.input_tokens > total_tokens
    assert second.usage.input_tokens_details.cached_tokens >= total_tokens - 2


@pytest.mark.parametrize("victim", [ENGINE, FRONTEND, CONTROL, GATEWAY])
def test_a_background_response_survives_a_kill(
    server: Corral, retrying_client: openai.OpenAI, victim: str
) -> None:
    """No event is missing or repeated, and the text is the stored one."""
    victims = find_processes(server, victim)
    created = retrying_client.responses.create(**LONG_RESPONSE, background=True)
    received: list[Any] = []
    while not received or received[-1].type != "response.incomplete":
        read: Any = functools.partial(retrying_client.responses.retrieve, created.id, stream=True)
        try:
            cursor = {"starting_after": received[-1].sequence_number} if received else {}
            with read(**cursor) as events:
                for event in events:
                    if not received or event.sequence_number > received[-1].sequence_number:
                        received.append(event)
                    if len(received) == 20:
                        kill_all(victims)
        except BROKEN:
            continue
        except openai.APIError as error:  # the last event of a stream that had begun
            if error.code != UNAVAILABLE:
                raise
    deltas = "".join(e.delta for e in received if e.type == "response.output_text.delta")
    stored = retrying_client.responses.retrieve(created.id)
    with retrying_client.responses.retrieve(created.id, stream=True) as events:
        reread = list(events)

    assert [event.sequence_number for event in received] == list(range(len(received)))
    assert deltas == stored.output_text == received[-1].response.output_text
    assert stored.usage is not None
    assert stored.usage.output_tokens == LONG_RESPONSE["max_output_tokens"]
    counted = retrying_client.responses.input_tokens.count(
        model=MODEL, input=LONG_RESPONSE["input"]
    )
    assert stored.usage.input_tokens == counted.input_tokens
    assert reread == received
