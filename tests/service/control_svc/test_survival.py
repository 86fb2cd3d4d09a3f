"""A disk that is really full, and a PostgreSQL that is really stopped, under load."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from corral.control.v1.batch_pb2 import Batch

from control_svc.app import upgrade_database
from control_svc.config import ControlSettings
from svc_kit.errors import StorageFailed, UpstreamUnavailable
from tests.support.batches import RunningBatches, chat_line, running_batches, state_name
from tests.support.control import RunningControl, a_control
from tests.support.loopback_gateway import run_gateway
from tests.support.postgres import Postgres, a_postgres_server, create_database

MIB = 1024 * 1024
WRITERS = 8


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk; a store that says it is full is tested too")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount a disk")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def fill(disk: Path, *, leave: int) -> Path:
    """Take the room of a disk; deleting the file gives it back."""
    ballast = disk / "ballast"
    with ballast.open("ab", buffering=0) as file:
        system = os.statvfs(disk)
        room = system.f_bavail * system.f_frsize - leave
        while room > 0:
            room -= file.write(bytes(min(room, MIB)))
    return ballast


async def test_a_full_disk_refuses_and_recovers(small_disk: Path) -> None:
    """Bytes and rows alike: a clear error, nothing half-written, and it goes on without help."""
    async with a_control(small_disk) as running:
        client = running.client
        kept = await client.create(b"k" * MIB)
        ballast = fill(small_disk, leave=2 * MIB)
        with pytest.raises(StorageFailed) as refused:
            await client.create(b"x" * 3 * MIB)
        assert refused.value.retry_after is not None
        assert len(running.stored()) == 1

        fill(small_disk, leave=0)
        with pytest.raises(StorageFailed, match="the database's disk is full"):
            await announce_until_refused(running)
        assert len(await client.read(kept.id)) == MIB

        ballast.unlink()
        more = await client.create(b"x" * 3 * MIB)
        upload = await client.create_upload(1)
        assert (await client.get_upload(upload.id)).id == upload.id
        assert {file.id for file in (await client.page()).files} == {kept.id, more.id}

    async with a_control(small_disk) as again:
        assert len(await again.client.read(more.id)) == 3 * MIB


async def announce_until_refused(running: RunningControl) -> None:
    """Rows, of which some still fit into what the database has taken already."""
    for _ in range(1000):
        await running.client.create_upload(1, filename="x" * 255)


@pytest.fixture
def server() -> Iterator[Postgres]:
    """A PostgreSQL of one test."""
    with a_postgres_server(careless=False) as server:
        yield server


@pytest.mark.timeout(120)
async def test_a_batch_computes_nothing_twice_for_a_database_that_stops(
    server: Postgres, tmp_path: Path
) -> None:
    """What is answered while nobody can write it down is kept until somebody can."""
    url = await asyncio.to_thread(create_database, server.url)
    await upgrade_database(ControlSettings(database_url=url))
    names = [f"line-{number:02}" for number in range(40)]
    async with running_batches(tmp_path, url, batches={"lines_at_once": 4}) as running:
        fake, on_their_way = running.fake, names[10:14]
        holds = [fake.block(name) for name in on_their_way]
        batch = await running.batches.create([chat_line(name) for name in names])
        for name in on_their_way:
            await fake.wait_for_attempts(name, 1)
        await asyncio.to_thread(server.stop)
        for hold in holds:
            hold.set()
        while not all(fake.answered[name] for name in on_their_way):
            with pytest.raises(UpstreamUnavailable):
                await running.batches.get(batch.id)
        await asyncio.to_thread(server.start)
        ended = await ended_batch(running, batch.id)

        assert (state_name(ended), ended.request_counts.completed) == ("completed", 40)
        assert dict(fake.answered) == dict.fromkeys(names, 1)


async def ended_batch(running: RunningBatches, batch_id: str) -> Batch:
    """A batch when it has ended; a database that is not back yet is waited for."""
    while True:
        with suppress(UpstreamUnavailable):
            return (await running.batches.wait_for_outcome(batch_id)).batch


@pytest.mark.timeout(120)
async def test_over_http_a_stopped_database_is_a_503_with_a_time(
    server: Postgres, tmp_path: Path
) -> None:
    """In OpenAI's envelope, on every kind of route; and it is over when the database is back."""
    url = await asyncio.to_thread(create_database, server.url)
    await upgrade_database(ControlSettings(database_url=url))
    routes = ("/v1/files", "/v1/files/file-1", "/v1/batches", "/v1/adapters")
    async with (
        a_control(tmp_path, url) as running,
        run_gateway(control_target=running.target) as gateway,
        gateway.client() as http,
    ):
        form: dict[str, Any] = {"data": {"purpose": "user_data"}, "files": {"file": ("a", b"kept")}}
        kept = (await http.post("/v1/files", **form)).json()
        await asyncio.to_thread(server.stop)
        refused = [await http.get(route) for route in (*routes, f"/v1/files/{kept['id']}")]
        refused.append(await http.post("/v1/files", **form))
        refused.append(await http.delete(f"/v1/files/{kept['id']}"))
        await asyncio.to_thread(server.start)
        found = await http.get(f"/v1/files/{kept['id']}/content")
        listed = (await http.get("/v1/files")).json()["data"]

    unknown = refused.pop(1)
    assert unknown.status_code == 404, "what is no id is not asked for"
    for answer in refused:
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (503, "upstream_unavailable")
        assert error.keys() == {"message", "type", "param", "code"}
        assert int(answer.headers["retry-after"]) >= 1
    assert found.content == b"kept"
    assert [file["id"] for file in listed] == [kept["id"]]


class Load:
    """Writers that never stop, and what they were told."""

    def __init__(self, running: RunningControl) -> None:
        self._running = running
        self._refused = asyncio.Semaphore(0)
        self._stored = asyncio.Semaphore(0)
        self.acknowledged: dict[str, bytes] = {}
        self.refusals: list[UpstreamUnavailable] = []

    async def write(self, name: int) -> None:
        """Store one file after the other."""
        for number in range(10_000):
            content = f"{name} {number}".encode()
            try:
                file = await self._running.client.create(content)
            except UpstreamUnavailable as error:
                self.refusals.append(error)
                self._refused.release()
            else:
                self.acknowledged[file.id] = content
                self._stored.release()

    async def refused(self) -> None:
        """Wait until writers have been refused as many times as there are writers."""
        for _ in range(WRITERS):
            await self._refused.acquire()

    async def stored(self) -> None:
        """Wait until as many further files are stored as there are writers."""
        while not self._stored.locked():
            await self._stored.acquire()
        for _ in range(WRITERS):
            await self._stored.acquire()


@pytest.mark.timeout(120)
async def test_a_database_that_stops_and_starts_loses_nothing(
    server: Postgres, tmp_path: Path
) -> None:
    """Callers hear UNAVAILABLE and when to come back; what was acknowledged is there, and the
    service goes on by itself."""
    url = await asyncio.to_thread(create_database, server.url)
    await upgrade_database(ControlSettings(database_url=url))
    async with a_control(tmp_path, url) as running:
        load = Load(running)
        writers = [asyncio.create_task(load.write(name)) for name in range(WRITERS)]
        await load.stored()
        await asyncio.to_thread(server.stop)
        await load.refused()
        await asyncio.to_thread(server.start)
        await load.stored()
        for writer in writers:
            writer.cancel()
        await asyncio.wait(writers)

        assert all(error.retry_after is not None for error in load.refusals)
        for file_id, content in load.acknowledged.items():
            assert await running.client.read(file_id) == content
