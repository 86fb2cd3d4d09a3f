"""Times file transfers through the control service and the bare stream, and small objects.

Both transfers send the same messages from the same client, which serializes each message once.
"""

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc.aio
from corral.control.v1 import file_pb2, file_service_pb2, upload_service_pb2

from bench.bare_stream import DOWN, UP
from bench.measurement import median
from bench.streams import LoadError

CHUNK_BYTES = 256 * 1024
TIMEOUT_S = 300.0
_FILES = "/corral.control.v1.FileService"
_UPLOADS = "/corral.control.v1.UploadService"
_USER_DATA = file_pb2.FILE_PURPOSE_USER_DATA


@dataclass(frozen=True)
class Transfer:
    """Seconds of an upload and of a download of the same size."""

    up_s: float
    down_s: float


async def transfer_file(target: str, size_bytes: int) -> Transfer:
    """Upload a file, download it, delete it. Raises LoadError if the downloaded bytes differ."""
    async with _channel(target) as channel:
        started = time.perf_counter()
        create = channel.stream_unary(f"{_FILES}/CreateFile")
        answer = await create(_file_messages(size_bytes), timeout=TIMEOUT_S)
        stored = time.perf_counter()
        file = file_service_pb2.CreateFileResponse.FromString(answer).file
        request = file_service_pb2.DownloadFileRequest(file_id=file.id).SerializeToString()
        read = channel.unary_stream(
            f"{_FILES}/DownloadFile",
            response_deserializer=file_service_pb2.DownloadFileResponse.FromString,
        )
        digest = hashlib.sha256()
        async for message in read(request, timeout=TIMEOUT_S):
            digest.update(message.chunk)
        ended = time.perf_counter()
        if digest.hexdigest() != file.sha256:
            raise LoadError("the downloaded bytes differ from the uploaded ones")
        delete = file_service_pb2.DeleteFileRequest(file_id=file.id).SerializeToString()
        await channel.unary_unary(f"{_FILES}/DeleteFile")(delete)
    return Transfer(stored - started, ended - stored)


async def transfer_bare(target: str, size_bytes: int) -> Transfer:
    """Send bytes to the bare stream and receive as many."""
    async with _channel(target) as channel:
        started = time.perf_counter()
        up = channel.stream_unary(UP)
        await up(_bare_messages(size_bytes), timeout=TIMEOUT_S, wait_for_ready=True)
        sent = time.perf_counter()
        digest = hashlib.sha256()
        down = channel.unary_stream(DOWN)
        async for chunk in down(f"{size_bytes} {CHUNK_BYTES}".encode(), timeout=TIMEOUT_S):
            digest.update(chunk)
        ended = time.perf_counter()
    return Transfer(sent - started, ended - sent)


@dataclass(frozen=True)
class ObjectTimes:
    """Rate and latencies of creating an object and reading it once."""

    per_s: float
    p50_ms: float
    p99_ms: float


async def create_and_get(target: str, kind: str, count: int, callers: int) -> ObjectTimes:
    """Create and read `count` objects of a kind, "file" or "upload", with concurrent callers."""
    async with _channel(target) as channel:
        create_and_get_one = {"file": _file_caller, "upload": _upload_caller}[kind](channel)
        await create_and_get_one()
        queue, times = iter(range(count)), list[float]()

        async def caller() -> None:
            for _ in queue:
                call_started = time.perf_counter()
                await create_and_get_one()
                times.append(time.perf_counter() - call_started)

        started = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(callers)))
        seconds = time.perf_counter() - started
    p99 = sorted(times)[len(times) * 99 // 100]
    return ObjectTimes(count / seconds, 1e3 * median(times), 1e3 * p99)


def _file_caller(channel: Any) -> Callable[[], Awaitable[None]]:
    create = channel.stream_unary(f"{_FILES}/CreateFile")
    get = channel.unary_unary(f"{_FILES}/GetFile")
    messages = [_header(), file_service_pb2.CreateFileRequest(chunk=bytes(100))]
    request = [message.SerializeToString() for message in messages]

    async def create_and_get_one() -> None:
        answer = file_service_pb2.CreateFileResponse.FromString(await create(iter(request)))
        await get(file_service_pb2.GetFileRequest(file_id=answer.file.id).SerializeToString())

    return create_and_get_one


def _upload_caller(channel: Any) -> Callable[[], Awaitable[None]]:
    create = channel.unary_unary(f"{_UPLOADS}/CreateUpload")
    get = channel.unary_unary(f"{_UPLOADS}/GetUpload")
    request = upload_service_pb2.CreateUploadRequest(
        filename="bench", purpose=_USER_DATA, size_bytes=1, mime_type="text/plain"
    ).SerializeToString()

    async def create_and_get_one() -> None:
        answer = upload_service_pb2.CreateUploadResponse.FromString(await create(request))
        get_request = upload_service_pb2.GetUploadRequest(upload_id=answer.upload.id)
        await get(get_request.SerializeToString())

    return create_and_get_one


@asynccontextmanager
async def _channel(target: str) -> AsyncIterator[Any]:
    """Open a channel whose methods take and return bytes, which its type stubs do not allow."""
    try:
        async with grpc.aio.insecure_channel(target) as channel:
            yield channel
    except grpc.aio.AioRpcError as error:
        raise LoadError(f"{error.code().name}: {error.details()}") from error


def _header() -> file_service_pb2.CreateFileRequest:
    header = file_pb2.FileHeader(filename="bench", purpose=_USER_DATA)
    return file_service_pb2.CreateFileRequest(header=header)


async def _file_messages(size_bytes: int) -> AsyncIterator[bytes]:
    yield _header().SerializeToString()
    chunk = file_service_pb2.CreateFileRequest(chunk=os.urandom(CHUNK_BYTES)).SerializeToString()
    for _ in range(size_bytes // CHUNK_BYTES):
        yield chunk


async def _bare_messages(size_bytes: int) -> AsyncIterator[bytes]:
    chunk = os.urandom(CHUNK_BYTES)
    for _ in range(size_bytes // CHUNK_BYTES):
        yield chunk
