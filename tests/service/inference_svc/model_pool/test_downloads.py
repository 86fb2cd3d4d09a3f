"""Files are downloaded from a real HTTP server, continued, and compared with their digests."""

import asyncio
import hashlib
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from inference_svc.media.fetcher import MediaFetcher
from inference_svc.model_pool.downloads import ATTEMPTS, DownloadProgress, ModelDownloader
from inference_svc.models.sources import DownloadFile
from svc_kit.errors import DomainError, DownloadFailed, InvalidField, StorageFailed
from tests.support.model_hub import ModelHub, run_model_hub
from tests.support.small_disk import fill, mount_disk
from tests.support.trees import tree

NAME: Final = "model.gguf"
CONTENT: Final = random.Random(1).randbytes(3_500_000)
DIGEST: Final = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def hub() -> Iterator[ModelHub]:
    with run_model_hub({NAME: CONTENT}) as hub:
        yield hub


def make_file(hub: ModelHub, path: str = f"/files/{NAME}", **fields: object) -> DownloadFile:
    """The file of the server, without what only the Hub says about it."""
    return DownloadFile(source=hub.endpoint + path, name=NAME, **fields)  # type: ignore[arg-type]


async def download(
    hub: ModelHub, file: DownloadFile, folder: Path, reports: list[DownloadProgress] | None = None
) -> Path:
    """Download without pauses."""
    downloader = ModelDownloader(MediaFetcher([hub.host]), retry_s=0)
    return await downloader.download(file, folder, (reports if reports is not None else []).append)


async def failure(hub: ModelHub, file: DownloadFile, folder: Path) -> DomainError:
    with pytest.raises(DomainError) as raised:
        await download(hub, file, folder)
    return raised.value


@pytest.mark.parametrize("path", [f"/files/{NAME}", f"/moved/{NAME}"])
async def test_a_file_is_downloaded_once(hub: ModelHub, tmp_path: Path, path: str) -> None:
    """Also behind a redirect on the same host; progress and the comparison are reported."""
    reports: list[DownloadProgress] = []
    file = make_file(hub, path, sha256=DIGEST)
    first = await download(hub, file, tmp_path / "f", reports)
    again = await download(hub, file, tmp_path / "f")

    assert first == again == tmp_path / "f" / NAME
    assert first.read_bytes() == CONTENT
    assert hub.ranges(NAME) == [""]
    assert [each.is_verified for each in reports[-2:]] == [False, True]
    assert [each.completed_bytes for each in reports] == sorted(
        each.completed_bytes for each in reports
    )
    assert reports[0].completed_bytes < len(CONTENT) == reports[0].total_bytes
    assert [each.name for each in first.parent.iterdir()] == [NAME]


@pytest.mark.parametrize(("has_etags", "digest"), [(True, ""), (False, DIGEST)])
async def test_an_interrupted_download_continues_where_it_broke_off(
    hub: ModelHub, tmp_path: Path, has_etags: bool, digest: str
) -> None:
    """With an ETag or a digest, which tell whether it is the same version."""
    hub.has_etags, hub.cuts = has_etags, [1_200_000, 900_000]
    path = await download(hub, make_file(hub, sha256=digest), tmp_path)

    assert path.read_bytes() == CONTENT
    assert hub.ranges(NAME) == ["", "bytes=1200000-", "bytes=2100000-"]


async def test_parts_of_two_versions_are_never_joined(hub: ModelHub, tmp_path: Path) -> None:
    """A file that changed is downloaded anew, and one without any mark of its version too."""
    for has_etags in (True, False):
        hub.has_etags, hub.files[NAME] = has_etags, CONTENT
        folder = tmp_path / str(has_etags)
        hub.cuts = [1_000_000] + [0] * ATTEMPTS
        await failure(hub, make_file(hub), folder)
        hub.files[NAME], hub.cuts = CONTENT[::-1], []
        path = await download(hub, make_file(hub), folder)

        assert path.read_bytes() == CONTENT[::-1]


async def test_a_server_that_joins_versions_is_not_believed(hub: ModelHub, tmp_path: Path) -> None:
    """Its 206 has another ETag: the file is downloaded from its begin."""
    hub.cuts, hub.joins_versions = [1_000_000] + [0] * ATTEMPTS, True
    await failure(hub, make_file(hub), tmp_path)
    hub.files[NAME], hub.cuts = CONTENT[::-1], []
    path = await download(hub, make_file(hub), tmp_path)

    assert path.read_bytes() == CONTENT[::-1]
    assert hub.ranges(NAME)[-2:] == ["bytes=1000000-", ""]


@pytest.mark.parametrize(
    "content_range",
    [
        "bytes 1000000-1999999/3500000",
        "bytes 0-3499999/3500000",
        "bytes 1000000-3499999/9999999999999999999999",
        "bytes 1000000-3499999/*",
        "nonsense",
    ],
)
async def test_another_part_than_the_rest_is_refused(
    hub: ModelHub, tmp_path: Path, content_range: str
) -> None:
    """What was received stays for a server that answers with the rest."""
    hub.cuts, hub.content_range = [1_000_000], content_range
    error = await failure(hub, make_file(hub), tmp_path)
    hub.content_range = ""

    assert isinstance(error, DownloadFailed)
    assert "part of the file" in error.message
    assert (await download(hub, make_file(hub), tmp_path)).read_bytes() == CONTENT


@pytest.mark.parametrize("digest", ["", DIGEST])
async def test_a_file_without_a_length_is_refused(
    hub: ModelHub, tmp_path: Path, digest: str
) -> None:
    """It could fill the disk."""
    hub.has_lengths = False
    error = await failure(hub, make_file(hub, sha256=digest), tmp_path)

    assert "does not say how long" in error.message
    assert len(hub.requests) == 1


async def test_a_server_that_sends_nothing_is_given_up(hub: ModelHub, tmp_path: Path) -> None:
    """After some attempts; what was received stays for the next try."""
    hub.cuts = [1_000_000] + [0] * (ATTEMPTS + 1)
    error = await failure(hub, make_file(hub), tmp_path)
    hub.cuts = []

    assert isinstance(error, DownloadFailed)
    assert len(hub.ranges(NAME)) == ATTEMPTS
    assert (await download(hub, make_file(hub), tmp_path)).read_bytes() == CONTENT
    assert hub.ranges(NAME)[-1] == "bytes=1000000-"


async def test_a_redirect_to_no_url_is_given_up(hub: ModelHub, tmp_path: Path) -> None:
    """As an answer that is not HTTP."""
    error = await failure(hub, make_file(hub, "/nowhere/model.gguf"), tmp_path)

    assert isinstance(error, DownloadFailed)


async def test_another_digest_is_refused(hub: ModelHub, tmp_path: Path) -> None:
    """Nothing stays of the file."""
    error = await failure(hub, make_file(hub, sha256="0" * 64), tmp_path)

    assert f"its SHA-256 is {DIGEST}, expected {'0' * 64}" in error.message
    assert not any((tmp_path / f"{NAME}{end}").exists() for end in ("", ".part", ".etag"))


@pytest.mark.parametrize(
    ("path", "fields", "kind", "problem"),
    [
        ("/files/other.gguf", {}, DownloadFailed, "status 404"),
        (f"/files/{NAME}", {"size_bytes": 7}, DownloadFailed, "3500000 bytes, not 7"),
        ("/away", {}, InvalidField, "'elsewhere.test' is not allowed on this server"),
    ],
)
async def test_other_answers_are_refused(
    hub: ModelHub,
    tmp_path: Path,
    path: str,
    fields: dict[str, object],
    kind: type[DomainError],
    problem: str,
) -> None:
    """Among them a redirect to a host that is not allowed. They are not tried again."""
    error = await failure(hub, make_file(hub, path, **fields), tmp_path)

    assert isinstance(error, kind)
    assert problem in error.message
    assert len(hub.requests) == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for the file."""
    with mount_disk(tmp_path, 8) as disk:
        yield disk


async def test_a_download_that_fills_the_disk_continues_later(
    hub: ModelHub, small_disk: Path
) -> None:
    """It fails with the reason, and what fits stays as a part of the file; one that cannot fit is
    refused before it begins."""
    ballast = fill(small_disk, leave=len(CONTENT) - 1)
    refused = await failure(hub, make_file(hub), small_disk)
    ballast.unlink()
    gate = hub.gate = threading.Event()

    def on_progress(progress: DownloadProgress) -> None:
        if not gate.is_set():
            fill(small_disk, leave=100_000)
            gate.set()

    downloader = ModelDownloader(MediaFetcher([hub.host]), retry_s=0)
    with pytest.raises(StorageFailed) as full:
        await downloader.download(make_file(hub), small_disk, on_progress)
    left = sorted(os.listdir(small_disk))  # noqa: PTH208  # pathlib is refused in coroutines
    part = (small_disk / f"{NAME}.part").read_bytes()
    ballast.unlink()
    path = await download(hub, make_file(hub), small_disk)

    assert f"needs {len(CONTENT)} bytes, but only" in refused.message
    assert "No space left on device" in full.value.message
    assert left == ["ballast", f"{NAME}.etag", f"{NAME}.part"]
    assert CONTENT.startswith(part)
    assert path.read_bytes() == CONTENT
    assert hub.ranges(NAME) == ["", "", f"bytes={len(part)}-"]


async def test_a_cancelled_download_ends_its_write_once(hub: ModelHub, tmp_path: Path) -> None:
    """In the middle of a write, the file gets the rest of it and nothing twice. The file is a pipe,
    so that the write goes on for as long as nobody reads."""
    pipe, received, is_cancelled = tmp_path / f"{NAME}.part", bytearray(), threading.Event()
    os.mkfifo(pipe)
    (tmp_path / f"{NAME}.etag").touch()
    task = asyncio.ensure_future(download(hub, make_file(hub), tmp_path))

    def cancel() -> None:
        task.cancel()
        is_cancelled.set()

    def read() -> None:
        with pipe.open("rb", buffering=0) as file:
            received.extend(file.read(1000))
            task.get_loop().call_soon_threadsafe(cancel)
            is_cancelled.wait()
            received.extend(file.readall())

    reading = asyncio.ensure_future(asyncio.to_thread(read))
    with pytest.raises(asyncio.CancelledError):
        await task
    await reading

    assert len(received) > 1000
    assert CONTENT.startswith(received)


@pytest.mark.parametrize(
    ("kind", "end"),
    [("link", ""), ("link", ".part"), ("link", ".etag"), ("file", ".part"), ("folder", ".part")],
)
async def test_files_of_others_are_not_written(
    hub: ModelHub, tmp_path: Path, kind: str, end: str
) -> None:
    """Neither what a link leads to, nor a part without the ETag that is written before it."""
    place, elsewhere = tmp_path / f"f/{NAME}{end}", tmp_path / "elsewhere"
    place.parent.mkdir()
    if kind == "link":
        place.symlink_to(elsewhere)
    elif kind == "folder":
        place.mkdir()
    else:
        place.write_bytes(b"of somebody")
    before = tree(tmp_path)

    error = await failure(hub, make_file(hub), place.parent)

    assert error == StorageFailed(
        problem=f"{place.name} is not of an unfinished download: move it away"
    )
    assert tree(tmp_path) == before
    assert hub.requests == []


async def test_a_folder_that_cannot_be_written_is_named(hub: ModelHub, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert isinstance(await failure(hub, make_file(hub), tmp_path / "file"), StorageFailed)
