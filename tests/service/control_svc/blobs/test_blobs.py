"""What every store of bytes promises: the same tests for a folder and for a bucket."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from control_svc.app import build, open_blobs
from control_svc.blobs.s3 import PART_BYTES, open_bucket
from control_svc.blobs.store import BlobMissing, BlobStore
from control_svc.config import ControlSettings
from svc_kit.errors import StorageFailed
from svc_kit.lifecycle import StartupError
from svc_kit.rpc.client import open_channel
from tests.support.control import Client
from tests.support.s3 import CREDENTIALS, Bucket, a_bucket

LARGE = bytes(range(256)) * (2 * PART_BYTES // 256) + b"end"


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    """A bucket, empty but for the prefixes of other tests."""
    with a_bucket() as bucket:
        yield bucket


@pytest.fixture(params=["folder", "bucket"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    """Where a store is that nobody has used; None: in the folder."""
    if request.param == "folder":
        return None
    found: Bucket = request.getfixturevalue("bucket")
    return found.url(f"{tmp_path.name}/files")


@pytest.fixture
async def blobs(url: str | None, tmp_path: Path) -> BlobStore:
    """An empty store of each kind."""
    return await open_blobs(url, CREDENTIALS, tmp_path / "blobs", "this")


async def store(blobs: BlobStore, *chunks: bytes) -> str:
    """Complete bytes; their key."""
    async with blobs.create() as sink:
        for chunk in chunks:
            await sink.write(chunk)
        return (await sink.commit()).key


async def read(blobs: BlobStore, key: str, offset: int, length: int) -> bytes:
    """A range."""
    return b"".join([chunk async for chunk in blobs.read(key, offset, length)])


async def everything(blobs: BlobStore) -> set[str]:
    """All keys."""
    groups = blobs.keys()
    return {stored.key async for group in groups for stored in group}


@pytest.mark.parametrize("content", [b"", b"small", LARGE], ids=["empty", "small", "large"])
async def test_what_is_stored_can_be_read_in_ranges(blobs: BlobStore, content: bytes) -> None:
    """Size and digest are those of the bytes, however they were cut."""
    async with blobs.create() as sink:
        for start in range(0, len(content), 1_000_003):
            await sink.write(content[start : start + 1_000_003])
        assert (sink.size_bytes, await sink.sha256()) == (
            len(content),
            hashlib.sha256(content).hexdigest(),
        )
        blob = await sink.commit()

    assert (blob.size_bytes, blob.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert await read(blobs, blob.key, 0, len(content)) == content
    middle = len(content) // 2
    assert await read(blobs, blob.key, middle, len(content) - middle) == content[middle:]
    assert await everything(blobs) == {blob.key}


@pytest.mark.parametrize("content", [b"small", LARGE], ids=["small", "large"])
async def test_what_is_not_committed_leaves_nothing(
    blobs: BlobStore, bucket: Bucket, content: bytes
) -> None:
    """Neither a listed object nor parts of one."""

    async def give_up() -> None:
        async with blobs.create() as sink:
            await sink.write(content)
            await sink.write(content)
            raise StorageFailed(problem="somebody stumbles")

    with pytest.raises(StorageFailed):
        await give_up()

    assert await everything(blobs) == set()
    assert bucket.unfinished() == []


async def test_a_cancelled_writer_leaves_nothing(blobs: BlobStore, bucket: Bucket) -> None:
    """As when a client goes away."""
    written = asyncio.Event()

    async def write() -> None:
        async with blobs.create() as sink:
            await sink.write(LARGE)
            written.set()
            await asyncio.Event().wait()

    writer = asyncio.ensure_future(write())
    await written.wait()
    writer.cancel()
    await asyncio.wait([writer])

    assert await everything(blobs) == set()
    assert bucket.unfinished() == []


async def test_cleaning_up_outlives_a_cancellation(blobs: BlobStore, bucket: Bucket) -> None:
    """A call that ends, and is cancelled while it does, may be cancelled once more."""
    written = asyncio.Event()

    async def write() -> None:
        async with blobs.create() as sink:
            await sink.write(LARGE)
            written.set()
            await asyncio.Event().wait()

    writer = asyncio.ensure_future(write())
    await written.wait()
    for _ in range(2):
        writer.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([writer])
    for task in asyncio.all_tasks():
        if task is not asyncio.current_task():
            await asyncio.wait([task])

    assert await everything(blobs) == set()
    assert bucket.unfinished() == []


async def test_bytes_are_seen_whole_or_not_at_all(blobs: BlobStore) -> None:
    """Nobody finds them under their key before they are complete."""
    async with blobs.create() as sink:
        await sink.write(LARGE)
        unfinished = await everything(blobs)
        blob = await sink.commit()

    assert await everything(blobs) == {blob.key}
    for key in unfinished:  # the folder lists what is on its way, for the sweeper
        assert key == blob.key


@pytest.mark.parametrize("length", [0, 1])
async def test_missing_bytes_are_told(blobs: BlobStore, length: int) -> None:
    """Before the first chunk, also where none was asked for."""
    with pytest.raises(BlobMissing):
        await read(blobs, "0" * 32, 0, length)


async def test_bytes_that_end_too_early_are_told(blobs: BlobStore) -> None:
    """A row says how many there are."""
    key = await store(blobs, b"abc")

    with pytest.raises(BlobMissing):
        await read(blobs, key, 1, 3)


async def test_deleting_what_is_not_there_is_no_error(blobs: BlobStore) -> None:
    """Two may sweep at once."""
    kept, gone = await store(blobs, b"a"), await store(blobs, b"b")

    await blobs.delete([gone, "0" * 32])
    await blobs.delete([gone])
    await blobs.delete([])

    assert await everything(blobs) == {kept}


async def test_a_store_belongs_to_one_database(
    url: str | None, tmp_path: Path, blobs: BlobStore
) -> None:
    """The same one may come again; to another one everything there would be bytes without rows."""
    await store(blobs, b"kept")

    await open_blobs(url, CREDENTIALS, tmp_path / "blobs", "this")
    with pytest.raises(StartupError, match="holds the files of another database"):
        await open_blobs(url, CREDENTIALS, tmp_path / "blobs", "another")


async def test_a_used_bucket_without_an_owner_is_left_alone(bucket: Bucket, tmp_path: Path) -> None:
    """Whose bytes they are a person must say. What is not named as ours does not count."""
    bucket.client.put_object(Bucket="corral-test", Key=f"{tmp_path.name}/notes.txt", Body=b"x")
    url = bucket.url(tmp_path.name)
    await open_blobs(url, CREDENTIALS, tmp_path, "this")
    await store(open_bucket(url, CREDENTIALS), b"kept")
    bucket.client.delete_object(Bucket="corral-test", Key=f"{tmp_path.name}/INSTALLATION")

    with pytest.raises(StartupError, match="does not say of which database"):
        await open_blobs(url, CREDENTIALS, tmp_path, "this")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://bucket/x", "cannot be read"),
        ("s3:///x", "cannot be read"),
        ("s3://bucket?acl=public&endpoint=http://127.0.0.1:1", "not known: acl"),
        (
            "s3://bucket/x?endpoint=http://127.0.0.1:1&region=a",
            "cannot keep files in s3://bucket/x",
        ),
    ],
)
async def test_a_bucket_that_cannot_be_used_is_one_line(
    tmp_path: Path, url: str, words: str
) -> None:
    """What is wrong, without a traceback."""
    with pytest.raises(StartupError, match=words):
        await open_blobs(url, CREDENTIALS, tmp_path, "this")


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[tuple[Client, Bucket]]:
    """A control service that keeps its files in a bucket of its own, which a test may stop."""
    with a_bucket() as bucket:
        settings = ControlSettings(
            listen="127.0.0.1:0",
            management_listen=None,
            data_dir=tmp_path,
            blobs_url=bucket.url("files"),
            blobs_access_key_id=CREDENTIALS.access_key_id,
            blobs_secret_access_key=CREDENTIALS.secret_access_key,
        )
        async with (
            build(settings) as control,
            open_channel(str(control.server.address)) as channel,
        ):
            yield Client(channel), bucket


async def test_files_live_in_a_bucket(client: tuple[Client, Bucket]) -> None:
    """Stored, listed, read in ranges and deleted, with nothing left over."""
    files, bucket = client
    file = await files.create(LARGE[: 3 * 1024 * 1024])

    assert await files.read(file.id, offset=2, length=5) == LARGE[2:7]
    assert len(bucket.client.list_objects_v2(Bucket="corral-test")["Contents"]) == 2
    await files.delete(file.id)
    assert len(bucket.client.list_objects_v2(Bucket="corral-test")["Contents"]) == 1


async def test_a_bucket_that_is_gone_is_unavailable(client: tuple[Client, Bucket]) -> None:
    """A clear error that may be tried again, and no file without its bytes."""
    files, bucket = client
    for each in bucket.client.list_objects_v2(Bucket="corral-test")["Contents"]:
        bucket.client.delete_object(Bucket="corral-test", Key=each["Key"])
    bucket.client.delete_bucket(Bucket="corral-test")

    with pytest.raises(StorageFailed) as refused:
        await files.create(b"hello")
    assert refused.value.retry_after is not None
    assert list((await files.page()).files) == []

    bucket.client.create_bucket(Bucket="corral-test")
    assert (await files.create(b"hello")).size_bytes == 5
