"""Runs on the demo model while everything that takes part in them is killed."""

from collections.abc import Iterator

import openai
import pytest
from openai.types.beta.threads import TextContentBlock

from tests.support.plain_http import plain_client
from tests.support.sdk_batches import CONTROL, ENGINE, FRONTEND, GATEWAY, kill
from tests.support.services import MODEL, Corral, corral_up

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(120),
    # The SDK says so of what OpenAI does not serve any more.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

STORY = "Tell me a story about a fox named Zorbo."


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    """A Corral to be hurt; every test leaves it able to serve the next."""
    inference = {"engine.slots": 2, "engine.context_tokens": 1024}
    with corral_up(tmp_path_factory.mktemp("fragile"), inference=inference) as corral:
        yield corral


@pytest.fixture
def patient(fragile: Corral) -> Iterator[openai.OpenAI]:
    """The SDK at the server that is hurt, with its own retries."""
    with openai.OpenAI(base_url=fragile.api, api_key="unused", max_retries=8) as connected:
        yield connected


@pytest.mark.parametrize("member", [ENGINE, FRONTEND, CONTROL, GATEWAY])
async def test_a_run_outlives_every_process(
    fragile: Corral, patient: openai.OpenAI, member: str
) -> None:
    """Killed in the middle of its answer: it completes, with one message that says what its events
    said, and all of them can be read again."""
    threads = patient.beta.threads
    assistant = patient.beta.assistants.create(model=MODEL, temperature=0)
    thread = threads.create(messages=[{"role": "user", "content": STORY}])
    run = threads.runs.create(thread_id=thread.id, assistant_id=assistant.id)
    async with plain_client(fragile) as client:
        url = f"/v1/threads/{thread.id}/runs/{run.id}/events"
        async with client.stream("GET", url) as following:
            async for line in following.aiter_lines():
                if line == "event: thread.message.delta":
                    break
        kill(fragile, member)
        ended = threads.runs.poll(run.id, thread_id=thread.id, poll_interval_ms=100)
        told = (await client.get(url)).text
    [message] = threads.messages.list(thread.id, run_id=run.id)
    [content] = message.content

    assert isinstance(content, TextContentBlock)
    assert ended.status == "completed"
    assert message.status == "completed"
    assert content.text.value.endswith("The end.")
    assert ended.usage is not None
    assert ended.usage.completion_tokens > 20
    assert told.count("event: thread.message.created") == 1
    assert told.count("event: thread.run.completed") == 1
    assert told.endswith("event: done\ndata: [DONE]\n\n")
