"""Processes that die at random moments while clients work, and what must be so afterwards.

A resource takes part with a `Work`: what its clients do, and a check of what they were promised.
Moments are counted in what the clients get done, not in seconds, so they are as random on a fast
machine as on a slow one, and none falls into a time in which nothing happens.
"""

import asyncio
import hashlib
import logging
import os
import random
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Protocol

import openai

from tests.support.rpc import PARIS
from tests.support.sdk import capital_of_france
from tests.support.services import Corral

log = logging.getLogger(__name__)

VICTIMS: Final = {
    "control": "serve control",
    "gateway": "serve gateway",
    "frontend": "serve inference",
    "engine": "inference_svc.engine_process.main",
}
"""Who may die, by words of its command line."""
LONGEST_WAIT = 8
"""The most units of work between two deaths."""
RETRIES = 30
FILE_BYTES = 300_000


class Pulse:
    """Counts what clients get done."""

    def __init__(self) -> None:
        self._beats = asyncio.Semaphore(0)

    def beat(self) -> None:
        """A unit is done."""
        self._beats.release()

    async def beats(self, count: int) -> None:
        """Wait for so many units more."""
        for _ in range(count):
            await self._beats.acquire()


class Work(Protocol):
    """What clients of one resource do, and what they may rely on."""

    async def run(self, corral: Corral, pulse: Pulse, stop: asyncio.Event) -> None:
        """Work until told to stop, and end what has begun; every unit is a beat."""

    async def check(self, corral: Corral) -> None:
        """Fails where a promise was not kept; nobody dies meanwhile."""


def persistent(corral: Corral) -> openai.AsyncOpenAI:
    """The SDK, whose own retries outlast any restart."""
    return openai.AsyncOpenAI(base_url=corral.api, api_key="x", max_retries=RETRIES)


class FileWork:
    """Files are stored: each once, whole, and for good."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._digests: dict[str, str] = {}

    async def run(self, corral: Corral, pulse: Pulse, stop: asyncio.Event) -> None:
        """Store files; a retry says by its key that it is one."""
        async with persistent(corral) as sdk:
            while not stop.is_set():
                content = self._rng.randbytes(self._rng.randint(1, FILE_BYTES))
                digest = hashlib.sha256(content).hexdigest()
                file = await sdk.files.create(
                    file=(digest, content),
                    purpose="user_data",
                    extra_headers={"Idempotency-Key": digest},
                )
                self._digests[file.id] = digest
                pulse.beat()

    async def check(self, corral: Corral) -> None:
        """Everything that was acknowledged is there, and nothing else."""
        async with persistent(corral) as sdk:
            listed = [file.id async for file in sdk.files.list()]
            assert sorted(listed) == sorted(self._digests)
            for file_id, digest in self._digests.items():
                content = (await sdk.files.content(file_id)).content
                assert hashlib.sha256(content).hexdigest() == digest, file_id


class ChatWork:
    """Questions are answered, in the end, and never wrongly."""

    async def run(self, corral: Corral, pulse: Pulse, stop: asyncio.Event) -> None:
        """Ask, again where the answer was broken off."""
        async with persistent(corral) as sdk:
            while not stop.is_set():
                assert await capital_of_france(sdk) == PARIS
                pulse.beat()

    async def check(self, corral: Corral) -> None:
        """What was promised was checked with each answer."""


async def kill_at_random(corral: Corral, pulse: Pulse, rng: random.Random, times: int) -> None:
    """Kill one process after the other, whichever chance finds running."""
    for _ in range(times):
        await pulse.beats(rng.randint(1, LONGEST_WAIT))
        name = rng.choice(sorted(VICTIMS))
        for process in await asyncio.to_thread(corral.program.family):
            if VICTIMS[name] in process.command:
                log.warning("killing %s", name)
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)


async def survive(corral: Corral, works: Sequence[Work], rng: random.Random, kills: int) -> None:
    """Let clients work while processes die, then see to it that every promise was kept."""
    pulse, stop = Pulse(), asyncio.Event()
    async with asyncio.TaskGroup() as clients:
        for work in works:
            clients.create_task(work.run(corral, pulse, stop))
        await kill_at_random(corral, pulse, rng, kills)
        await pulse.beats(LONGEST_WAIT)
        stop.set()
    for work in works:
        await work.check(corral)
