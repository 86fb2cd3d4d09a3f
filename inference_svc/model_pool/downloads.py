"""Downloads the files of models from the Hugging Face Hub and from allowed hosts.

A file is written with the suffix ".part", and continued there after an interruption. It gets its
name when it is complete and its SHA-256 is the expected one.
"""

import asyncio
import logging
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Final

import httpx2

from inference_svc.media.fetcher import ANSWER_TIMEOUT_S, MediaFetcher
from inference_svc.models.file_identity import FileStamp, hash_files
from inference_svc.models.sources import DownloadFile
from svc_kit.errors import DownloadFailed, StorageFailed
from svc_kit.http_client import (
    BLOCK_BYTES,
    BLOCK_S,
    MAX_REDIRECTS,
    ResponseRejected,
    declared_bytes,
    open_client,
)
from svc_kit.local_files import disk_errors
from svc_kit.tasks import run_in_thread

log = logging.getLogger(__name__)
ATTEMPTS: Final = 5
"""Consecutive ones with less than a MiB, after which a download fails."""
_CONTENT_RANGE: Final = re.compile(
    r"bytes (?P<start>[0-9]{1,18})-(?P<last>[0-9]{1,18})/(?P<total>[0-9]{1,18})"
)


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """How far a download has come. A `total_bytes` of 0 is not known."""

    file: str = ""
    sha256: str = ""
    completed_bytes: int = 0
    total_bytes: int = 0
    is_verified: bool = False
    """Whether the file is complete and being compared with its digest."""


Report = Callable[[DownloadProgress], None]


class _Part:
    """The unfinished file, and the ETag of the version that it is a part of."""

    def __init__(self, file: DownloadFile, folder: Path) -> None:
        """Create the folder. Raises `StorageFailed`."""
        self.target = folder / file.name
        self._path = folder / f"{file.name}.part"
        self._etag = folder / f"{file.name}.etag"
        with disk_errors():
            folder.mkdir(parents=True, exist_ok=True)

    def refuse_others(self) -> None:
        """Raise `StorageFailed` if a link or a part of another program has one of the names."""
        others = [path for path in (self.target, self._path, self._etag) if path.is_symlink()]
        if self._path.exists() and not self._etag.exists():  # the ETag is written first
            others.append(self._path)
        if others:
            problem = f"{others[0].name} is not of an unfinished download: move it away"
            raise StorageFailed(problem=problem)

    @property
    def size(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0

    @property
    def etag(self) -> str:
        """Empty if there is none, or it is weak."""
        etag = self._etag.read_text() if self._etag.exists() else ""
        return etag if etag.startswith('"') else ""

    def open(self, start: int, total: int, etag: str) -> FileIO:
        """Open it for appending, or truncated. Raises `StorageFailed`, also without the space."""
        free = shutil.disk_usage(self.target.parent).free
        if total - start > free:
            problem = f"{self.target.name} needs {total - start} bytes, but only {free} are free"
            raise StorageFailed(problem=problem)
        with disk_errors():
            self._etag.write_text(etag)
            return self._path.open("ab" if start else "wb", buffering=0)

    def hash(self) -> str:
        """Write it to the disk and return its SHA-256. Blocks. Raises `StorageFailed`."""
        with disk_errors(), self._path.open("rb") as file:
            os.fsync(file.fileno())
        return hash_files([FileStamp.of(self._path)])

    def discard(self) -> None:
        for path in (self._path, self._etag):
            path.unlink(missing_ok=True)

    def finish(self) -> None:
        """Give it its name. Raises `StorageFailed`."""
        with disk_errors():
            self._path.replace(self.target)
            self._etag.unlink(missing_ok=True)


class ModelDownloader:
    """Downloads files. `retry_s` is the pause after the first failure in a row; later ones double
    it."""

    def __init__(self, fetcher: MediaFetcher, *, retry_s: float = 1.0) -> None:
        self._fetcher = fetcher
        self._retry_s = retry_s

    async def download(self, file: DownloadFile, folder: Path, report: Report) -> Path:
        """Return the path of a file in a folder, after downloading what is missing of it.

        Raises:
            DownloadFailed: no connection in several attempts, another size or SHA-256, or an answer
                that is not the file.
            InvalidField: the host, or one that it redirects to, is not allowed.
            StorageFailed: the disk is full, or cannot be written to.
        """
        part = _Part(file, folder)
        if part.target.exists():
            return part.target
        part.refuse_others()
        await self._complete(file, part, report)
        size = part.size
        report(DownloadProgress(file.name, file.sha256, size, size, is_verified=True))
        digest = await asyncio.to_thread(part.hash)
        if file.sha256 and digest != file.sha256:
            part.discard()
            problem = f"its SHA-256 is {digest}, expected {file.sha256}"
            raise DownloadFailed(file=file.name, problem=problem)
        part.finish()
        return part.target

    async def _complete(self, file: DownloadFile, part: _Part, report: Report) -> None:
        """Download until the file is complete, with pauses after failures."""
        failures = 0
        while not file.size_bytes or part.size != file.size_bytes:
            before = part.size
            try:
                await self._continue(file, part, report)
                return
            except ResponseRejected as error:
                raise DownloadFailed(file=file.name, problem=str(error)) from None
            except (httpx2.TransportError, OSError) as error:
                failures = 1 if part.size - before >= BLOCK_BYTES else failures + 1
                if failures == ATTEMPTS:
                    problem = str(error) or type(error).__name__
                    raise DownloadFailed(file=file.name, problem=problem) from None
                log.warning("the download of %s broke off and is continued: %r", file.name, error)
            except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:
                raise DownloadFailed(file=file.name, problem=str(error)) from error
            await asyncio.sleep(self._retry_s * 2 ** (failures - 1))

    async def _continue(self, file: DownloadFile, part: _Part, report: Report) -> None:
        """Request what is missing of a file, and append it."""
        offset, etag, headers = part.size, part.etag, {}
        if offset and (etag or file.sha256):  # else parts of two versions could be joined
            headers["range"] = f"bytes={offset}-"
        if offset and etag:
            headers["if-range"] = etag
        async with self._open(file, headers) as response:
            if response.status_code == httpx2.codes.RANGE_NOT_SATISFIABLE:
                if file.sha256:
                    return  # complete; the caller compares its digest
                part.discard()
                raise httpx2.ReadError("the server has less of it")
            if not response.is_success:
                problem = f"the server answered with status {response.status_code}"
                raise DownloadFailed(file=file.name, problem=problem)
            start, total = _extent(response, offset)
            if start and etag not in ("", response.headers.get("etag", "")):
                part.discard()
                raise httpx2.ReadError("the file changed meanwhile")
            if file.size_bytes and total != file.size_bytes:
                problem = f"the server has {total} bytes, not {file.size_bytes}"
                raise DownloadFailed(file=file.name, problem=problem)
            with part.open(start, total, response.headers.get("etag", "")) as output:

                def on_bytes(completed: int) -> None:
                    report(DownloadProgress(file.name, file.sha256, start + completed, total))

                await _write_body(response, output, on_bytes)
            if part.size != total:
                raise httpx2.ReadError(f"the server sent {part.size} of {total} bytes")

    @asynccontextmanager
    async def _open(
        self, file: DownloadFile, headers: Mapping[str, str]
    ) -> AsyncIterator[httpx2.Response]:
        if file.source.startswith("hf:"):
            async with _open_on_hub(file.source, headers) as response:
                yield response
            return
        url = file.source
        for _ in range(MAX_REDIRECTS):
            async with self._fetcher.stream("source", url, headers, None) as response:
                if not response.has_redirect_location:
                    yield response
                    return
                url = str(httpx2.URL(url).join(response.headers["location"]))
        raise DownloadFailed(file=file.name, problem=f"more than {MAX_REDIRECTS} redirects")


async def verify_file(path: Path, sha256: str, report: Report) -> None:
    """Compare a file of the operator with its digest. Raises `DownloadFailed`."""
    report(DownloadProgress(path.name, sha256, is_verified=True))
    digest = await asyncio.to_thread(lambda: hash_files([FileStamp.of(path)]))
    if digest != sha256:
        problem = f"its SHA-256 is {digest}, expected {sha256}"
        raise DownloadFailed(file=path.name, problem=problem)


@asynccontextmanager
async def _open_on_hub(source: str, headers: Mapping[str, str]) -> AsyncIterator[httpx2.Response]:
    # Imported here because huggingface_hub is slow to import and seldom needed.
    from inference_svc.models.huggingface import file_request

    url, credentials = await asyncio.to_thread(file_request, source)
    async with (
        open_client(
            None, block_s=BLOCK_S, timeout=ANSWER_TIMEOUT_S, follow_redirects=True
        ) as client,
        client.stream("GET", url, headers={**credentials, **headers}) as response,
    ):
        yield response


def _extent(response: httpx2.Response, offset: int) -> tuple[int, int]:
    """Where the body starts in the file, and the size of the file. Raises `ResponseRejected` if the
    body is not the rest of the file."""
    length = declared_bytes(response) or 0
    if response.status_code != httpx2.codes.PARTIAL_CONTENT:
        return 0, length
    match = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
    if match is None:
        raise ResponseRejected("the server sent a part of the file without its place")
    start, last, total = map(int, match.group("start", "last", "total"))
    if (start, last, length) != (offset, total - 1, total - offset):
        raise ResponseRejected("the server sent another part of the file")
    return start, total


async def _write_body(
    response: httpx2.Response, output: FileIO, on_bytes: Callable[[int], None]
) -> None:
    """Write what comes, also if it breaks off. Raises `StorageFailed` and errors of httpx."""
    completed, block = 0, bytearray()
    try:
        async for chunk in response.aiter_raw():
            block += chunk
            if len(block) >= BLOCK_BYTES:
                completed += await _write(output, block)
                on_bytes(completed)
    except httpx2.TransportError:
        await _write(output, block)
        raise
    on_bytes(completed + await _write(output, block))


async def _write(output: FileIO, block: bytearray) -> int:
    """Write a block, empty it, and return its length. Raises `StorageFailed`; then the file has a
    part of it."""
    content = memoryview(bytes(block))
    block.clear()

    def write() -> None:
        rest = content
        while rest:
            rest = rest[output.write(rest) :]

    with disk_errors():
        await run_in_thread(write)  # if this is cancelled, the file is closed next
    return len(content)
