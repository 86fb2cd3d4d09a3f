"""UploadService over gRPC, on SQLite and PostgreSQL."""

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
PartRequest = upload_service_pb2.AddUploadPartRequest


async def test_completing_an_upload_joins_the_named_parts_to_a_file(
    running: RunningControl,
) -> None:
    """Parts are joined in the order of the request; other parts are deleted."""
    client = running.client
    upload = await client.create_upload(8, purpose=BATCH, filename="x.jsonl")
    first = await client.add_part(upload.id, b"ab", b"cd")
    await client.add_part(upload.id, b"unused")
    second = await client.add_part(upload.id, b"efgh")
    md5 = hashlib.md5(b"efghabcd", usedforsecurity=False).hexdigest()

    completed = await client.complete(upload.id, second, first, md5=md5.upper())

    assert upload.state == Upload.STATE_PENDING
    assert completed.state == Upload.STATE_COMPLETED
    file = completed.file
    assert (file.filename, file.purpose, file.size_bytes) == ("x.jsonl", BATCH, 8)
    assert file.sha256 == hashlib.sha256(b"efghabcd").hexdigest()
    assert file.HasField("expire_time")
    assert await client.read(file.id) == b"efghabcd"
    assert len(running.stored()) == 1


async def test_a_repeated_completion_returns_the_same_result(running: RunningControl) -> None:
    """A completion with other parts, a new part and a cancellation are refused."""
    upload = await running.client.create_upload(1)
    part = await running.client.add_part(upload.id, b"a")
    completed = await running.client.complete(upload.id, part)

    assert await running.client.complete(upload.id, part) == completed
    with pytest.raises(errors.UploadNotPending, match="completed"):
        await running.client.complete(upload.id, "part_other")
    with pytest.raises(errors.UploadNotPending):
        await running.client.add_part(upload.id, b"b")
    with pytest.raises(errors.UploadNotPending):
        await running.client.cancel(upload.id)


async def test_concurrent_completions_make_one_file(running: RunningControl) -> None:
    """All return that file, and the parts are joined once."""
    upload = await running.client.create_upload(3)
    parts = [await running.client.add_part(upload.id, text) for text in (b"a", b"b", b"c")]
    blobs = running.blobs
    blobs.started.clear()
    blobs.gate.clear()

    first = asyncio.create_task(running.client.complete(upload.id, *parts))
    await blobs.started.wait()
    blobs.started.clear()
    rest = [asyncio.create_task(running.client.complete(upload.id, *parts)) for _ in range(3)]
    for _ in range(5):  # by then the other completions have read the upload's state
        await running.client.get_upload(upload.id)
    assert not blobs.started.is_set()
    blobs.gate.set()
    completed = await asyncio.gather(first, *rest)

    (file,) = (await running.client.page()).files
    assert {each.file.id for each in completed} == {file.id}
    assert await running.client.read(file.id) == b"abc"
    assert len(running.stored()) == 1


async def test_an_upload_stays_pending_after_an_invalid_completion(
    running: RunningControl,
) -> None:
    """Wrong size or checksum, unknown parts and repeated parts are refused."""
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
        with pytest.raises((errors.InvalidField, errors.MissingField)) as error:
            await client.complete(upload.id, *part_ids, md5=md5)
        assert error.value.field == name
    assert (await client.complete(upload.id, part)).state == Upload.STATE_COMPLETED


async def test_parts_above_the_limits_are_refused(running: RunningControl) -> None:
    """Limits: bytes per part, bytes of all pending parts, and at least one byte."""
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


async def add_part_during(
    running: RunningControl, upload_id: str, concurrent_call: Callable[[], Awaitable[object]]
) -> None:
    """Add a part of 1500 bytes; run `concurrent_call` after its first 1000 bytes."""
    resume = asyncio.Event()

    async def part_requests() -> AsyncIterator[PartRequest]:
        yield PartRequest(upload_id=upload_id)
        yield PartRequest(chunk=b"x" * 1000)
        await resume.wait()
        yield PartRequest(chunk=b"x" * 500)

    with translate_errors():
        call = running.client.uploads.AddUploadPart(part_requests())
        await running.blobs.started.wait()
        await concurrent_call()
        resume.set()
        await call


async def test_a_client_that_is_still_writing_gets_the_reason(running: RunningControl) -> None:
    """Not INTERNAL, which grpc.aio reports if the status of a refused call arrives meanwhile."""

    async def add_part() -> None:
        with translate_errors():
            call = running.client.uploads.AddUploadPart()
            await call.write(PartRequest(upload_id="0"))
            for _ in range(50):
                await call.write(PartRequest(chunk=b"x" * 1000))
            await call.done_writing()
            await call

    results = await asyncio.gather(*(add_part() for _ in range(10)), return_exceptions=True)

    assert {type(each) for each in results} == {errors.UploadNotFound}


async def test_concurrent_parts_share_the_limit_of_pending_bytes(running: RunningControl) -> None:
    """A part that no longer fits when it ends is refused, and its bytes are deleted at once."""
    upload = await running.client.create_upload(1000)

    with pytest.raises(errors.RequestTooLarge):
        await add_part_during(
            running, upload.id, lambda: running.client.add_part(upload.id, b"x" * 1500)
        )
    assert len(running.stored()) == 1


async def test_a_part_is_refused_if_its_upload_is_cancelled_meanwhile(
    running: RunningControl,
) -> None:
    """Its bytes are deleted at once."""
    upload = await running.client.create_upload(1000)

    with pytest.raises(errors.UploadNotPending, match="cancelled"):
        await add_part_during(running, upload.id, lambda: running.client.cancel(upload.id))
    assert running.stored() == []


async def test_cancelling_an_upload_deletes_its_parts(running: RunningControl) -> None:
    """Cancelling it again changes nothing; new parts are refused."""
    upload = await running.client.create_upload(1)
    await running.client.add_part(upload.id, b"a")

    assert (await running.client.cancel(upload.id)).state == Upload.STATE_CANCELLED
    assert running.stored() == []
    assert (await running.client.cancel(upload.id)).state == Upload.STATE_CANCELLED
    with pytest.raises(errors.UploadNotPending, match="cancelled"):
        await running.client.add_part(upload.id, b"b")


async def test_an_upload_expires_after_an_hour(running: RunningControl) -> None:
    """It cannot be completed then, and the sweeper deletes its parts."""
    upload = await running.client.create_upload(1)
    part = await running.client.add_part(upload.id, b"a")
    running.clock.advance(hours=1)

    assert (await running.client.get_upload(upload.id)).state == Upload.STATE_EXPIRED
    with pytest.raises(errors.UploadNotPending, match="expired"):
        await running.client.complete(upload.id, part)
    assert (await running.control.sweeper.sweep()).expired == 1
    assert running.stored() == []
    assert (await running.client.get_upload(upload.id)).state == Upload.STATE_EXPIRED


async def test_an_upload_stays_completed_after_its_file_is_deleted(running: RunningControl) -> None:
    """Its `file` is unset."""
    upload = await running.client.create_upload(1)
    part = await running.client.add_part(upload.id, b"a")
    completed = await running.client.complete(upload.id, part)
    await running.client.delete(completed.file.id)

    upload = await running.client.get_upload(upload.id)

    assert upload.state == Upload.STATE_COMPLETED
    assert not upload.HasField("file")


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


async def test_an_invalid_upload_request_is_refused_with_its_field(
    running: RunningControl, subtests: pytest.Subtests
) -> None:
    """Malformed and unknown upload ids are not found."""
    for fields, kind, name in BAD_UPLOADS:
        with subtests.test(fields=fields):
            with pytest.raises(kind) as error:
                await running.client.create_upload(**fields)
            assert error.value.field == name
    for upload_id in ("", "upload_", "a\0b", "upload_" + "0" * 32):
        with pytest.raises((errors.UploadNotFound, errors.MissingField)):
            await running.client.add_part(upload_id, b"x")
        with pytest.raises(errors.UploadNotFound):
            await running.client.cancel(upload_id)


async def test_two_processes_complete_one_upload_at_the_same_time(
    tmp_path: Path, postgres_url: str
) -> None:
    """Both join the parts and return the same file; one copy of the bytes is kept."""
    async with (
        run_control(tmp_path, postgres_url) as one,
        run_control(tmp_path, postgres_url) as two,
    ):
        upload = await one.client.create_upload(4)
        part = await one.client.add_part(upload.id, b"abcd")
        for control in (one, two):
            control.blobs.started.clear()
            control.blobs.gate.clear()
        completions = [
            asyncio.ensure_future(control.client.complete(upload.id, part))
            for control in (one, two)
        ]
        for control in (one, two):
            await control.blobs.started.wait()
        for control in (one, two):
            control.blobs.gate.set()
        first, second = await asyncio.gather(*completions)

        assert first.file == second.file
        assert await two.client.read(first.file.id) == b"abcd"
        assert len(list((await one.client.page()).files)) == 1
        assert len(one.stored()) == 1
