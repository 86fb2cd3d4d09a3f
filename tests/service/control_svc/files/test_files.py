"""FileService over gRPC, on SQLite and PostgreSQL."""

import asyncio
import hashlib
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pytest
from corral.control.v1 import file_pb2, listing_pb2
from google.protobuf.duration_pb2 import Duration

from svc_kit import errors
from tests.support.control import BATCH, USER_DATA, Client, RunningControl, run_control

HOUR_S = 3600
OLDEST_FIRST = listing_pb2.LIST_ORDER_OLDEST_FIRST


def make_header(**fields: Any) -> file_pb2.FileHeader:
    """Build a valid header; `fields` override its fields."""
    return file_pb2.FileHeader(**{"filename": "a.txt", "purpose": USER_DATA, **fields})


async def list_filenames(client: Client, **request: Any) -> list[str]:
    return [file.filename for file in (await client.page(**request)).files]


async def test_a_created_file_has_its_metadata_and_bytes(running: RunningControl) -> None:
    """Name, purpose, size, digest and creation time are stored with the bytes."""
    content = bytes(range(256)) * 5

    file = await running.client.create(content, filename="dir/ünï.bin", purpose=BATCH)

    assert file == await running.client.get(file.id)
    assert file.id.startswith("file-")
    assert (file.filename, file.purpose, file.size_bytes) == ("dir/ünï.bin", BATCH, 1280)
    assert file.sha256 == hashlib.sha256(content).hexdigest()
    assert file.create_time.ToDatetime(UTC) == running.clock.now
    assert await running.client.read(file.id) == content


async def test_a_file_can_be_empty(running: RunningControl) -> None:
    """A header without bytes creates a file of size 0."""
    file = await running.client.send([make_header()])

    assert file.size_bytes == 0
    assert await running.client.read(file.id) == b""


async def test_the_header_may_come_after_the_bytes(running: RunningControl) -> None:
    """If several headers are sent, the last one counts."""
    first = make_header(filename="first")

    file = await running.client.send([b"ab", first, b"cd", make_header(filename="last")])

    assert (file.filename, await running.client.read(file.id)) == ("last", b"abcd")


async def test_read_returns_the_requested_range(running: RunningControl) -> None:
    """A range past the end is cut; an offset past the end or below 0 is refused."""
    file = await running.client.create(b"0123456789")

    assert await running.client.read(file.id, offset=3, length=4) == b"3456"
    assert await running.client.read(file.id, offset=8, length=100) == b"89"
    assert await running.client.read(file.id, offset=10) == b""
    with pytest.raises(errors.RangeNotSatisfiable):
        await running.client.read(file.id, offset=11)
    with pytest.raises(errors.OutOfRange):
        await running.client.read(file.id, offset=-1)


async def test_deleting_a_file_deletes_its_bytes(running: RunningControl) -> None:
    """The file is not listed; getting, reading or deleting it raises FileNotFound."""
    file = await running.client.create()
    await running.client.delete(file.id)

    assert running.stored() == []
    assert await list_filenames(running.client) == []
    for call in (running.client.get, running.client.read, running.client.delete):
        with pytest.raises(errors.FileNotFound, match=f"No such File object: {file.id}"):
            await call(file.id)


async def test_lists_continue_after_a_page_token_or_a_cursor(running: RunningControl) -> None:
    """In both orders, and after the last file of the page was deleted."""
    files = [await running.client.create(filename=f"{number}") for number in range(5)]

    page = await running.client.page(page_size=2)
    assert [file.filename for file in page.files] == ["4", "3"]
    await running.client.delete(files[3].id)
    token = page.next_page_token
    assert await list_filenames(running.client, page_size=2, page_token=token) == ["2", "1"]
    assert await list_filenames(running.client, after=files[3].id) == ["2", "1", "0"]
    assert await list_filenames(running.client, after=files[3].id, order=OLDEST_FIRST) == ["4"]
    assert (await running.client.page(page_size=4)).next_page_token == ""


async def test_lists_are_filtered_by_purpose(running: RunningControl) -> None:
    """The filter is applied before the page size."""
    await running.client.create(filename="batch", purpose=BATCH)
    await running.client.create(filename="data")

    assert await list_filenames(running.client, page_size=1, purpose=BATCH) == ["batch"]


async def test_a_page_token_of_another_list_is_refused(running: RunningControl) -> None:
    """Another filter or order, a changed token and a malformed token raise InvalidField."""
    for _ in range(3):
        await running.client.create()
    token = (await running.client.page(page_size=1)).next_page_token

    for request in (
        {"page_token": token, "purpose": USER_DATA},
        {"page_token": token, "order": OLDEST_FIRST},
        {"page_token": token[:-4] + "AAAA"},
        {"page_token": "nonsense"},
        {"page_token": "é"},
    ):
        with pytest.raises(errors.InvalidField, match="page_token"):
            await running.client.page(**request)


async def test_expired_files_are_hidden_and_then_swept(running: RunningControl) -> None:
    """Expiry: `ttl` if set, 30 days for batch input, otherwise never."""
    short = await running.client.create(ttl=Duration(seconds=HOUR_S), filename="short")
    batch = await running.client.create(purpose=BATCH, filename="batch")
    await running.client.create(filename="kept")

    assert short.expire_time.ToDatetime(UTC) == running.clock.now + timedelta(hours=1)
    running.clock.advance(hours=1)
    assert await list_filenames(running.client) == ["kept", "batch"]
    with pytest.raises(errors.FileNotFound):
        await running.client.get(short.id)
    with pytest.raises(errors.FileNotFound):
        await running.client.delete(short.id)
    running.clock.advance(days=30)
    assert (await running.control.sweeper.sweep()).expired == 2
    assert await list_filenames(running.client) == ["kept"]
    with pytest.raises(errors.FileNotFound):
        await running.client.read(batch.id)
    assert len(running.stored()) == 1


async def test_the_service_sweeps_by_itself(tmp_path: Path) -> None:
    """At its interval, also what expires after the first round."""
    async with run_control(tmp_path, sweep_interval_s=0.05) as running:
        for _ in range(2):
            await running.client.create(ttl=Duration(seconds=HOUR_S))
            running.clock.advance(hours=1)
            while running.stored():
                await running.client.page()  # a round trip


async def test_an_upload_above_the_size_limit_of_its_purpose_is_refused(
    running: RunningControl,
) -> None:
    """Also if the header comes last; an announced size is checked before the bytes arrive."""
    chunk = b"x" * 1500
    too_large: list[list[file_pb2.FileHeader | bytes]] = [
        [make_header(), chunk, chunk, chunk],
        [chunk, chunk, chunk],
        [make_header(purpose=BATCH), chunk, chunk],
        [chunk, chunk, make_header(purpose=BATCH)],
        [make_header(size_bytes=4001)],
    ]
    for pieces in too_large:
        with pytest.raises(errors.RequestTooLarge):
            await running.client.send(pieces)
    assert running.stored() == []


async def test_a_size_or_checksum_mismatch_is_refused(running: RunningControl) -> None:
    """Nothing is stored; an upper-case checksum is accepted."""
    digest = hashlib.sha256(b"hello").hexdigest()

    with pytest.raises(errors.SizeMismatch):
        await running.client.create(b"hello", size_bytes=6)
    with pytest.raises(errors.ChecksumMismatch):
        await running.client.create(b"hallo", sha256=digest)
    assert running.stored() == []
    assert (await running.client.create(sha256=digest.upper(), size_bytes=5)).sha256 == digest


BAD_HEADERS: list[tuple[dict[str, Any], type[errors.DomainError], str]] = [
    ({"filename": ""}, errors.MissingField, "filename"),
    ({"filename": "x" * 256}, errors.TooLong, "filename"),
    ({"filename": "a\0b"}, errors.InvalidField, "filename"),
    ({"filename": "a\r\nset-cookie: x"}, errors.InvalidField, "filename"),
    ({"purpose": 0}, errors.MissingField, "purpose"),
    ({"purpose": 99}, errors.InvalidField, "purpose"),
    ({"purpose": file_pb2.FILE_PURPOSE_BATCH_OUTPUT}, errors.InvalidField, "purpose"),
    ({"ttl": Duration(seconds=HOUR_S - 1)}, errors.OutOfRange, "ttl"),
    ({"ttl": Duration(seconds=30 * 24 * HOUR_S + 1)}, errors.OutOfRange, "ttl"),
    ({"ttl": Duration(seconds=2**62)}, errors.OutOfRange, "ttl"),
    ({"size_bytes": -1}, errors.OutOfRange, "size_bytes"),
    ({"sha256": "g" * 64}, errors.InvalidField, "sha256"),
    ({"request_id": "x" * 129}, errors.TooLong, "request_id"),
    ({"request_id": "\0"}, errors.InvalidField, "request_id"),
]


async def test_an_invalid_header_is_refused_with_its_field(
    running: RunningControl, subtests: pytest.Subtests
) -> None:
    """A stream without a header is refused too; nothing is stored."""
    for fields, kind, name in BAD_HEADERS:
        with subtests.test(fields=fields):
            with pytest.raises(kind) as error:
                await running.client.send([make_header(**fields), b"x"])
            assert error.value.field == name
    with pytest.raises(errors.MissingField):
        await running.client.send([b"bytes without a header"])
    assert running.stored() == []


async def test_invalid_ids_are_not_found_and_invalid_list_requests_refused(
    running: RunningControl,
) -> None:
    """Malformed and unknown ids raise FileNotFound."""
    for file_id in ("", "file-", "../../etc/passwd", "a\0b", "x" * 100_000, "file-" + "0" * 32):
        with pytest.raises(errors.FileNotFound):
            await running.client.get(file_id)
    for request in ({"after": "x"}, {"order": 9}, {"purpose": 99}):
        with pytest.raises(errors.InvalidField):
            await running.client.page(**request)
    with pytest.raises(errors.OutOfRange):
        await running.client.page(page_size=-1)


async def test_a_repeated_request_whose_file_was_deleted_is_not_found(
    running: RunningControl,
) -> None:
    """No second file is created, and nothing stays stored."""
    file = await running.client.create(request_id="one")
    await running.client.delete(file.id)

    with pytest.raises(errors.FileNotFound):
        await running.client.create(request_id="one")
    assert running.stored() == []


async def test_a_repeated_request_id_returns_the_first_file(running: RunningControl) -> None:
    """Concurrent repeats create one file; other content is refused for a day."""
    client, clock = running.client, running.clock
    concurrent = await asyncio.gather(*(client.create(request_id="one") for _ in range(4)))
    repeated = await client.create(request_id="one")

    assert {file.id for file in concurrent} == {repeated.id}
    assert len(await list_filenames(client)) == len(running.stored()) == 1
    with pytest.raises(errors.RequestIdReused):
        await client.create(b"other", request_id="one")
    assert len(running.stored()) == 1
    clock.advance(days=1)
    assert (await client.create(b"other", request_id="one")).id != repeated.id
    clock.advance(days=2)
    await running.control.sweeper.sweep()
    assert (await client.create(request_id="one")).id not in {repeated.id}


async def test_page_tokens_and_request_ids_are_bound_to_their_project(
    running: RunningControl,
) -> None:
    """Another project's token is refused; its request id creates a new file."""
    mine, other = running.of_project("mine"), running.of_project("other")
    files = [await mine.create(request_id="one"), await mine.create()]
    token = (await mine.page(page_size=1)).next_page_token

    with pytest.raises(errors.InvalidField, match="page_token"):
        await other.page(page_token=token)
    assert (await other.create(request_id="one")).id not in {file.id for file in files}
    assert [file.id for file in (await other.page()).files] != [files[0].id]
