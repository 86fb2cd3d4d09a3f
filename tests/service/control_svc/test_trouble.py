"""Full disks, cancelled clients, killed processes and concurrent writers."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from corral.control.v1 import file_pb2, file_service_pb2

from control_svc.app import build
from svc_kit import errors
from svc_kit.lifecycle import StartupError
from svc_kit.rpc.client import open_channel, translate_errors
from tests.support.control import USER_DATA, Client, RunningControl, run_control
from tests.support.installation import Installation
from tests.support.loopback_gateway import run_gateway
from tests.support.sandbox_jobs import InlineJobs

WRITERS = 50


async def test_a_full_disk_leaves_nothing_half_written(running: RunningControl) -> None:
    """Each step raises an error, and succeeds once there is space."""
    client, disk = running.client, running.blobs
    upload = await client.create_upload(6)
    disk.free_bytes = 3
    with pytest.raises(errors.StorageFailed) as error:
        await client.create(b"123456")
    with pytest.raises(errors.StorageFailed):
        await client.add_part(upload.id, b"123456")
    assert running.stored() == []
    assert error.value.retry_after is not None

    disk.free_bytes = None
    part = await client.add_part(upload.id, b"123456")
    disk.free_bytes = 3
    with pytest.raises(errors.StorageFailed):
        await client.complete(upload.id, part)
    assert len(running.stored()) == 1
    assert list((await client.page()).files) == []

    disk.free_bytes = None
    assert (await client.complete(upload.id, part)).file.size_bytes == 6


async def test_the_bytes_of_a_cancelled_call_are_removed(running: RunningControl) -> None:
    async def half_a_file() -> AsyncIterator[file_service_pb2.CreateFileRequest]:
        header = file_pb2.FileHeader(filename="a", purpose=USER_DATA)
        yield file_service_pb2.CreateFileRequest(header=header)
        yield file_service_pb2.CreateFileRequest(chunk=b"x" * 2000)
        await asyncio.Event().wait()

    call = running.client.files.CreateFile(half_a_file())
    await running.blobs.started.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await running.blobs.closed.wait()

    assert running.stored() == []


async def test_blobs_without_a_row_are_swept(running: RunningControl) -> None:
    """After the grace period, complete or not."""
    file = await running.client.create(b"kept")
    async with running.blobs.create() as sink:
        await sink.write(b"orphan")
        await sink.commit()
    (running.folder / "blobs" / "incoming" / ("0f" * 16)).write_bytes(b"half")
    running.clock.advance(minutes=5)
    assert (await running.control.sweeper.sweep()).orphans == 0
    running.clock.advance(hours=3)

    assert (await running.control.sweeper.sweep()).orphans == 2
    assert await running.client.read(file.id) == b"kept"
    assert len(running.stored()) == 1


async def lose_blob(running: RunningControl, how: str) -> str:
    """Store a file and lose its bytes; return the id of the file."""
    file = await running.client.create()
    (path,) = running.stored()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(b"")
    return file.id


@pytest.mark.parametrize("how", ["gone", "empty"])
async def test_lost_bytes_are_an_error_with_its_cause(running: RunningControl, how: str) -> None:
    """Over gRPC before the first message, over HTTP 500 with the reason instead of an empty 200.
    The file is not reported as deleted, and can still be deleted."""
    file_id = await lose_blob(running, how)
    request = file_service_pb2.DownloadFileRequest(file_id=file_id)
    with pytest.raises(errors.BlobMissing, match="corral check"), translate_errors():
        await running.client.files.DownloadFile(request, metadata=running.client.metadata).read()
    async with run_gateway(control_target=running.target) as gateway, gateway.client() as http:
        content = await http.get(f"/v1/files/{file_id}/content")
        part = await http.get(f"/v1/files/{file_id}/content", headers={"range": "bytes=1-2"})
        deleted = await http.delete(f"/v1/files/{file_id}")
        gone = await http.get(f"/v1/files/{file_id}/content")

    for answer in (content, part):
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "blob_missing")
    assert (deleted.status_code, gone.status_code) == (200, 404)


async def test_concurrent_writers_succeed(running: RunningControl) -> None:
    """None gets the error that the database is locked."""
    files = await asyncio.gather(
        *(running.client.create(filename=str(number)) for number in range(WRITERS))
    )
    await asyncio.gather(*(running.client.delete(file.id) for file in files[::2]))

    remaining = (await running.client.page()).files
    assert {file.id for file in remaining} == {file.id for file in files[1::2]}


async def test_processes_share_a_postgres_database(tmp_path: Path, postgres_url: str) -> None:
    """Files and page tokens of one are valid in the other."""
    async with (
        run_control(tmp_path, postgres_url) as one,
        run_control(tmp_path, postgres_url) as two,
    ):
        files = [await one.client.create(), await two.client.create()]
        page = await one.client.page(page_size=1)
        rest = await two.client.page(page_token=page.next_page_token)

        assert {file.id for file in (*page.files, *rest.files)} == {file.id for file in files}
        assert await two.client.read(files[0].id) == b"hello"


async def test_data_survives_a_restart(tmp_path: Path) -> None:
    """Files, parts and idempotency records."""
    async with run_control(tmp_path) as before:
        file = await before.client.create(b"kept", request_id="one")
        upload = await before.client.create_upload(4)
        part = await before.client.add_part(upload.id, b"abcd")

    async with run_control(tmp_path) as after:
        assert await after.client.read(file.id) == b"kept"
        assert await after.client.create(b"kept", request_id="one") == file
        assert (await after.client.complete(upload.id, part)).file.size_bytes == 4


async def test_an_unusable_database_raises_an_error(tmp_path: Path) -> None:
    """The StartupError names the problem. Other kinds of URLs are refused with the settings."""
    with pytest.raises(StartupError, match="cannot be used"):
        async with run_control(tmp_path, "postgresql://nobody@127.0.0.1:1/x"):
            pass


async def test_the_clock_of_the_process_alone_may_be_wrong(tmp_path: Path) -> None:
    """Objects have its time, leases of jobs that of the database."""
    wrong = datetime(2031, 1, 1, tzinfo=UTC)
    settings = (await Installation.make(tmp_path, None)).settings
    async with (
        build(settings, sandbox=InlineJobs(), process_clock=lambda: wrong) as control,
        open_channel(str(control.server.address)) as channel,
    ):
        file = await Client(channel).create(b"a")

        assert file.create_time.ToDatetime(UTC) == wrong
        assert control.sweeper.clock() == wrong
        assert await control.sweeper.transactions.read(lambda tx: tx.now()) < wrong
