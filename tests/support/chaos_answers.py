"""Works for chaos tests: background responses, runs on threads, and batches."""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final
from uuid import uuid4

import httpx2
import openai

from tests.support.batches import CHAT, batch_line, jsonl
from tests.support.chaos import RETRIES, WorkCounter, retrying_sdk
from tests.support.pictures import circle_png, data_url
from tests.support.rpc import CAPITAL, PARIS
from tests.support.sdk_batches import assert_totals, read_batch, wait_for_batch
from tests.support.services import MODEL, Corral

_LINES: Final = [
    batch_line(
        f"line-{number}",
        CHAT,
        model=MODEL,
        messages=[{"role": "user", "content": CAPITAL}],
        temperature=0,
        max_tokens=64,
    )
    for number in range(12)
]
_ENDS: Final = ("response.completed", "response.failed", "response.incomplete")


def _idempotency_key() -> dict[str, str]:
    """Return a new idempotency key, because the server may have processed a failed request."""
    return {"Idempotency-Key": uuid4().hex}


Question = tuple[Any, str]
"""The input of a response, and its answer."""


def picture_questions(rng: random.Random) -> Callable[[], Question]:
    """Questions about pictures, of which no two are equal: each has to be encoded."""

    def next_question() -> Question:
        color = rng.choice(("red", "green", "blue"))
        place = rng.randrange(6, 36, 3), rng.randrange(6, 36, 3)
        url = data_url(circle_png(color, place, corner=rng.randbytes(3)))
        content = [
            {"type": "input_image", "image_url": url, "detail": "auto"},
            {"type": "input_text", "text": "Which color is it?"},
        ]
        return [{"role": "user", "content": content}], color

    return next_question


class ResponseWork:
    """Background responses are completed once, with the right answer; events are sent once and
    stored."""

    def __init__(self, next_question: Callable[[], Question] = lambda: (CAPITAL, PARIS)) -> None:
        self._next_question = next_question
        self._read: dict[str, tuple[str, str]] = {}

    async def run(self, corral: Corral, counter: WorkCounter, stop: asyncio.Event) -> None:
        """Create responses and follow each to its end."""
        async with retrying_sdk(corral) as sdk:
            while not stop.is_set():
                question, answer = self._next_question()
                made = await sdk.responses.create(
                    model=MODEL,
                    input=question,
                    temperature=0,
                    max_output_tokens=64,
                    background=True,
                    extra_headers=_idempotency_key(),
                )
                end, text = self._read[made.id] = await self._follow(sdk, made.id)
                assert (end, text) == ("completed", answer)
                counter.add()

    async def _follow(self, sdk: openai.AsyncOpenAI, response_id: str) -> tuple[str, str]:
        """Return the end and the text of a response from its events; check their order."""
        received: list[Any] = []
        while not received or received[-1].type not in _ENDS:
            last = received[-1].sequence_number if received else None
            after: dict[str, Any] = {} if last is None else {"starting_after": last}
            with suppress(openai.APIError, httpx2.TransportError):
                events: Any = await sdk.responses.retrieve(response_id, stream=True, **after)
                async for event in events:
                    received.append(event)
        assert [event.sequence_number for event in received] == list(range(len(received)))
        text = "".join(e.delta for e in received if e.type == "response.output_text.delta")
        return received[-1].type.removeprefix("response."), text

    async def check(self, corral: Corral) -> None:
        """The stored end and text are those that were streamed."""
        async with retrying_sdk(corral) as sdk:
            for response_id, streamed in self._read.items():
                stored = await sdk.responses.retrieve(response_id)
                assert (stored.status, stored.output_text) == streamed


class RunWork:
    """Runs are completed once, with one message."""

    def __init__(self) -> None:
        self._threads: list[str] = []

    async def run(self, corral: Corral, counter: WorkCounter, stop: asyncio.Event) -> None:
        """Create a thread and a run for each question, and wait for the run."""
        async with retrying_sdk(corral) as sdk:
            beta = sdk.beta
            assistant = await beta.assistants.create(
                model=MODEL, temperature=0, extra_headers=_idempotency_key()
            )
            while not stop.is_set():
                thread = await beta.threads.create(
                    messages=[{"role": "user", "content": CAPITAL}],
                    extra_headers=_idempotency_key(),
                )
                run = await beta.threads.runs.create(
                    thread.id, assistant_id=assistant.id, extra_headers=_idempotency_key()
                )
                ended = await beta.threads.runs.poll(run.id, thread.id, poll_interval_ms=50)
                assert ended.status == "completed", ended
                self._threads.append(thread.id)
                counter.add()

    async def check(self, corral: Corral) -> None:
        """Each thread has the question and one answer."""
        async with retrying_sdk(corral) as sdk:
            for thread_id in self._threads:
                listed = await sdk.beta.threads.messages.list(thread_id, order="asc")
                texts: list[Any] = [message.content for message in listed.data]
                assert [text[0].text.value for text in texts] == [CAPITAL, PARIS]


class BatchWork:
    """Each line of a batch is answered once, rightly, and counted once; no batch is there twice."""

    def __init__(self) -> None:
        self._batches: list[str] = []

    async def run(self, corral: Corral, counter: WorkCounter, stop: asyncio.Event) -> None:
        """Create batches, and wait for the end of each."""
        async with retrying_sdk(corral) as sdk:
            while not stop.is_set():
                file = await sdk.files.create(
                    file=("in.jsonl", jsonl(_LINES)),
                    purpose="batch",
                    extra_headers=_idempotency_key(),
                )
                batch = await sdk.batches.create(
                    input_file_id=file.id,
                    endpoint="/v1/chat/completions",
                    completion_window="24h",
                    extra_headers=_idempotency_key(),
                )
                await asyncio.to_thread(wait_for_batch, corral, batch.id)
                self._batches.append(batch.id)
                counter.add()

    async def check(self, corral: Corral) -> None:
        """The files of each batch have all its lines with their answers."""
        await asyncio.to_thread(self._check, corral)

    def _check(self, corral: Corral) -> None:
        with openai.OpenAI(base_url=corral.api, api_key="x", max_retries=RETRIES) as sdk:
            assert sorted(each.id for each in sdk.batches.list()) == sorted(self._batches)
            for batch_id in self._batches:
                ended = read_batch(sdk, batch_id)
                answers = {
                    name: line["response"]["body"]["choices"][0]["message"]["content"]
                    for name, line in ended.completed.items()
                }
                assert answers == {line["custom_id"]: PARIS for line in _LINES}
                assert_totals(ended)
