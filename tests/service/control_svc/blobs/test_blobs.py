"""Both blob stores: the folder and the bucket."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import obstore
import pytest

from control_svc.app import build
from control_svc.blobs.local import FolderBlobs
from control_svc.blobs.s3 import PART_BYTES, open_bucket
from control_svc.blobs.store import BlobStore
from control_svc.config import ControlSettings
from control_svc.core import open_blobs
from svc_kit.errors import BlobMissing, StorageFailed
from svc_kit.lifecycle import StartupError
from svc_kit.rpc.client import open_channel
from tests.support.control import Client
from tests.support.s3 import CREDENTIALS, Bucket, run_s3_bucket

LARGE = bytes(range(256)) * (2 * PART_BYTES // 256) + b"end"


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    """A bucket; each test has its own prefix."""
    with run_s3_bucket() as bucket:
        yield bucket


@pytest.fixture(params=["folder", "bucket"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    """The URL of an unused store; None for the folder."""
    if request.param == "folder":
        return None
    bucket: Bucket = request.getfixturevalue("bucket")
    return bucket.url(f"{tmp_path.name}/files")


@pytest.fixture
async def blobs(url: str | None, tmp_path: Path) -> BlobStore:
    """An empty store of each kind."""
    return await open_blobs(url, CREDENTIALS, tmp_path / "blobs", "this")


async def store(blobs: BlobStore, *chunks: bytes) -> str:
    async with blobs.create() as sink:
        for chunk in chunks:
            await sink.write(chunk)
        return (await sink.commit()).key


async def read(blobs: BlobStore, key: str, offset: int, length: int) -> bytes:
    return b"".join([chunk async for chunk in blobs.read(key, offset, length)])


async def all_keys(blobs: BlobStore) -> set[str]:
    groups = blobs.keys()
    return {stored.key async for group in groups for stored in group}


@pytest.mark.parametrize("content", [b"", b"small", LARGE], ids=["empty", "small", "large"])
async def test_a_blob_is_read_in_ranges(blobs: BlobStore, content: bytes) -> None:
    """Size and digest are those of the bytes, however they are split into chunks."""
    async with blobs.create() as sink:
        for start in range(0, len(content), 1_000_003):
            await sink.write(content[start : start + 1_000_003])
        size_and_digest = (sink.size_bytes, await sink.sha256())
        blob = await sink.commit()

    assert size_and_digest == (len(content), hashlib.sha256(content).hexdigest())
    assert (blob.size_bytes, blob.sha256) == size_and_digest
    assert await read(blobs, blob.key, 0, len(content)) == content
    middle = len(content) // 2
    assert await read(blobs, blob.key, middle, len(content) - middle) == content[middle:]
    assert await all_keys(blobs) == {blob.key}


@pytest.mark.parametrize("content", [b"small", LARGE], ids=["small", "large"])
async def test_an_uncommitted_blob_leaves_nothing(
    blobs: BlobStore, bucket: Bucket, content: bytes
) -> None:
    """Neither an object nor parts of one."""

    async def fail() -> None:
        async with blobs.create() as sink:
            await sink.write(content)
            await sink.write(content)
            raise StorageFailed(problem="failed")

    with pytest.raises(StorageFailed):
        await fail()

    assert await all_keys(blobs) == set()
    assert bucket.unfinished_uploads() == []


@pytest.mark.parametrize("num_cancellations", [1, 2])
async def test_a_cancelled_writer_leaves_nothing(
    blobs: BlobStore, bucket: Bucket, num_cancellations: int
) -> None:
    """Even if it is cancelled again during the cleanup."""
    is_written = asyncio.Event()

    async def write() -> None:
        async with blobs.create() as sink:
            await sink.write(LARGE)
            is_written.set()
            await asyncio.Event().wait()

    writer = asyncio.ensure_future(write())
    await is_written.wait()
    for _ in range(num_cancellations):
        writer.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([writer])
    for task in asyncio.all_tasks():
        if task is not asyncio.current_task():
            await asyncio.wait([task])

    assert await all_keys(blobs) == set()
    assert bucket.unfinished_uploads() == []


async def test_a_blob_appears_when_it_is_committed(blobs: BlobStore) -> None:
    """Not before, except that the folder lists its incoming file."""
    async with blobs.create() as sink:
        await sink.write(LARGE)
        unfinished = await all_keys(blobs)
        blob = await sink.commit()

    assert await all_keys(blobs) == {blob.key}
    assert unfinished <= {blob.key}


@pytest.mark.parametrize("length", [0, 1])
async def test_a_missing_blob_raises_an_error(blobs: BlobStore, length: int) -> None:
    """Even if no bytes are requested."""
    with pytest.raises(BlobMissing):
        await read(blobs, "0" * 32, 0, length)


async def test_a_blob_that_is_too_short_raises_an_error(blobs: BlobStore) -> None:
    """The length of a blob is stored in the database."""
    key = await store(blobs, b"abc")

    with pytest.raises(BlobMissing):
        await read(blobs, key, 1, 3)


async def test_deleting_missing_blobs_is_no_error(blobs: BlobStore) -> None:
    """Two processes may sweep at the same time."""
    kept, deleted = await store(blobs, b"a"), await store(blobs, b"b")

    await blobs.delete([deleted, "0" * 32])
    await blobs.delete([deleted])
    await blobs.delete([])

    assert await all_keys(blobs) == {kept}


OTHERS = ("notes", "ab/notes", f"ab/{'AB' * 16}", f"ab/{'cd' * 16}", "suspensions/notes")


async def test_what_others_store_beside_is_neither_listed_nor_deleted(
    blobs: BlobStore, url: str | None, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """By the sweeper, by keys of rows that are none, and by suspensions of deletions."""
    if url is None:
        for name in OTHERS:
            (tmp_path / "blobs" / name).parent.mkdir(exist_ok=True)
            (tmp_path / "blobs" / name).write_bytes(b"x")
    else:
        client = request.getfixturevalue("bucket").client
        for name in OTHERS:
            key = f"{tmp_path.name}/files/{name}"
            client.put_object(Bucket="corral-test", Key=key, Body=b"x")
    key = await store(blobs, b"ours")
    listed = await all_keys(blobs)
    await blobs.suspend_deletions("20200101T000000.000000Z", 60)
    await blobs.suspend_deletions("20200101T000000.000000Z", 0)
    await blobs.delete([key, *OTHERS, *(f"../blobs/{name}" for name in OTHERS), "../x", "/x"])

    if url is None:
        left = [name for name in OTHERS if (tmp_path / "blobs" / name).exists()]
    else:
        prefix = f"{tmp_path.name}/files/"
        objects = client.list_objects_v2(Bucket="corral-test", Prefix=prefix)["Contents"]
        names = {each["Key"].removeprefix(prefix) for each in objects}
        left = [name for name in OTHERS if name in names]
    assert listed == {key}
    assert left == list(OTHERS)
    assert await all_keys(blobs) == set()


async def test_a_store_belongs_to_one_database(
    url: str | None, tmp_path: Path, blobs: BlobStore
) -> None:
    """Another database would delete all of its blobs as orphans."""
    await store(blobs, b"kept")

    await open_blobs(url, CREDENTIALS, tmp_path / "blobs", "this")
    with pytest.raises(StartupError, match="holds the files of another database"):
        await open_blobs(url, CREDENTIALS, tmp_path / "blobs", "another")


async def test_a_used_bucket_of_an_unknown_database_is_refused(
    bucket: Bucket, tmp_path: Path
) -> None:
    """Objects that are not blobs do not count."""
    bucket.client.put_object(Bucket="corral-test", Key=f"{tmp_path.name}/notes.txt", Body=b"x")
    url = bucket.url(tmp_path.name)
    await open_blobs(url, CREDENTIALS, tmp_path, "this")
    await store(open_bucket(url, CREDENTIALS), b"kept")
    bucket.client.delete_object(Bucket="corral-test", Key=f"{tmp_path.name}/INSTALLATION")

    with pytest.raises(StartupError, match="files of an unknown database"):
        await open_blobs(url, CREDENTIALS, tmp_path, "this")


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("https://bucket/x", "is not valid"),
        ("s3:///x", "is not valid"),
        ("s3://bucket?acl=public&endpoint=http://127.0.0.1:1", "unknown options: acl"),
        (
            "s3://bucket/x?endpoint=http://127.0.0.1:1&region=a",
            "cannot store files in s3://bucket/x",
        ),
    ],
)
async def test_an_unusable_bucket_raises_an_error(tmp_path: Path, url: str, problem: str) -> None:
    """The StartupError names the problem."""
    with pytest.raises(StartupError, match=problem):
        await open_blobs(url, CREDENTIALS, tmp_path, "this")


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[tuple[Client, Bucket]]:
    """A control service with a bucket of its own."""
    with run_s3_bucket() as bucket:
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


async def test_files_are_stored_in_a_bucket(client: tuple[Client, Bucket]) -> None:
    """Created, read in ranges, and deleted."""
    files, bucket = client
    file = await files.create(LARGE[: 3 * 1024 * 1024])

    assert await files.read(file.id, offset=2, length=5) == LARGE[2:7]
    assert len(bucket.client.list_objects_v2(Bucket="corral-test")["Contents"]) == 2
    await files.delete(file.id)
    assert len(bucket.client.list_objects_v2(Bucket="corral-test")["Contents"]) == 1


async def test_a_missing_bucket_is_a_retryable_error(client: tuple[Client, Bucket]) -> None:
    """No file is created without its bytes."""
    files, bucket = client
    for each in bucket.client.list_objects_v2(Bucket="corral-test")["Contents"]:
        bucket.client.delete_object(Bucket="corral-test", Key=each["Key"])
    bucket.client.delete_bucket(Bucket="corral-test")

    with pytest.raises(StorageFailed) as error:
        await files.create(b"hello")
    assert error.value.retry_after is not None
    assert list((await files.page()).files) == []

    bucket.client.create_bucket(Bucket="corral-test")
    assert (await files.create(b"hello")).size_bytes == 5


async def test_suspended_deletions_leave_blobs(blobs: BlobStore) -> None:
    """While one holder suspends them; what a killed one has left ends by itself."""
    key = await store(blobs, b"kept")
    await blobs.suspend_deletions("one", 60)
    await blobs.suspend_deletions("two", 60)
    await blobs.suspend_deletions("one", 0)
    await blobs.delete([key])
    assert (await blobs.is_deletion_suspended(), await all_keys(blobs)) == (True, {key})

    await blobs.suspend_deletions("two", 1e-6)
    await blobs.delete([key])
    assert (await blobs.is_deletion_suspended(), await all_keys(blobs)) == (False, set())


async def test_ended_suspensions_are_removed_by_the_next(
    blobs: BlobStore, url: str | None, tmp_path: Path
) -> None:
    """They would be read at each deletion."""
    await blobs.suspend_deletions("20200101T000000.000000Z", 1e-6)
    await blobs.suspend_deletions("next", 60)
    if url is None:
        names = [path.name for path in (tmp_path / "blobs" / "suspensions").iterdir()]
    else:
        listed = await obstore.list(open_bucket(url, CREDENTIALS)._store).collect_async()
        names = [each["path"].rpartition("/")[2] for each in listed if "suspen" in each["path"]]
    assert names == ["next"]


async def test_a_bucket_that_is_not_as_corral_writes_it_costs_little(
    bucket: Bucket, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Objects that Corral reads whole have a few bytes, however many others put there."""
    prefix = f"{tmp_path.name}/files"
    blobs = await open_blobs(bucket.url(prefix), CREDENTIALS, tmp_path, "this")
    names = ["LAST_BACKUP", "suspensions/20260101T000000.000000Z"]
    for name in names:
        bucket.client.put_object(Bucket="corral-test", Key=f"{prefix}/{name}", Body=bytes(4097))

    for read_text in (blobs.last_backup, blobs.is_deletion_suspended):
        with pytest.raises(StorageFailed):
            await read_text()

    assert [each.getMessage() for each in caplog.records] == [
        f"S3 failed: [Errno 5] {name} is longer than 4096 bytes" for name in names
    ]


class EndlessList(BaseHTTPRequestHandler):
    """Lists suspensions, and always says that there are more."""

    num_requests = 0

    def log_message(self, format: str, *args: object) -> None:
        """Write no log."""

    def do_GET(self) -> None:
        type(self).num_requests += 1
        keys = (f"files/suspensions/{self.num_requests}-{number}" for number in range(1000))
        contents = "".join(
            f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            "<ETag>x</ETag><Size>1</Size></Contents>"
            for key in keys
        )
        body = (
            "<ListBucketResult><IsTruncated>true</IsTruncated>"
            f"<NextContinuationToken>{self.num_requests}</NextContinuationToken>{contents}"
            "</ListBucketResult>"
        ).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


async def test_a_list_without_an_end_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    """A bucket may list more suspensions than there can be; none of them is read."""
    with ThreadingHTTPServer(("127.0.0.1", 0), EndlessList) as server:
        Thread(target=server.serve_forever).start()
        try:
            url = f"s3://b/files?endpoint=http://127.0.0.1:{server.server_port}&region=us-east-1"
            with pytest.raises(StorageFailed):
                await open_bucket(url, CREDENTIALS).is_deletion_suspended()
        finally:
            server.shutdown()

    assert "there are more than 10000 suspensions" in caplog.text
    assert EndlessList.num_requests < 20


@pytest.mark.parametrize("content", [b"", b"\xff", b"2026-01-01", b"tomorrow"])
async def test_a_damaged_suspension_is_in_force(
    blobs: BlobStore,
    url: str | None,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    content: bytes,
) -> None:
    """A running backup may need the bytes. Those of other backups do not end it."""
    name = "suspensions/20260101T000000.000000Z"
    if url is None:
        (tmp_path / "blobs" / name).write_bytes(content)
    else:
        client = request.getfixturevalue("bucket").client
        client.put_object(Bucket="corral-test", Key=f"{tmp_path.name}/files/{name}", Body=content)
    key = await store(blobs, b"kept")
    await blobs.suspend_deletions("other", 60)
    await blobs.suspend_deletions("other", 0)
    await blobs.delete([key])
    assert (await blobs.is_deletion_suspended(), await all_keys(blobs)) == (True, {key})


async def test_a_suspension_by_root_is_seen_by_the_service(tmp_path: Path) -> None:
    """Its file can be read by other users, whatever the umask of the backup."""
    folder = FolderBlobs(tmp_path)
    folder.prepare()
    umask = os.umask(0o077)
    try:
        await folder.suspend_deletions("backup", 60)
    finally:
        os.umask(umask)

    assert (tmp_path / "suspensions" / "backup").stat().st_mode & 0o777 == 0o644
