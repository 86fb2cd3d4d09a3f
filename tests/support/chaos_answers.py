"""Answers that are stored, for tests in which processes die at random: background responses, and
runs on threads."""

import asyncio
from contextlib import suppress
from typing import Any, Final
from uuid import uuid4

import httpx2
import openai

from tests.support.chaos import Pulse, persistent
from tests.support.rpc import CAPITAL, PARIS
from tests.support.services import MODEL, Corral

_ENDS: Final = ("response.completed", "response.failed", "response.incomplete")


def _once() -> dict[str, str]:
    """What makes a retry one: the server may have done what it could not say any more."""
    return {"Idempotency-Key": uuid4().hex}


class ResponseWork:
    """Background responses are answered once; each event is told once, and what was read stays."""

    def __init__(self) -> None:
        self._read: dict[str, str] = {}

    async def run(self, corral: Corral, pulse: Pulse, stop: asyncio.Event) -> None:
        """Ask, and follow each answer to its end."""
        async with persistent(corral) as sdk:
            while not stop.is_set():
                made = await sdk.responses.create(
                    model=MODEL,
                    input=CAPITAL,
                    temperature=0,
                    background=True,
                    extra_headers=_once(),
                )
                self._read[made.id] = await self._followed(sdk, made.id)
                assert self._read[made.id] == PARIS
                pulse.beat()

    async def _followed(self, sdk: openai.AsyncOpenAI, response_id: str) -> str:
        """The text of a response as its events tell it, each of them once and in order."""
        seen: list[Any] = []
        while not seen or seen[-1].type not in _ENDS:
            after: dict[str, Any] = {"starting_after": seen[-1].sequence_number} if seen else {}
            with suppress(openai.APIError, httpx2.TransportError):
                events: Any = await sdk.responses.retrieve(response_id, stream=True, **after)
                async for event in events:
                    seen.append(event)
        assert [event.sequence_number for event in seen] == list(range(len(seen)))
        return "".join(e.delta for e in seen if e.type == "response.output_text.delta")

    async def check(self, corral: Corral) -> None:
        """What was read is what is kept."""
        async with persistent(corral) as sdk:
            for response_id, text in self._read.items():
                kept = await sdk.responses.retrieve(response_id)
                assert (kept.status, kept.output_text) == ("completed", text)


class RunWork:
    """Runs end once, with one message."""

    def __init__(self) -> None:
        self._threads: list[str] = []

    async def run(self, corral: Corral, pulse: Pulse, stop: asyncio.Event) -> None:
        """Ask on a new thread each time, and wait for the run's end."""
        async with persistent(corral) as sdk:
            beta = sdk.beta
            assistant = await beta.assistants.create(
                model=MODEL, temperature=0, extra_headers=_once()
            )
            while not stop.is_set():
                thread = await beta.threads.create(
                    messages=[{"role": "user", "content": CAPITAL}], extra_headers=_once()
                )
                run = await beta.threads.runs.create(
                    thread.id, assistant_id=assistant.id, extra_headers=_once()
                )
                ended = await beta.threads.runs.poll(run.id, thread.id, poll_interval_ms=50)
                assert ended.status == "completed", ended
                self._threads.append(thread.id)
                pulse.beat()

    async def check(self, corral: Corral) -> None:
        """Each thread has the question and one answer."""
        async with persistent(corral) as sdk:
            for thread_id in self._threads:
                listed = await sdk.beta.threads.messages.list(thread_id, order="asc")
                texts: list[Any] = [message.content for message in listed.data]
                assert [text[0].text.value for text in texts] == [CAPITAL, PARIS]
