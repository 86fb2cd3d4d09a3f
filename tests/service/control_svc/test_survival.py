"""A full disk and a stopped PostgreSQL, under load."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from corral.control.v1.batch_pb2 import Batch

from control_svc.app import upgrade_database
from control_svc.config import ControlSettings
from control_svc.db.disk_reserve import RESERVE_BYTES
from svc_kit.errors import StorageFailed, UpstreamUnavailable
from tests.support.batches import RunningBatches, chat_line, run_batches, state_name
from tests.support.control import RunningControl, run_control
from tests.support.loopback_gateway import run_gateway
from tests.support.postgres import Postgres, create_database, run_postgres_server
from tests.support.small_disk import MIB, fill, mount_disk

WRITERS = 8


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MiB, of which the reserve takes 4."""
    with mount_disk(tmp_path, 12) as disk:
        yield disk


async def test_the_service_recovers_from_a_full_disk(small_disk: Path) -> None:
    """Writes of blobs and rows fail with an error and leave nothing; later ones succeed."""
    async with run_control(small_disk) as running:
        client = running.client
        kept = await client.create(b"k" * MIB)
        ballast = fill(small_disk, leave=2 * MIB)
        with pytest.raises(StorageFailed) as error:
            await client.create(b"x" * 3 * MIB)
        assert error.value.retry_after is not None
        assert len(running.stored()) == 1

        fill(small_disk, leave=0)
        with pytest.raises(StorageFailed, match="the database's disk is full"):
            await create_uploads_until_full(running)
        assert len(await client.read(kept.id)) == MIB

        ballast.unlink()
        more = await client.create(b"x" * 3 * MIB)
        upload = await client.create_upload(1)
        assert (await client.get_upload(upload.id)).id == upload.id
        assert {file.id for file in (await client.page()).files} == {kept.id, more.id}

    async with run_control(small_disk) as restarted:
        assert len(await restarted.client.read(more.id)) == 3 * MIB


async def test_deletions_work_on_a_full_disk(small_disk: Path) -> None:
    """With the reserve, also after a restart. Nothing else is written until it is filled again."""
    async with run_control(small_disk) as running:
        files = [await running.client.create(b"small") for _ in range(2)]
    for file in files:
        async with run_control(small_disk) as running:
            ballast = fill(small_disk, leave=0)
            with pytest.raises(StorageFailed, match="the database's disk is full"):
                await running.client.create_upload(1)
            await running.client.delete(file.id)
            with pytest.raises(StorageFailed, match="the database's disk is full"):
                await running.client.create_upload(1)
            assert file.id not in {each.id for each in (await running.client.page()).files}

            ballast.unlink()
            await running.client.create_upload(1)
            reserve = small_disk / "control" / "reserve"
            assert reserve.stat().st_blocks * 512 == RESERVE_BYTES


async def create_uploads_until_full(running: RunningControl) -> None:
    """Insert rows; some fit into pages that the database has already allocated."""
    for _ in range(1000):
        await running.client.create_upload(1, filename="x" * 255)


@pytest.fixture
def server() -> Iterator[Postgres]:
    with run_postgres_server(durable=True) as server:
        yield server


@pytest.mark.timeout(120)
async def test_a_batch_runs_no_line_twice_if_the_database_stops(
    server: Postgres, tmp_path: Path
) -> None:
    """Results are kept in memory until the database is available."""
    url = await asyncio.to_thread(create_database, server.url)
    await upgrade_database(ControlSettings(database_url=url))
    names = [f"line-{number:02}" for number in range(40)]
    async with run_batches(tmp_path, url, batches={"lines_at_once": 4}) as running:
        fake, blocked = running.fake, names[10:14]
        releases = [fake.block(name) for name in blocked]
        batch = await running.batches.create([chat_line(name) for name in names])
        for name in blocked:
            await fake.wait_for_attempts(name, 1)
        await asyncio.to_thread(server.stop)
        for release in releases:
            release.set()
        while not all(fake.answered[name] for name in blocked):
            with pytest.raises(UpstreamUnavailable):
                await running.batches.get(batch.id)
        await asyncio.to_thread(server.start)
        ended = await wait_for_end(running, batch.id)

        assert (state_name(ended), ended.request_counts.completed) == ("completed", 40)
        assert dict(fake.answered) == dict.fromkeys(names, 1)


async def wait_for_end(running: RunningBatches, batch_id: str) -> Batch:
    """Wait until a batch has ended, retrying while the database is unavailable."""
    while True:
        with suppress(UpstreamUnavailable):
            return (await running.batches.wait_for_outcome(batch_id)).batch


@pytest.mark.timeout(120)
async def test_a_stopped_database_is_a_503_with_retry_after(
    server: Postgres, tmp_path: Path
) -> None:
    """In OpenAI's error format, on all kinds of routes, until the database is back."""
    url = await asyncio.to_thread(create_database, server.url)
    await upgrade_database(ControlSettings(database_url=url))
    routes = ("/v1/files", "/v1/files/file-1", "/v1/batches", "/v1/adapters")
    async with (
        run_control(tmp_path, url) as running,
        run_gateway(control_target=running.target) as gateway,
        gateway.client() as http,
    ):
        form: dict[str, Any] = {"data": {"purpose": "user_data"}, "files": {"file": ("a", b"kept")}}
        file = (await http.post("/v1/files", **form)).json()
        await asyncio.to_thread(server.stop)
        responses = [await http.get(route) for route in (*routes, f"/v1/files/{file['id']}")]
        responses.append(await http.post("/v1/files", **form))
        responses.append(await http.delete(f"/v1/files/{file['id']}"))
        await asyncio.to_thread(server.start)
        content = await http.get(f"/v1/files/{file['id']}/content")
        listed = (await http.get("/v1/files")).json()["data"]

    malformed = responses.pop(1)
    assert malformed.status_code == 404, "malformed ids are not queried"
    for response in responses:
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (503, "upstream_unavailable")
        assert error.keys() == {"message", "type", "param", "code"}
        assert int(response.headers["retry-after"]) >= 1
    assert content.content == b"kept"
    assert [each["id"] for each in listed] == [file["id"]]


class Load:
    """Writers that create files until cancelled, and their results."""

    def __init__(self, running: RunningControl) -> None:
        self._running = running
        self._failed = asyncio.Semaphore(0)
        self._created = asyncio.Semaphore(0)
        self.created: dict[str, bytes] = {}
        self.errors: list[UpstreamUnavailable] = []

    async def write(self, name: int) -> None:
        for number in range(10_000):
            content = f"{name} {number}".encode()
            try:
                file = await self._running.client.create(content)
            except UpstreamUnavailable as error:
                self.errors.append(error)
                self._failed.release()
            else:
                self.created[file.id] = content
                self._created.release()

    async def wait_for_errors(self) -> None:
        for _ in range(WRITERS):
            await self._failed.acquire()

    async def wait_for_files(self) -> None:
        while not self._created.locked():
            await self._created.acquire()
        for _ in range(WRITERS):
            await self._created.acquire()


@pytest.mark.timeout(120)
async def test_a_restart_of_the_database_loses_nothing(server: Postgres, tmp_path: Path) -> None:
    """Callers get UNAVAILABLE with a delay, created files exist, and the service recovers."""
    url = await asyncio.to_thread(create_database, server.url)
    await upgrade_database(ControlSettings(database_url=url))
    async with run_control(tmp_path, url) as running:
        load = Load(running)
        writers = [asyncio.create_task(load.write(name)) for name in range(WRITERS)]
        await load.wait_for_files()
        await asyncio.to_thread(server.stop)
        await load.wait_for_errors()
        await asyncio.to_thread(server.start)
        await load.wait_for_files()
        for writer in writers:
            writer.cancel()
        await asyncio.wait(writers)

        assert all(error.retry_after is not None for error in load.errors)
        for file_id, content in load.created.items():
            assert await running.client.read(file_id) == content
