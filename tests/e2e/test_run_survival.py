"""Runs and responses with the demo model while the processes involved are killed."""

import asyncio
import functools
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import httpx2
import openai
import pytest
from openai.types.beta.threads import Run, TextContentBlock

from tests.support.plain_http import plain_client
from tests.support.sdk import WEATHER
from tests.support.sdk_batches import (
    CONTROL,
    ENGINE,
    FRONTEND,
    GATEWAY,
    find_processes,
    kill_all,
    kill_process,
)
from tests.support.services import MODEL, Corral, corral_up

pytestmark = [
    pytest.mark.e2e,
    # The SDK deprecates the Assistants API.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

STORY = "Tell me a story about a fox named Zorbo."
LONG_RESPONSE: dict[str, Any] = {
    "model": MODEL,
    "input": "Tell me a story about a fox.",
    "max_output_tokens": 300,
    "extra_body": {"ignore_eos": True},
}
BROKEN = (openai.APIConnectionError, openai.InternalServerError, httpx2.TransportError)
"""Errors of a client whose server is killed."""
PING = ": ping\n"
"""What a stream without events gets in between, while a process is restarted."""
UNAVAILABLE = "upstream_unavailable"
"""The code of the error that ends a stream whose server is killed."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    """A Corral with one worker for runs, whose processes are killed. Every test leaves it ready."""
    settings: dict[str, Any] = {
        "inference": {"engine.slots": 2, "engine.context_tokens": 1024},
        "control": {"runs.runs_at_once": 1, "jobs.lease_s": 2},
    }
    with corral_up(tmp_path_factory.mktemp("server"), **settings) as corral:
        yield corral


def create_run(client: openai.OpenAI, question: str, **fields: Any) -> Run:
    assistant = client.beta.assistants.create(model=MODEL, temperature=0, **fields)
    thread = client.beta.threads.create(messages=[{"role": "user", "content": question}])
    return client.beta.threads.runs.create(thread_id=thread.id, assistant_id=assistant.id)


def wait_for_end(client: openai.OpenAI, run: Run) -> Run:
    """Return the run once it has ended or requires action."""
    return client.beta.threads.runs.poll(run.id, thread_id=run.thread_id, poll_interval_ms=50)


async def read_stream(client: httpx.AsyncClient, url: str, has_text: asyncio.Event) -> str:
    """Read a stream until it ends or the connection breaks; return its text."""
    text = ""
    with suppress(httpx.TransportError):
        async with client.stream("GET", url) as answer:
            async for chunk in answer.aiter_text():
                text += chunk
                if "event: thread.message.delta" in text:
                    has_text.set()
    return text


def get_answer(client: openai.OpenAI, run: Run) -> str:
    """Return the only message of a completed run; check that its tokens are counted once."""
    threads = client.beta.threads
    [message] = threads.messages.list(run.thread_id, run_id=run.id)
    [content] = message.content
    steps = list(threads.runs.steps.list(run.id, thread_id=run.thread_id))

    assert isinstance(content, TextContentBlock)
    assert (run.status, message.status) == ("completed", "completed")
    assert run.usage is not None
    assert run.usage.completion_tokens == sum(
        step.usage.completion_tokens for step in steps if step.usage
    )
    return content.text.value


@pytest.mark.parametrize("command", [ENGINE, FRONTEND, CONTROL, GATEWAY])
async def test_runs_are_completed_after_a_process_is_killed(
    server: Corral, retrying_client: openai.OpenAI, command: str
) -> None:
    """One run is generating, one is queued, one requires action; each completes with one message.
    A reader receives the whole stream. If control service or gateway is killed, a prefix suffices:
    the stream may have ended before."""
    waiting = wait_for_end(
        retrying_client,
        create_run(retrying_client, "What is the weather in Paris?", tools=[WEATHER]),
    )
    run = create_run(retrying_client, STORY)
    async with plain_client(server) as client:
        url = f"/v1/threads/{run.thread_id}/runs/{run.id}/events"
        has_text = asyncio.Event()
        reader = asyncio.create_task(read_stream(client, url, has_text))
        await has_text.wait()
        queued = create_run(retrying_client, "What is the capital of Italy?")
        kill_process(server, command)
        completed = await asyncio.to_thread(wait_for_end, retrying_client, run)
        received, stored = await reader, (await client.get(url)).text
        whole = (await client.get(url, params={"starting_after": -1})).text
    received, *_ = received.replace(PING, "").partition("event: error\n")
    assert waiting.required_action is not None
    [call] = waiting.required_action.submit_tool_outputs.tool_calls
    submitted = retrying_client.beta.threads.runs.submit_tool_outputs(
        waiting.id,
        thread_id=waiting.thread_id,
        tool_outputs=[{"tool_call_id": call.id, "output": "18 degrees and sunny"}],
    )

    assert queued.status == "queued"
    assert get_answer(retrying_client, completed).endswith("The end.")
    assert completed.usage is not None
    assert completed.usage.completion_tokens > 20
    assert stored.count("event: thread.message.created") == 1
    assert stored.count("event: thread.run.completed") == 1
    assert stored.endswith("event: done\ndata: [DONE]\n\n")
    assert received.endswith("\n\n")
    assert stored == whole
    assert stored.startswith(received)
    assert received == stored or command in (CONTROL, GATEWAY)
    assert (
        get_answer(retrying_client, wait_for_end(retrying_client, queued))
        == "The capital of Italy is Rome."
    )
    assert "18" in get_answer(retrying_client, wait_for_end(retrying_client, submitted))


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
