"""A control service on a free port, with a real database, a blob folder and a manual clock."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import grpc.aio
from corral.control.v1 import file_pb2, upload_service_pb2
from corral.control.v1 import file_service_pb2 as file_pb
from corral.control.v1.file_service_pb2_grpc import FileServiceStub
from corral.control.v1.upload_service_pb2_grpc import UploadServiceStub

from control_svc.app import Control, build
from control_svc.batches.lines import LineRunner
from control_svc.blobs.local import FolderBlobs
from control_svc.blobs.store import Blob, BlobSink
from control_svc.config import ControlSettings
from control_svc.core import data_folder
from control_svc.inference.slice import ModelParts
from corral_cli.up.children import ensure_token
from svc_kit.auth.authenticator import ServiceToken, principal_metadata
from svc_kit.auth.principal import Principal
from svc_kit.errors import StorageFailed
from svc_kit.rpc.client import open_channel, translate_errors
from svc_kit.sandbox.jobs import JobRunner
from tests.support.jobs import create_sqlite_database
from tests.support.sandbox_jobs import InlineJobs

AnswerT = TypeVar("AnswerT")
USER_DATA = file_pb2.FILE_PURPOSE_USER_DATA
BATCH = file_pb2.FILE_PURPOSE_BATCH
BATCH_OUTPUT = file_pb2.FILE_PURPOSE_BATCH_OUTPUT


@dataclass
class SetClock:
    """A manual clock. It starts at the real time, since files have real timestamps."""

    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    step_s: float = 0.0
    """Seconds by which each reading advances the clock."""

    def __call__(self) -> datetime:
        self.advance(seconds=self.step_s)
        return self.now

    def advance(self, **delta: float) -> None:
        self.now += timedelta(**delta)


@dataclass
class GrpcClient:
    """A channel with call metadata. Errors are raised as DomainError."""

    channel: grpc.aio.Channel = field(repr=False)
    metadata: tuple[tuple[str, str], ...] = ()

    async def call(self, method: Callable[..., Awaitable[AnswerT]], request: Any) -> AnswerT:
        """Call a method of a stub without a stream of responses."""
        with translate_errors():
            return await method(request, metadata=self.metadata)


@dataclass
class Client(GrpcClient):
    """A client of the file and upload services of one project."""

    def __post_init__(self) -> None:
        self.files = FileServiceStub(self.channel)
        self.uploads = UploadServiceStub(self.channel)

    async def create(
        self,
        content: bytes = b"hello",
        *,
        filename: str = "a.txt",
        purpose: file_pb2.FilePurpose = USER_DATA,
        **header: Any,
    ) -> file_pb2.File:
        first = file_pb2.FileHeader(filename=filename, purpose=purpose, **header)
        middle = len(content) // 2
        return await self.send([first, content[:middle], content[middle:]])

    async def send(self, parts: Iterable[file_pb2.FileHeader | bytes]) -> file_pb2.File:
        requests = [
            file_pb.CreateFileRequest(chunk=part)
            if isinstance(part, bytes)
            else file_pb.CreateFileRequest(header=part)
            for part in parts
        ]
        return (await self.call(self.files.CreateFile, iter(requests))).file

    async def get(self, file_id: str) -> file_pb2.File:
        request = file_pb.GetFileRequest(file_id=file_id)
        return (await self.call(self.files.GetFile, request)).file

    async def page(self, **request: Any) -> file_pb.ListFilesResponse:
        return await self.call(self.files.ListFiles, file_pb.ListFilesRequest(**request))

    async def delete(self, file_id: str) -> None:
        await self.call(self.files.DeleteFile, file_pb.DeleteFileRequest(file_id=file_id))

    async def read(self, file_id: str, **byte_range: int) -> bytes:
        request = file_pb.DownloadFileRequest(file_id=file_id, **byte_range)
        with translate_errors():
            call = self.files.DownloadFile(request, metadata=self.metadata)
            return b"".join([message.chunk async for message in call])

    async def create_upload(self, size_bytes: int, **request: Any) -> upload_service_pb2.Upload:
        fields: dict[str, Any] = {
            "filename": "a.txt",
            "purpose": USER_DATA,
            "mime_type": "text/plain",
            "size_bytes": size_bytes,
            **request,
        }
        new_upload = upload_service_pb2.CreateUploadRequest(**fields)
        return (await self.call(self.uploads.CreateUpload, new_upload)).upload

    async def get_upload(self, upload_id: str) -> upload_service_pb2.Upload:
        request = upload_service_pb2.GetUploadRequest(upload_id=upload_id)
        return (await self.call(self.uploads.GetUpload, request)).upload

    async def add_part(self, upload_id: str, *chunks: bytes) -> str:
        request = upload_service_pb2.AddUploadPartRequest
        requests = [request(upload_id=upload_id), *(request(chunk=chunk) for chunk in chunks)]
        return (await self.call(self.uploads.AddUploadPart, iter(requests))).part.id

    async def complete(
        self, upload_id: str, *part_ids: str, md5: str = ""
    ) -> upload_service_pb2.Upload:
        request = upload_service_pb2.CompleteUploadRequest(
            upload_id=upload_id, part_ids=part_ids, md5=md5
        )
        return (await self.call(self.uploads.CompleteUpload, request)).upload

    async def cancel(self, upload_id: str) -> upload_service_pb2.Upload:
        request = upload_service_pb2.CancelUploadRequest(upload_id=upload_id)
        return (await self.call(self.uploads.CancelUpload, request)).upload


@dataclass(frozen=True)
class RunningControl:
    control: Control
    client: Client
    clock: SetClock
    folder: Path
    blobs: "FaultyBlobs"

    @property
    def target(self) -> str:
        return str(self.control.server.address)

    def stored(self) -> list[Path]:
        """All blob files, complete or not."""
        return [path for path in (self.folder / "blobs").rglob("*") if path.is_file()]

    @property
    def service_metadata(self) -> tuple[tuple[str, str], ...]:
        token = ServiceToken.read(self.folder / "token")
        return (("authorization", f"Bearer {token.secret}"),)

    def of_project(self, project: str) -> Client:
        principal = Principal(project=project, scopes=frozenset({"inference"}), key_id="test")
        token = ServiceToken.read(self.folder / "token")
        bearer = ("authorization", f"Bearer {token.secret}")
        return Client(self.client.channel, (bearer, *principal_metadata(principal)))


class FaultyBlobs(FolderBlobs):
    """A blob folder with limited space, errors on demand, and events for each writer."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.free_bytes: int | None = None
        """Free space; None if unlimited. Writing more raises StorageFailed."""
        self.errors: list[Exception] = []
        """Raised by the next calls of `create`, in order."""
        self.num_open = 0
        """Sinks that are open."""
        self.started = asyncio.Event()
        """Set when a writer has opened a sink."""
        self.refused = asyncio.Event()
        """Set when a write did not fit."""
        self.closed = asyncio.Event()
        """Set when a writer has closed its sink."""
        self.gate = asyncio.Event()
        """Writers wait for it after `started`. Set unless cleared by a test."""
        self.gate.set()

    @asynccontextmanager
    async def create(self, key: str | None = None) -> AsyncIterator[BlobSink]:
        """Open a sink, unless there is an error to raise."""
        if self.errors:
            raise self.errors.pop(0)
        self.num_open += 1
        try:
            async with super().create(key) as sink:
                self.started.set()
                await self.gate.wait()
                yield _FaultySink(sink, self)
        finally:
            self.num_open -= 1
            self.closed.set()

    def allocate(self, num_bytes: int) -> None:
        """Reduce the free space. Raises StorageFailed."""
        if self.free_bytes is not None:
            self.free_bytes -= num_bytes
            if self.free_bytes < 0:
                self.refused.set()
                raise StorageFailed(problem="No space left on device")


class _FaultySink:
    def __init__(self, sink: BlobSink, blobs: FaultyBlobs) -> None:
        self._sink = sink
        self._blobs = blobs

    @property
    def size_bytes(self) -> int:
        return self._sink.size_bytes

    async def sha256(self) -> str:
        return await self._sink.sha256()

    async def write(self, chunk: bytes) -> None:
        await self._sink.write(chunk)
        self._blobs.allocate(len(chunk))

    async def commit(self) -> Blob:
        self._blobs.allocate(0)
        return await self._sink.commit()


def write_service_token(folder: Path) -> Path:
    """The service token file of a folder, which is created if it does not exist."""
    token_file = folder / "token"
    ensure_token(token_file)
    return token_file


@asynccontextmanager
async def run_control(
    folder: Path,
    database_url: str | None = None,
    sandbox: JobRunner | None = None,
    patience_s: float | None = 50,
    model: ModelParts | None = None,
    lines: LineRunner | None = None,
    **settings: Any,
) -> AsyncIterator[RunningControl]:
    """Run a control service in `folder` for at most `patience_s` seconds.

    Sandboxed jobs run in this process unless `sandbox` is given. `model` replaces the inference
    service, and `lines` replaces it in batches.
    """
    values: dict[str, Any] = {
        "listen": "127.0.0.1:0",
        "management_listen": None,
        "data_dir": folder,
        "database_url": database_url,
        "service_token_file": write_service_token(folder),
        "sweep_interval_s": 3600,
        **settings,
    }
    clock, blobs = SetClock(), FaultyBlobs(folder / "blobs")
    blobs.prepare()
    control_settings = ControlSettings(**values)
    if database_url is None:
        await create_sqlite_database(data_folder(control_settings))
    async with (
        asyncio.timeout(patience_s),
        build(
            control_settings,
            blobs=blobs,
            clock=clock,
            sandbox=sandbox or InlineJobs(),
            model=model,
            lines=lines,
        ) as control,
        open_channel(str(control.server.address)) as channel,
    ):
        yield RunningControl(control, Client(channel), clock, folder, blobs)
