"""Files over gRPC, on both databases."""

import asyncio
import hashlib
from datetime import UTC, timedelta
from typing import Any

import pytest
from corral.control.v1 import file_pb2, listing_pb2
from google.protobuf.duration_pb2 import Duration

from svc_kit import errors
from tests.support.control import BATCH, USER_DATA, Client, RunningControl

HOUR_S = 3600
OLDEST_FIRST = listing_pb2.LIST_ORDER_OLDEST_FIRST


def a_header(**fields: Any) -> file_pb2.FileHeader:
    """A header that is in order but for the given fields."""
    return file_pb2.FileHeader(**{"filename": "a.txt", "purpose": USER_DATA, **fields})


async def names(client: Client, **request: Any) -> list[str]:
    """The names on a page."""
    return [file.filename for file in (await client.page(**request)).files]


async def test_a_file_comes_back_as_it_was_sent(running: RunningControl) -> None:
    """Its description says what was sent, and when; its bytes are those."""
    content = bytes(range(256)) * 5

    made = await running.client.create(content, filename="dir/ünï.bin", purpose=BATCH)

    assert made == await running.client.get(made.id)
    assert made.id.startswith("file-")
    assert (made.filename, made.purpose, made.size_bytes) == ("dir/ünï.bin", BATCH, 1280)
    assert made.sha256 == hashlib.sha256(content).hexdigest()
    assert made.create_time.ToDatetime(UTC) == running.clock.now
    assert await running.client.read(made.id) == content


async def test_an_empty_file_is_a_file(running: RunningControl) -> None:
    """It has no bytes to read."""
    made = await running.client.send([a_header()])

    assert made.size_bytes == 0
    assert await running.client.read(made.id) == b""


async def test_the_header_may_come_last(running: RunningControl) -> None:
    """A form may name the purpose after the bytes; of several headers the last one counts."""
    first = a_header(filename="first")

    made = await running.client.send([b"ab", first, b"cd", a_header(filename="last")])

    assert (made.filename, await running.client.read(made.id)) == ("last", b"abcd")


async def test_parts_of_a_file_can_be_read(running: RunningControl) -> None:
    """From an offset, up to a length; beyond the end there is nothing, and no further."""
    file = await running.client.create(b"0123456789")

    assert await running.client.read(file.id, offset=3, length=4) == b"3456"
    assert await running.client.read(file.id, offset=8, length=100) == b"89"
    assert await running.client.read(file.id, offset=10) == b""
    with pytest.raises(errors.RangeNotSatisfiable):
        await running.client.read(file.id, offset=11)
    with pytest.raises(errors.OutOfRange):
        await running.client.read(file.id, offset=-1)


async def test_a_deleted_file_is_gone_with_its_bytes(running: RunningControl) -> None:
    """It cannot be seen, read, listed or deleted again."""
    file = await running.client.create()
    await running.client.delete(file.id)

    assert running.stored() == []
    assert await names(running.client) == []
    for call in (running.client.get, running.client.read, running.client.delete):
        with pytest.raises(errors.FileNotFound, match=f"No such File object: {file.id}"):
            await call(file.id)


async def test_lists_go_on_where_a_page_ended(running: RunningControl) -> None:
    """By token and by cursor, in both orders, also after the last object was deleted."""
    files = [await running.client.create(filename=f"{number}") for number in range(5)]

    page = await running.client.page(page_size=2)
    assert [file.filename for file in page.files] == ["4", "3"]
    await running.client.delete(files[3].id)
    token = page.next_page_token
    assert await names(running.client, page_size=2, page_token=token) == ["2", "1"]
    assert await names(running.client, after=files[3].id) == ["2", "1", "0"]
    assert await names(running.client, after=files[3].id, order=OLDEST_FIRST) == ["4"]
    assert (await running.client.page(page_size=4)).next_page_token == ""


async def test_lists_are_filtered_by_purpose(running: RunningControl) -> None:
    """A filter leaves out the others, before the page is cut."""
    await running.client.create(filename="batch", purpose=BATCH)
    await running.client.create(filename="data")

    assert await names(running.client, page_size=1, purpose=BATCH) == ["batch"]


async def test_a_page_token_fits_its_own_list_only(running: RunningControl) -> None:
    """With another filter or order, or changed, it is refused instead of leaving files out."""
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


async def test_files_expire(running: RunningControl) -> None:
    """After the given time; a batch's input after 30 days; others never. Then they are swept."""
    short = await running.client.create(ttl=Duration(seconds=HOUR_S), filename="short")
    batch = await running.client.create(purpose=BATCH, filename="batch")
    await running.client.create(filename="kept")

    assert short.expire_time.ToDatetime(UTC) == running.clock.now + timedelta(hours=1)
    running.clock.advance(hours=1)
    assert await names(running.client) == ["kept", "batch"]
    with pytest.raises(errors.FileNotFound):
        await running.client.get(short.id)
    with pytest.raises(errors.FileNotFound):
        await running.client.delete(short.id)
    running.clock.advance(days=30)
    assert (await running.control.sweeper.sweep()).expired == 2
    assert await names(running.client) == ["kept"]
    with pytest.raises(errors.FileNotFound):
        await running.client.read(batch.id)
    assert len(running.stored()) == 1


async def test_limits_are_checked_while_the_bytes_stream(running: RunningControl) -> None:
    """By purpose, whenever that becomes known; an announced size even before the bytes."""
    chunk = b"x" * 1500
    too_large: list[list[file_pb2.FileHeader | bytes]] = [
        [a_header(), chunk, chunk, chunk],
        [chunk, chunk, chunk],
        [a_header(purpose=BATCH), chunk, chunk],
        [chunk, chunk, a_header(purpose=BATCH)],
        [a_header(size_bytes=4001)],
    ]
    for pieces in too_large:
        with pytest.raises(errors.RequestTooLarge):
            await running.client.send(pieces)
    assert running.stored() == []


async def test_bytes_other_than_announced_are_refused(running: RunningControl) -> None:
    """More, fewer or others: nothing of them stays."""
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
    ({"ttl": Duration(seconds=2**62)}, errors.InvalidField, "ttl"),
    ({"size_bytes": -1}, errors.OutOfRange, "size_bytes"),
    ({"sha256": "g" * 64}, errors.InvalidField, "sha256"),
    ({"request_id": "x" * 129}, errors.TooLong, "request_id"),
    ({"request_id": "\0"}, errors.InvalidField, "request_id"),
]


async def test_a_bad_header_is_refused_with_its_field(
    running: RunningControl, subtests: pytest.Subtests
) -> None:
    """Missing, wrong, huge and hostile; nothing is stored."""
    for fields, kind, name in BAD_HEADERS:
        with subtests.test(fields=fields):
            with pytest.raises(kind) as refused:
                await running.client.send([a_header(**fields), b"x"])
            assert refused.value.field == name
    with pytest.raises(errors.MissingField):
        await running.client.send([b"bytes without a header"])
    assert running.stored() == []


async def test_bad_lists_and_ids_are_refused(running: RunningControl) -> None:
    """Whatever a caller writes for an id is not found; a cursor has the form of one."""
    for hostile in ("", "file-", "../../etc/passwd", "a\0b", "x" * 100_000, "file-" + "0" * 32):
        with pytest.raises(errors.FileNotFound):
            await running.client.get(hostile)
    for request in ({"after": "x"}, {"order": 9}, {"purpose": 99}):
        with pytest.raises(errors.InvalidField):
            await running.client.page(**request)
    with pytest.raises(errors.OutOfRange):
        await running.client.page(page_size=-1)


async def test_a_request_whose_file_is_gone_leaves_nothing(running: RunningControl) -> None:
    """It was carried out once, and is not again; its bytes go at once."""
    file = await running.client.create(request_id="one")
    await running.client.delete(file.id)

    with pytest.raises(errors.FileNotFound):
        await running.client.create(request_id="one")
    assert running.stored() == []


async def test_a_request_that_is_sent_again_is_done_once(running: RunningControl) -> None:
    """Also when both are on their way at once; other content under the same id is refused."""
    client, clock = running.client, running.clock
    twins = await asyncio.gather(*(client.create(request_id="one") for _ in range(4)))
    again = await client.create(request_id="one")

    assert {file.id for file in twins} == {again.id}
    assert len(await names(client)) == len(running.stored()) == 1
    with pytest.raises(errors.RequestIdReused):
        await client.create(b"other", request_id="one")
    assert len(running.stored()) == 1
    clock.advance(days=1)
    assert (await client.create(b"other", request_id="one")).id != again.id
    clock.advance(days=2)
    await running.control.sweeper.sweep()
    assert (await client.create(request_id="one")).id not in {again.id}


async def test_anothers_page_token_and_request_id_mean_nothing(running: RunningControl) -> None:
    """A token is bound to its project; the same request id is another request there."""
    mine, other = running.of_project("mine"), running.of_project("other")
    made = [await mine.create(request_id="one"), await mine.create()]
    token = (await mine.page(page_size=1)).next_page_token

    with pytest.raises(errors.InvalidField, match="page_token"):
        await other.page(page_token=token)
    assert (await other.create(request_id="one")).id not in {file.id for file in made}
    assert [file.id for file in (await other.page()).files] != [made[0].id]
