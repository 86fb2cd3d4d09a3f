"""Kills processes at random moments while clients work, and checks guarantees afterwards.

Each resource has a `Work` with the actions of its clients and a check of the guarantees. Moments
are measured in completed units of work, not in seconds, so that they do not depend on the speed of
the machine.
"""

import asyncio
import hashlib
import logging
import os
import random
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

import openai

from tests.support.rpc import PARIS
from tests.support.sdk import capital_of_france
from tests.support.services import Corral

log = logging.getLogger(__name__)

Kill = Callable[[Corral], bool]
"""Kills processes; returns whether there were any."""


def kill_processes(words: str, corral: Corral) -> bool:
    """Kill the processes of Corral with these words in their command lines."""
    found = [each.pid for each in corral.program.family() if words in each.command]
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(found)


SERVICES: Final[Mapping[str, Kill]] = {
    "control": partial(kill_processes, "serve control"),
    "gateway": partial(kill_processes, "serve gateway"),
    "frontend": partial(kill_processes, "serve inference"),
}
LOCAL_KILLS: Final[Mapping[str, Kill]] = {
    **SERVICES,
    "engine": partial(kill_processes, "inference_svc.engine_process.main"),
    "encoder": partial(kill_processes, "inference_svc.media.encoder_main"),
}
"""What is killed where engines are Corral's own."""
MAX_UNITS_BETWEEN_KILLS = 8
"""Maximum number of units of work between two kills."""
RETRIES = 120
FILE_BYTES = 300_000


class WorkCounter:
    """Counts completed units of work."""

    def __init__(self) -> None:
        self.total = 0
        self._units = asyncio.Semaphore(0)

    def add(self) -> None:
        self.total += 1
        self._units.release()

    async def wait_for(self, count: int) -> None:
        for _ in range(count):
            await self._units.acquire()


class Work(Protocol):
    """Actions of the clients of one resource, and a check of its guarantees."""

    async def run(self, corral: Corral, counter: WorkCounter, stop: asyncio.Event) -> None:
        """Work until `stop` is set, complete started units, and count each."""

    async def check(self, corral: Corral) -> None:
        """Assert the guarantees. No process is killed meanwhile."""


def retrying_sdk(corral: Corral) -> openai.AsyncOpenAI:
    """Return the SDK with enough retries for any restart."""
    return openai.AsyncOpenAI(base_url=corral.api, api_key="x", max_retries=RETRIES)


class FileWork:
    """Files are stored completely, once and permanently."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._digests: dict[str, str] = {}

    async def run(self, corral: Corral, counter: WorkCounter, stop: asyncio.Event) -> None:
        async with retrying_sdk(corral) as sdk:
            while not stop.is_set():
                content = self._rng.randbytes(self._rng.randint(1, FILE_BYTES))
                digest = hashlib.sha256(content).hexdigest()
                file = await sdk.files.create(
                    file=(digest, content),
                    purpose="user_data",
                    extra_headers={"Idempotency-Key": digest},
                )
                self._digests[file.id] = digest
                counter.add()

    async def check(self, corral: Corral) -> None:
        """The acknowledged files exist, and no others."""
        async with retrying_sdk(corral) as sdk:
            listed = [file.id async for file in sdk.files.list(purpose="user_data")]
            assert sorted(listed) == sorted(self._digests)
            for file_id, digest in self._digests.items():
                content = (await sdk.files.content(file_id)).content
                assert hashlib.sha256(content).hexdigest() == digest, file_id


class ChatWork:
    """Questions are answered correctly."""

    async def run(self, corral: Corral, counter: WorkCounter, stop: asyncio.Event) -> None:
        """Ask questions; the SDK retries interrupted ones."""
        async with retrying_sdk(corral) as sdk:
            while not stop.is_set():
                assert await capital_of_france(sdk) == PARIS
                counter.add()

    async def check(self, corral: Corral) -> None:
        """Nothing: each answer was checked."""


async def kill_at_random(
    corral: Corral,
    counter: WorkCounter,
    rng: random.Random,
    times: int,
    kills: Mapping[str, Kill] = LOCAL_KILLS,
) -> None:
    """Kill that often; what does not run at its moment does not count."""
    num_killed = 0
    while num_killed < times:
        await counter.wait_for(rng.randint(1, MAX_UNITS_BETWEEN_KILLS))
        name = rng.choice(sorted(kills))
        if await asyncio.to_thread(kills[name], corral):
            log.warning("killed %s", name)
            num_killed += 1


async def survive(
    corral: Corral,
    works: Sequence[Work],
    rng: random.Random,
    times: int,
    kills: Mapping[str, Kill] = LOCAL_KILLS,
) -> None:
    """Run the works while processes are killed, then check their guarantees."""
    counter, stop = WorkCounter(), asyncio.Event()
    async with asyncio.TaskGroup() as clients:
        for work in works:
            clients.create_task(work.run(corral, counter, stop))
        await kill_at_random(corral, counter, rng, times, kills)
        await counter.wait_for(MAX_UNITS_BETWEEN_KILLS)
        stop.set()
    log.warning("%d units of work", counter.total)
    for work in works:
        await work.check(corral)
    forgotten = [each.text for each in corral.program.stderr if "never retrieved" in each.text]
    assert forgotten == []  # errors of tasks, by the logs of all services
