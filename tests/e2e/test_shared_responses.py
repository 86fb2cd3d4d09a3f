"""Responses with PostgreSQL and two control processes, one of which is killed."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from corral.control.v1 import response_pb2
from corral.control.v1.response_event_pb2 import ResponseEvent

from control_svc.app import upgrade_database
from control_svc.config import ControlSettings
from svc_kit.rpc.client import open_channel
from tests.support.control import Client
from tests.support.postgres import create_database, fetch_value, run_test_postgres
from tests.support.processes import Program
from tests.support.response_client import ResponseClient, output_text
from tests.support.services import MODEL, Corral, start

pytestmark = pytest.mark.e2e

NUM_TOKENS = 600
OWNER = "SELECT lease_owner FROM jobs WHERE kind = 'response' AND lease_owner IS NOT NULL"


@dataclass(frozen=True)
class ControlPair:
    """Two control processes with one database, by pid."""

    database_url: str
    programs: dict[int, Program]
    targets: dict[int, str]

    async def worker_pid(self) -> int:
        """The process that has begun with the response."""
        while (owner := await fetch_value(self.database_url, OWNER)) is None:
            pass
        (pid,) = [pid for pid in self.programs if f"-{pid}-" in str(owner)]
        return pid


@pytest.fixture
def pair(up: Corral, tmp_path: Path) -> Iterator[ControlPair]:
    """Run two control processes with the shared inference service."""
    with run_test_postgres() as server, ExitStack() as stack:
        url = create_database(server)
        asyncio.run(upgrade_database(ControlSettings(database_url=url)))
        settings: dict[str, Any] = {
            "listen": "127.0.0.1:0",
            "database_url": url,
            "inference_target": up.target,
            "jobs.lease_s": 2,
        }
        programs = [
            stack.enter_context(run_control_program(tmp_path / name, settings)) for name in "ab"
        ]
        targets = [program.wait_for_line(r"serving gRPC on (\S+)")[1] for program in programs]
        pids = [program.pid for program in programs]
        yield ControlPair(
            url, dict(zip(pids, programs, strict=True)), dict(zip(pids, targets, strict=True))
        )


@contextmanager
def run_control_program(folder: Path, settings: dict[str, Any]) -> Iterator[Program]:
    """Run `corral serve control`, without waiting until it is ready."""
    folder.mkdir()
    with start(folder, "serve", "control", control=settings) as program:
        yield program


async def test_a_response_of_a_killed_process_is_completed_by_another(pair: ControlPair) -> None:
    """Once, with one usage. Clients of the other process and clients that reconnect get the same
    events."""
    async with AsyncExitStack() as stack:
        clients = {
            pid: ResponseClient(Client(await stack.enter_async_context(open_channel(target))))
            for pid, target in pair.targets.items()
        }
        first = next(iter(clients.values()))
        created = await first.create(
            "Tell me a story about a fox.",
            model=MODEL,
            background=True,
            max_output_tokens=NUM_TOKENS,
            options={"stopping": {"ignore_eos": True}},
        )
        followed = {pid: client.watch(created.id) for pid, client in clients.items()}
        victim = await pair.worker_pid()
        (survivor,) = set(pair.programs) - {victim}
        seen = {pid: await read_until_text(events) for pid, events in followed.items()}
        pair.programs[victim].signal(signal.SIGKILL)
        attached = seen[survivor] + [event async for event in followed[survivor]]
        cut = len(attached) // 2
        resumed = [event async for event in clients[survivor].watch(created.id, cut)]
        stored = await clients[survivor].get(created.id)

    assert resumed == attached[cut + 1 :]
    assert [event.sequence_number for event in attached] == list(range(len(attached)))
    assert [event.WhichOneof("event") for event in attached].count("incomplete") == 1
    assert attached[-1].incomplete == stored
    assert "".join(event.output_text_delta.text for event in attached) == output_text(stored)
    assert stored.state == response_pb2.Response.STATE_INCOMPLETE
    assert stored.usage.output_tokens == NUM_TOKENS


async def read_until_text(events: AsyncIterator[ResponseEvent]) -> list[ResponseEvent]:
    """Read the events up to the first text delta."""
    seen = [await anext(events)]
    while seen[-1].WhichOneof("event") != "output_text_delta":
        seen.append(await anext(events))
    return seen
