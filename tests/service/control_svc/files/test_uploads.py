"""Uploads over gRPC, on both databases."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from corral.control.v1 import upload_service_pb2

from svc_kit import errors
from svc_kit.rpc.client import translate_errors
from tests.support.control import BATCH, RunningControl, run_control

Upload = upload_service_pb2.Upload
Piece = upload_service_pb2.AddUploadPartRequest


async def test_parts_become_a_file(running: RunningControl) -> None:
    """In the order of the completion; what was not named is dropped, and only the file stays."""
    client = running.client
    upload = await client.create_upload(8, purpose=BATCH, filename="x.jsonl")
    first = await client.add_part(upload.id, b"ab", b"cd")
    await client.add_part(upload.id, b"unused")
    second = await client.add_part(upload.id, b"efgh")
    md5 = hashlib.md5(b"efghabcd", usedforsecurity=False).hexdigest()

    done = await client.complete(upload.id, second, first, md5=md5.upper())

    assert upload.state == Upload.STATE_PENDING
    assert done.state == Upload.STATE_COMPLETED
    assert (done.file.filename, done.file.purpose, done.file.size_bytes) == ("x.jsonl", BATCH, 8)
    assert done.file.sha256 == hashlib.sha256(b"efghabcd").hexdigest()
    assert done.file.HasField("expire_time")
    assert await client.read(done.file.id) == b"efghabcd"
    assert len(running.stored()) == 1


async def test_a_completion_can_be_repeated(running: RunningControl) -> None:
    """A client whose answer was lost gets it; another completion is refused."""
    upload = await running.client.create_upload(1)
    part = await running.client.add_part(upload.id, b"a")
    done = await running.client.complete(upload.id, part)

    assert await running.client.complete(upload.id, part) == done
    with pytest.raises(errors.UploadNotPending, match="completed"):
        await running.client.complete(upload.id, "part_other")
    with pytest.raises(errors.UploadNotPending):
        await running.client.add_part(upload.id, b"b")
    with pytest.raises(errors.UploadNotPending):
        await running.client.cancel(upload.id)


async def test_of_several_completions_at_once_one_makes_the_file(running: RunningControl) -> None:
    """All are answered with it, and no second copy is ever begun."""
    upload = await running.client.create_upload(3)
    parts = [await running.client.add_part(upload.id, text) for text in (b"a", b"b", b"c")]
    blobs = running.blobs
    blobs.started.clear()
    blobs.gate.clear()

    first = asyncio.create_task(running.client.complete(upload.id, *parts))
    await blobs.started.wait()
    blobs.started.clear()
    rest = [asyncio.create_task(running.client.complete(upload.id, *parts)) for _ in range(3)]
    for _ in range(5):  # by then the others have read what they read first
        await running.client.get_upload(upload.id)
    assert not blobs.started.is_set()
    blobs.gate.set()
    done = await asyncio.gather(first, *rest)

    (file,) = (await running.client.page()).files
    assert {each.file.id for each in done} == {file.id}
    assert await running.client.read(file.id) == b"abc"
    assert len(running.stored()) == 1


async def test_what_does_not_fit_together_leaves_the_upload_as_it_was(
    running: RunningControl,
) -> None:
    """Another size, another checksum, unknown parts, a part twice; then it can be completed."""
    client = running.client
    upload = await client.create_upload(4)
    part = await client.add_part(upload.id, b"abcd")
    short = await client.add_part(upload.id, b"a")

    with pytest.raises(errors.SizeMismatch):
        await client.complete(upload.id, short)
    with pytest.raises(errors.ChecksumMismatch):
        await client.complete(upload.id, part, md5="0" * 32)
    for part_ids, md5, name in (
        ((), "", "part_ids"),
        ((short, "part_x"), "", "part_ids[1]"),
        ((short, short), "", "part_ids[1]"),
        ((part,), "xyz", "md5"),
    ):
        with pytest.raises((errors.InvalidField, errors.MissingField)) as refused:
            await client.complete(upload.id, *part_ids, md5=md5)
        assert refused.value.field == name
    assert (await client.complete(upload.id, part)).state == Upload.STATE_COMPLETED


async def test_parts_have_limits(running: RunningControl) -> None:
    """One part's size, the sum of what waits, and at least a byte."""
    upload = await running.client.create_upload(1000)

    with pytest.raises(errors.RequestTooLarge):
        await running.client.add_part(upload.id, b"x" * 2000, b"x" * 1001)
    with pytest.raises(errors.RequestTooLarge):
        await running.client.add_part(upload.id, b"x" * 2001)
    with pytest.raises(errors.MissingField):
        await running.client.add_part(upload.id)
    await running.client.add_part(upload.id, b"x" * 1500)
    with pytest.raises(errors.RequestTooLarge):
        await running.client.add_part(upload.id, b"x" * 501)
    assert len(running.stored()) == 1


async def part_around(
    running: RunningControl, upload_id: str, meanwhile: Callable[[], Awaitable[object]]
) -> None:
    """A part of 1500 bytes, sent while something else happens to its upload."""
    done = asyncio.Event()

    async def pieces() -> AsyncIterator[Piece]:
        yield Piece(upload_id=upload_id)
        yield Piece(chunk=b"x" * 1000)
        await done.wait()
        yield Piece(chunk=b"x" * 500)

    with translate_errors():
        call = running.client.uploads.AddUploadPart(pieces())
        await running.blobs.started.wait()
        await meanwhile()
        done.set()
        await call


async def test_parts_that_come_at_once_share_the_limits(running: RunningControl) -> None:
    """What was free when a part began may be taken when it ends; its bytes go at once."""
    upload = await running.client.create_upload(1000)

    with pytest.raises(errors.RequestTooLarge):
        await part_around(
            running, upload.id, lambda: running.client.add_part(upload.id, b"x" * 1500)
        )
    assert len(running.stored()) == 1


async def test_a_part_of_an_upload_that_was_cancelled_meanwhile_goes(
    running: RunningControl,
) -> None:
    """The sweeper has nothing to find."""
    upload = await running.client.create_upload(1000)

    with pytest.raises(errors.UploadNotPending, match="cancelled"):
        await part_around(running, upload.id, lambda: running.client.cancel(upload.id))
    assert running.stored() == []


async def test_a_cancelled_upload_frees_its_parts(running: RunningControl) -> None:
    """Once and for all; a second time changes nothing."""
    upload = await running.client.create_upload(1)
    await running.client.add_part(upload.id, b"a")

    assert (await running.client.cancel(upload.id)).state == Upload.STATE_CANCELLED
    assert running.stored() == []
    assert (await running.client.cancel(upload.id)).state == Upload.STATE_CANCELLED
    with pytest.raises(errors.UploadNotPending, match="cancelled"):
        await running.client.add_part(upload.id, b"b")


async def test_an_upload_expires_after_an_hour(running: RunningControl) -> None:
    """It takes nothing any more at once, and the sweeper frees its parts."""
    upload = await running.client.create_upload(1)
    part = await running.client.add_part(upload.id, b"a")
    running.clock.advance(hours=1)

    assert (await running.client.get_upload(upload.id)).state == Upload.STATE_EXPIRED
    with pytest.raises(errors.UploadNotPending, match="expired"):
        await running.client.complete(upload.id, part)
    assert (await running.control.sweeper.sweep()).expired == 1
    assert running.stored() == []
    assert (await running.client.get_upload(upload.id)).state == Upload.STATE_EXPIRED


async def test_the_file_of_an_upload_may_go_before_it(running: RunningControl) -> None:
    """The upload stays completed, without a file."""
    upload = await running.client.create_upload(1)
    part = await running.client.add_part(upload.id, b"a")
    done = await running.client.complete(upload.id, part)
    await running.client.delete(done.file.id)

    left = await running.client.get_upload(upload.id)

    assert left.state == Upload.STATE_COMPLETED
    assert not left.HasField("file")


async def test_an_announcement_that_is_sent_again_is_one_upload(running: RunningControl) -> None:
    """Another one under the same id is refused."""
    first = await running.client.create_upload(5, request_id="one")

    assert await running.client.create_upload(5, request_id="one") == first
    with pytest.raises(errors.RequestIdReused):
        await running.client.create_upload(6, request_id="one")


BAD_UPLOADS: list[tuple[dict[str, Any], type[errors.DomainError], str | None]] = [
    ({"size_bytes": 0}, errors.OutOfRange, "size_bytes"),
    ({"size_bytes": -5}, errors.OutOfRange, "size_bytes"),
    ({"size_bytes": 8001}, errors.RequestTooLarge, None),
    ({"size_bytes": 2001, "purpose": BATCH}, errors.RequestTooLarge, None),
    ({"size_bytes": 1, "filename": ""}, errors.MissingField, "filename"),
    ({"size_bytes": 1, "purpose": 0}, errors.MissingField, "purpose"),
    ({"size_bytes": 1, "mime_type": ""}, errors.MissingField, "mime_type"),
    ({"size_bytes": 1, "mime_type": "\x7f"}, errors.InvalidField, "mime_type"),
]


async def test_a_bad_announcement_is_refused_with_its_field(
    running: RunningControl, subtests: pytest.Subtests
) -> None:
    """Before any part is sent."""
    for fields, kind, name in BAD_UPLOADS:
        with subtests.test(fields=fields):
            with pytest.raises(kind) as refused:
                await running.client.create_upload(**fields)
            assert refused.value.field == name
    for hostile in ("", "upload_", "a\0b", "upload_" + "0" * 32):
        with pytest.raises((errors.UploadNotFound, errors.MissingField)):
            await running.client.add_part(hostile, b"x")
        with pytest.raises(errors.UploadNotFound):
            await running.client.cancel(hostile)


async def test_two_processes_complete_one_upload_at_once(tmp_path: Path, postgres_url: str) -> None:
    """Both join the parts; one file is made, both are told of it, and one copy of the bytes
    stays."""
    async with (
        run_control(tmp_path, postgres_url) as one,
        run_control(tmp_path, postgres_url) as two,
    ):
        upload = await one.client.create_upload(4)
        part = await one.client.add_part(upload.id, b"abcd")
        for control in (one, two):
            control.blobs.started.clear()
            control.blobs.gate.clear()
        completing = [
            asyncio.ensure_future(control.client.complete(upload.id, part))
            for control in (one, two)
        ]
        for control in (one, two):
            await control.blobs.started.wait()
        for control in (one, two):
            control.blobs.gate.set()
        first, second = await asyncio.gather(*completing)

        assert first.file == second.file
        assert await two.client.read(first.file.id) == b"abcd"
        assert len(list((await one.client.page()).files)) == 1
        assert len(one.stored()) == 1
