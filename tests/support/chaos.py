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
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

import httpx
import openai

from tests.support.history import Client, History, Served, connect_client
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
        """Wait for so many more."""
        self._units = asyncio.Semaphore(0)
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


class HistoryWork(Protocol):
    """Work that any number of gateways can have, whose guarantees are those of its history."""

    async def run(self, served: Served, counter: WorkCounter, stop: asyncio.Event) -> None:
        """As for `Work`."""

    async def check(self, served: Served) -> None:
        """Record what there is."""


@dataclass
class FileWork:
    """Files are stored completely and once, until they are deleted."""

    history: History
    rng: random.Random
    _ids: dict[str, str] = field(default_factory=dict)
    """Of those that are not deleted, by their digests, which are their names too."""

    async def run(self, served: Served, counter: WorkCounter, stop: asyncio.Event) -> None:
        """Create files; now and then delete one, or list all."""
        process = self.history.new_process("files")
        async with connect_client(served) as client:
            while not stop.is_set():
                await self._create(client, process)
                if self.rng.random() < 0.2:
                    await self._delete(client, process, self.rng.choice(sorted(self._ids)))
                if self.rng.random() < 0.2:
                    with self.history.operation(process, "list", "files") as listed:
                        files = await client.pages("files", purpose="user_data")
                        listed.told = [each["filename"] for each in files]
                counter.add()

    async def _create(self, client: Client, process: str) -> None:
        content = self.rng.randbytes(self.rng.randint(1, FILE_BYTES))
        digest = hashlib.sha256(content).hexdigest()
        with self.history.operation(process, "create", "files", [digest]):
            fields = {"data": {"purpose": "user_data"}, "files": {"file": (digest, content)}}
            made = await client.call("POST", "files", **fields)
            self._ids[digest] = made.raise_for_status().json()["id"]

    async def _delete(self, client: Client, process: str, digest: str) -> None:
        with self.history.operation(process, "delete", "files", [digest]):
            answer = await client.call("DELETE", f"files/{self._ids.pop(digest)}")
            if answer.status_code != httpx.codes.NOT_FOUND:  # the answer before may be lost
                answer.raise_for_status()

    async def check(self, served: Served) -> None:
        """What is listed has its content."""
        async with connect_client(served) as client:
            with self.history.operation("afterwards", "list", "files") as listed:
                listed.told = []
                for file in await client.pages("files", purpose="user_data"):
                    content = await client.call("GET", f"files/{file['id']}/content")
                    digest = hashlib.sha256(content.raise_for_status().content).hexdigest()
                    listed.told.append(digest)


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
    history: History,
    rng: random.Random,
    times: int,
    kills: Mapping[str, Kill] = LOCAL_KILLS,
) -> None:
    """Run the works while processes are killed, then check their guarantees and their history."""
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
    assert history.check() == [], history.path
    forgotten = [each.text for each in corral.program.stderr if "never retrieved" in each.text]
    assert forgotten == []  # errors of tasks, by the logs of all services
