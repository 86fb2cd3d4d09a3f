"""Backups taken while clients write and processes are killed: a restore has what was acknowledged.

A short form with every `make test`; `make chaos` takes as many backups as it has rounds.
"""

import asyncio
import json
import logging
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.chaos.test_chaos import make_rng
from tests.support.chaos import WorkCounter, kill_at_random, retrying_sdk
from tests.support.postgres import create_database, run_postgres_server
from tests.support.processes import Program
from tests.support.services import Corral, corral_up, start

log = logging.getLogger(__name__)
pytestmark = pytest.mark.e2e

KILLS = 3
"""During each backup, which has an `up` of its own: the supervisor gives up on a service that fails
six times in a row."""
CLIENTS = 3
UNITS_BEFORE = 10
"""Units of work before each backup."""


@dataclass
class History:
    """What clients have done with an object; times are in seconds since the epoch."""

    content: bytes
    created_at: float
    """When its creation was acknowledged."""
    deleting_at: float = float("inf")
    """When its deletion was requested."""
    deleted_at: float = float("inf")
    """When its deletion was acknowledged."""


@dataclass
class Writer:
    """A client that creates files and conversations, and deletes half of the files again."""

    rng: random.Random
    files: dict[str, History] = field(default_factory=dict)
    conversations: dict[str, float] = field(default_factory=dict)
    """Times of the acknowledgements by id."""

    async def run(self, corral: Corral, counter: WorkCounter, stop: asyncio.Event) -> None:
        async with retrying_sdk(corral) as sdk:
            while not stop.is_set():
                await self._create(sdk)
                counter.add()
                kept = [key for key, each in self.files.items() if each.deleting_at == float("inf")]
                if len(kept) > 1 and self.rng.random() < 0.5:
                    await self._delete(sdk, self.rng.choice(kept))
                    counter.add()

    async def _create(self, sdk: openai.AsyncOpenAI) -> None:
        content = self.rng.randbytes(self.rng.randint(0, 200_000))
        key = self.rng.randbytes(16).hex()
        file = await sdk.files.create(
            file=(key, content), purpose="user_data", extra_headers={"Idempotency-Key": key}
        )
        self.files[file.id] = History(content, time.time())
        conversation = await sdk.conversations.create(metadata={"file": file.id})
        self.conversations[conversation.id] = time.time()

    async def _delete(self, sdk: openai.AsyncOpenAI, file_id: str) -> None:
        history = self.files[file_id]
        history.deleting_at = time.time()
        try:
            await sdk.files.delete(file_id)
        except openai.NotFoundError:
            pass  # the answer to an earlier try was lost
        history.deleted_at = time.time()


@dataclass(frozen=True)
class Place:
    """A folder with an installation, and its database; None for SQLite in the folder."""

    folder: Path
    url: str | None = None

    @property
    def control(self) -> dict[str, object]:
        return {} if self.url is None else {"database_url": self.url, "auto_migrate": True}

    @contextmanager
    def up(self) -> Iterator[Corral]:
        with corral_up(self.folder, control=self.control) as corral:
            yield corral

    def start(self, *words: str | Path) -> Program:
        """Start a command on the data of the installation."""
        words = (*words, "--data-dir", self.folder / "data")
        return start(self.folder, *words, control=self.control)


MakePlace = Callable[[str], Place]


async def run_corral(place: Place, *words: str | Path) -> dict[str, Any]:
    """Run a command on the installation of a place; return the object that it prints."""
    with place.start(*words, "--json") as program:
        code = await asyncio.to_thread(program.wait)
        assert code == 0, [line.text for line in program.stderr]
        printed: dict[str, Any] = json.loads("".join(line.text for line in program.stdout))
    return printed


async def kill_backup(place: Place, target: Path) -> None:
    """Start a backup, and kill it once it has begun to write."""
    with place.start("backup", target) as program:
        await asyncio.to_thread(wait_for_backup, program, target)
        program.signal(signal.SIGKILL)
        await asyncio.to_thread(program.wait)


def wait_for_backup(program: Program, target: Path) -> None:
    """Return when the folder of a backup without a manifest exists, or the program has ended."""
    while not any(target.glob("2*Z/*")) and not has_ended(program):
        pass


def has_ended(program: Program) -> bool:
    """Whether a program has ended, also if nobody has waited for it yet."""
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, program.pid, options) is not None


async def drill(
    make_place: MakePlace, rng: random.Random, num_backups: int
) -> list[dict[str, Any]]:
    """Take backups while clients write and processes are killed; return their manifests, after the
    restore of each was compared with what the clients know.
    """
    writers = [Writer(random.Random(rng.random())) for _ in range(CLIENTS)]
    place = await asyncio.to_thread(make_place, "one")
    target, manifests = place.folder / "backups", list[dict[str, Any]]()
    for _ in range(num_backups):
        counter, stop = WorkCounter(), asyncio.Event()
        with place.up() as corral:
            async with asyncio.TaskGroup() as clients:
                for writer in writers:
                    clients.create_task(writer.run(corral, counter, stop))
                await counter.wait_for(UNITS_BEFORE)
                if not manifests:
                    await kill_backup(place, target)
                killer = asyncio.create_task(kill_at_random(corral, counter, rng, KILLS))
                started = time.monotonic()
                manifests.append(await run_corral(place, "backup", target))
                manifests[-1]["seconds"] = time.monotonic() - started
                await killer
                stop.set()
    for manifest in manifests:
        await compare(
            await asyncio.to_thread(make_place, manifest["backup_id"]), target, manifest, writers
        )
    return manifests


async def compare(
    place: Place, target: Path, manifest: dict[str, Any], writers: list[Writer]
) -> None:
    await run_corral(place, "restore", target, "--backup", manifest["backup_id"])
    assert (await run_corral(place, "check"))["problems"] == []
    mark = datetime.fromisoformat(manifest["mark"]).timestamp()
    files = {key: each for writer in writers for key, each in writer.files.items()}
    with place.up() as corral:
        async with retrying_sdk(corral) as sdk:
            restored = {file.id async for file in sdk.files.list()}
            kept = {
                key
                for key, each in files.items()
                if each.created_at < mark and each.deleting_at > mark + manifest["seconds"]
            }
            deleted = {key for key, each in files.items() if each.deleted_at < mark}
            lost = kept - restored
            for file_id in restored & files.keys():
                content = (await sdk.files.content(file_id)).content
                assert content == files[file_id].content
            conversations = [
                key
                for writer in writers
                for key, created_at in writer.conversations.items()
                if created_at < mark
            ]
            for conversation_id in conversations:
                await sdk.conversations.retrieve(conversation_id)
    log.warning(
        "backup %s in %.1f s: %d files (%.1f MB, %.1f MB new), %d kills; of %d files and %d"
        " conversations acknowledged before its mark %d are lost, of %d deletions %d are undone",
        *(manifest["backup_id"], manifest["seconds"], manifest["num_blobs"]),
        *(manifest["num_bytes"] / 1e6, manifest["copied_bytes"] / 1e6, KILLS),
        *(len(kept), len(conversations), len(lost), len(deleted), len(deleted & restored)),
    )
    assert (lost, deleted & restored) == (set(), set())


@pytest.fixture(params=["sqlite", "postgres"])
def make_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakePlace]:
    """Makes places without anything, by name."""
    with ExitStack() as stack:
        server: str | None = None
        if request.param == "postgres":
            server = stack.enter_context(run_postgres_server(durable=True)).url

        def make(name: str) -> Place:
            (tmp_path / name).mkdir()
            return Place(tmp_path / name, None if server is None else create_database(server))

        yield make


@pytest.mark.parametrize("make_place", ["sqlite"], indirect=True)
async def test_a_backup_has_what_was_acknowledged_before_its_mark(make_place: MakePlace) -> None:
    """Though processes and a first backup are killed; with bytes and rows, and without what was
    deleted before."""
    (manifest,) = await drill(make_place, make_rng(None), 1)

    assert manifest["lost"] == []


@pytest.mark.slow
@pytest.mark.timeout(24 * 3600)
async def test_many_backups_lose_nothing(
    request: pytest.FixtureRequest, make_place: MakePlace
) -> None:
    """Into one folder, each restored on its own; later ones copy only what is new."""
    rng = make_rng(request.config.getoption("--seed", None))
    manifests = await drill(make_place, rng, request.config.getoption("--rounds", 1))

    assert all(manifest["lost"] == [] for manifest in manifests)
    for later in manifests[1:]:
        assert later["copied_bytes"] < later["num_bytes"], "earlier bytes are not copied again"
