"""What is left when a disk is full, a client leaves, a process dies or many write at once."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from corral.control.v1 import file_pb2, file_service_pb2

from svc_kit import errors
from svc_kit.lifecycle import StartupError
from tests.support.control import USER_DATA, RunningControl, a_control

WRITERS = 50


async def test_a_full_disk_leaves_nothing_half_written(running: RunningControl) -> None:
    """A clear error at each step; once there is room again, the same step succeeds."""
    client, disk = running.client, running.blobs
    upload = await client.create_upload(6)
    disk.free_bytes = 3
    with pytest.raises(errors.StorageFailed) as refused:
        await client.create(b"123456")
    with pytest.raises(errors.StorageFailed):
        await client.add_part(upload.id, b"123456")
    assert running.stored() == []
    assert refused.value.retry_after is not None

    disk.free_bytes = None
    part = await client.add_part(upload.id, b"123456")
    disk.free_bytes = 3
    with pytest.raises(errors.StorageFailed):
        await client.complete(upload.id, part)
    assert len(running.stored()) == 1
    assert list((await client.page()).files) == []

    disk.free_bytes = None
    assert (await client.complete(upload.id, part)).file.size_bytes == 6


async def test_a_client_that_leaves_leaves_nothing(running: RunningControl) -> None:
    """Its bytes are removed when its call ends."""

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


async def test_bytes_without_a_row_are_swept(running: RunningControl) -> None:
    """What a crash leaves goes after the grace, complete or not; what has a row stays."""
    file = await running.client.create(b"kept")
    async with running.blobs.create() as sink:
        await sink.write(b"orphan")
        await sink.commit()
    (running.folder / "blobs" / "incoming" / "died").write_bytes(b"half")
    running.clock.advance(minutes=5)
    assert (await running.control.sweeper.sweep()).orphans == 0
    running.clock.advance(hours=3)

    assert (await running.control.sweeper.sweep()).orphans == 2
    assert await running.client.read(file.id) == b"kept"
    assert len(running.stored()) == 1


async def test_lost_bytes_are_a_defect_and_no_missing_file(running: RunningControl) -> None:
    """A file whose bytes somebody removed is not answered as if it had never been."""
    file = await running.client.create()
    (path,) = running.stored()
    path.unlink()

    with pytest.raises(errors.InternalError):
        await running.client.read(file.id)


async def test_many_writers_wait_for_each_other(running: RunningControl) -> None:
    """Fifty at once: every one is served, and none is told that the database is locked."""
    made = await asyncio.gather(
        *(running.client.create(filename=str(number)) for number in range(WRITERS))
    )
    await asyncio.gather(*(running.client.delete(file.id) for file in made[::2]))

    left = (await running.client.page()).files
    assert {file.id for file in left} == {file.id for file in made[1::2]}


async def test_a_data_folder_has_one_process(tmp_path: Path) -> None:
    """A second one on the same SQLite file is refused in a line that says what to do."""
    async with a_control(tmp_path):
        with pytest.raises(StartupError, match="another control process uses the data folder"):
            async with a_control(tmp_path):
                pass
    async with a_control(tmp_path):
        pass


async def test_several_processes_share_a_postgres(tmp_path: Path, postgres_url: str) -> None:
    """What one has stored the other serves; page tokens of one fit the other."""
    async with a_control(tmp_path, postgres_url) as one, a_control(tmp_path, postgres_url) as two:
        files = [await one.client.create(), await two.client.create()]
        page = await one.client.page(page_size=1)
        rest = await two.client.page(page_token=page.next_page_token)

        assert {file.id for file in (*page.files, *rest.files)} == {file.id for file in files}
        assert await two.client.read(files[0].id) == b"hello"


async def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    """Files, parts and the memory of requests."""
    async with a_control(tmp_path) as before:
        file = await before.client.create(b"kept", request_id="one")
        upload = await before.client.create_upload(4)
        part = await before.client.add_part(upload.id, b"abcd")

    async with a_control(tmp_path) as after:
        assert await after.client.read(file.id) == b"kept"
        assert await after.client.create(b"kept", request_id="one") == file
        assert (await after.client.complete(upload.id, part)).file.size_bytes == 4


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://localhost/x", "names mysql"),
        ("nonsense", "cannot be read"),
        ("postgresql://nobody@127.0.0.1:1/x", "cannot be used"),
        ("sqlite://", "names sqlite"),
    ],
)
async def test_a_database_that_cannot_be_used_is_one_line(
    tmp_path: Path, url: str, words: str
) -> None:
    """What is wrong, without a traceback."""
    with pytest.raises(StartupError, match=words):
        async with a_control(tmp_path, url):
            pass
