"""A control service on a free port, over a real database and a folder, with a clock that is set."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import grpc.aio
from corral.control.v1 import file_pb2, upload_service_pb2
from corral.control.v1 import file_service_pb2 as file_pb
from corral.control.v1.file_service_pb2_grpc import FileServiceStub
from corral.control.v1.upload_service_pb2_grpc import UploadServiceStub

from control_svc.app import Control, build, upgrade_database
from control_svc.batches.lines import LineRunner
from control_svc.blobs.local import FolderBlobs
from control_svc.blobs.store import Blob, BlobSink, BlobStore
from control_svc.config import ControlSettings
from control_svc.db.engine import FILE_NAME
from control_svc.deps import ModelParts, data_folder
from svc_kit.auth.authenticator import ServiceToken, principal_metadata
from svc_kit.auth.principal import Principal
from svc_kit.errors import StorageFailed
from svc_kit.rpc.client import open_channel, translate_errors
from svc_kit.sandbox.frames import InlineJobs
from svc_kit.sandbox.jobs import JobRunner

if TYPE_CHECKING:  # stubs over an aio channel have names for type checkers only
    from corral.control.v1.file_service_pb2_grpc import FileServiceAsyncStub
    from corral.control.v1.upload_service_pb2_grpc import UploadServiceAsyncStub

USER_DATA = file_pb2.FILE_PURPOSE_USER_DATA
BATCH = file_pb2.FILE_PURPOSE_BATCH
BATCH_OUTPUT = file_pb2.FILE_PURPOSE_BATCH_OUTPUT


@dataclass
class SetClock:
    """A clock that moves when it is told to, from now on: the disk has a clock of its own."""

    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    step_s: float = 0.0
    """How far it moves whenever somebody looks at it."""

    def __call__(self) -> datetime:
        """The time."""
        self.advance(seconds=self.step_s)
        return self.now

    def advance(self, **by: float) -> None:
        """Let time pass, in the words of timedelta."""
        self.now += timedelta(**by)


@dataclass(frozen=True)
class Client:
    """Both services as one project's caller sees them; failures are our errors."""

    channel: grpc.aio.Channel = field(repr=False)
    metadata: tuple[tuple[str, str], ...] = ()

    @property
    def files(self) -> "FileServiceAsyncStub":
        """FileService, bare."""
        return FileServiceStub(self.channel)

    @property
    def uploads(self) -> "UploadServiceAsyncStub":
        """UploadService, bare."""
        return UploadServiceStub(self.channel)

    async def create(
        self,
        content: bytes = b"hello",
        *,
        filename: str = "a.txt",
        purpose: file_pb2.FilePurpose = USER_DATA,
        **header: Any,
    ) -> file_pb2.File:
        """A file in two chunks, its header first."""
        about = file_pb2.FileHeader(filename=filename, purpose=purpose, **header)
        middle = len(content) // 2
        return await self.send([about, content[:middle], content[middle:]])

    async def send(self, pieces: Iterable[file_pb2.FileHeader | bytes]) -> file_pb2.File:
        """A file of these messages."""
        requests = [
            file_pb.CreateFileRequest(chunk=piece)
            if isinstance(piece, bytes)
            else file_pb.CreateFileRequest(header=piece)
            for piece in pieces
        ]
        with translate_errors():
            answer = await self.files.CreateFile(iter(requests), metadata=self.metadata)
        return answer.file

    async def get(self, file_id: str) -> file_pb2.File:
        """One file."""
        with translate_errors():
            request = file_pb.GetFileRequest(file_id=file_id)
            return (await self.files.GetFile(request, metadata=self.metadata)).file

    async def page(self, **request: Any) -> file_pb.ListFilesResponse:
        """A page of files."""
        with translate_errors():
            return await self.files.ListFiles(
                file_pb.ListFilesRequest(**request), metadata=self.metadata
            )

    async def delete(self, file_id: str) -> None:
        """Delete a file."""
        with translate_errors():
            request = file_pb.DeleteFileRequest(file_id=file_id)
            await self.files.DeleteFile(request, metadata=self.metadata)

    async def read(self, file_id: str, **window: int) -> bytes:
        """The bytes of a file."""
        request = file_pb.DownloadFileRequest(file_id=file_id, **window)
        with translate_errors():
            call = self.files.DownloadFile(request, metadata=self.metadata)
            return b"".join([message.chunk async for message in call])

    async def create_upload(self, size_bytes: int, **request: Any) -> upload_service_pb2.Upload:
        """An announced upload."""
        about: dict[str, Any] = {
            "filename": "a.txt",
            "purpose": USER_DATA,
            "mime_type": "text/plain",
            **request,
        }
        with translate_errors():
            answer = await self.uploads.CreateUpload(
                upload_service_pb2.CreateUploadRequest(size_bytes=size_bytes, **about),
                metadata=self.metadata,
            )
        return answer.upload

    async def get_upload(self, upload_id: str) -> upload_service_pb2.Upload:
        """One upload."""
        with translate_errors():
            request = upload_service_pb2.GetUploadRequest(upload_id=upload_id)
            return (await self.uploads.GetUpload(request, metadata=self.metadata)).upload

    async def add_part(self, upload_id: str, *chunks: bytes) -> str:
        """A part; its id."""
        pieces = [upload_service_pb2.AddUploadPartRequest(chunk=chunk) for chunk in chunks]
        first = upload_service_pb2.AddUploadPartRequest(upload_id=upload_id)
        with translate_errors():
            answer = await self.uploads.AddUploadPart(
                iter([first, *pieces]), metadata=self.metadata
            )
        return answer.part.id

    async def complete(
        self, upload_id: str, *part_ids: str, md5: str = ""
    ) -> upload_service_pb2.Upload:
        """Make a file of parts."""
        request = upload_service_pb2.CompleteUploadRequest(
            upload_id=upload_id, part_ids=part_ids, md5=md5
        )
        with translate_errors():
            return (await self.uploads.CompleteUpload(request, metadata=self.metadata)).upload

    async def cancel(self, upload_id: str) -> upload_service_pb2.Upload:
        """Give an upload up."""
        request = upload_service_pb2.CancelUploadRequest(upload_id=upload_id)
        with translate_errors():
            return (await self.uploads.CancelUpload(request, metadata=self.metadata)).upload


@dataclass(frozen=True)
class RunningControl:
    """A control service in this process."""

    control: Control
    client: Client
    clock: SetClock
    folder: Path
    blobs: "FullingBlobs"

    @property
    def target(self) -> str:
        """What a channel connects to."""
        return str(self.control.server.address)

    def stored(self) -> list[Path]:
        """Every file of bytes, complete or not."""
        return [path for path in (self.folder / "blobs").rglob("*") if path.is_file()]

    @property
    def service_metadata(self) -> tuple[tuple[str, str], ...]:
        """What one of our own services calls with, for itself."""
        token = ServiceToken.read(self.folder / "token")
        return (("authorization", f"Bearer {token.secret}"),)

    def of_project(self, project: str) -> Client:
        """A caller of another project, by the service token."""
        principal = Principal(project=project, scopes=frozenset({"inference"}), key_id="test")
        token = ServiceToken.read(self.folder / "token")
        bearer = ("authorization", f"Bearer {token.secret}")
        return Client(self.client.channel, (bearer, *principal_metadata(principal)))


class FullingBlobs(FolderBlobs):
    """A folder on a disk that has room for so many more bytes (None: for any), and that says when
    somebody has begun to write and when somebody has left. Who begins passes the gate first."""

    room: int | None = None

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.entered = asyncio.Event()
        self.refused = asyncio.Event()
        self.left = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    @asynccontextmanager
    async def create(self) -> AsyncIterator[BlobSink]:
        """Bytes that may not fit."""
        try:
            async with super().create() as sink:
                self.entered.set()
                await self.gate.wait()
                yield _FullingSink(sink, self)
        finally:
            self.left.set()

    def take(self, count: int) -> None:
        """Raises StorageFailed."""
        if self.room is not None:
            self.room -= count
            if self.room < 0:
                self.refused.set()
                raise StorageFailed(problem="No space left on device")


class _FullingSink:
    def __init__(self, sink: BlobSink, disk: FullingBlobs) -> None:
        self._sink = sink
        self._disk = disk

    @property
    def size_bytes(self) -> int:
        return self._sink.size_bytes

    async def sha256(self) -> str:
        return await self._sink.sha256()

    async def write(self, chunk: bytes) -> None:
        await self._sink.write(chunk)
        self._disk.take(len(chunk))

    async def commit(self) -> Blob:
        self._disk.take(0)
        return await self._sink.commit()


def a_service_token(folder: Path) -> Path:
    """The file of the token that a control service in a folder has."""
    token_file = folder / "token"
    if not token_file.exists():
        ServiceToken.create(token_file)
    return token_file


_migrated: list[bytes] = []
"""SQLite's file as the migrations make it, once they have."""


async def _give_tables(settings: ControlSettings) -> None:
    """Copy them into a folder without a database: to make them anew takes longer than most tests
    do."""
    path = data_folder(settings) / FILE_NAME
    if not _migrated:
        with TemporaryDirectory() as made:
            there = settings.model_copy(update={"data_dir": Path(made)})
            await upgrade_database(there)
            _migrated.append((data_folder(there) / FILE_NAME).read_bytes())
    if not path.exists():
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_bytes(_migrated[0])


@asynccontextmanager
async def a_control(
    folder: Path,
    database_url: str | None = None,
    sandbox: JobRunner | None = None,
    patience_s: float | None = 25,
    model: ModelParts | None = None,
    lines: LineRunner | None = None,
    **settings: Any,
) -> AsyncIterator[RunningControl]:
    """A control service whose data is in `folder`, for at most so long; nothing has a child process
    unless given.

    `model` stands in for the inference service, and `lines` for it in batches.
    """
    token_file = a_service_token(folder)
    values: dict[str, Any] = {
        "listen": "127.0.0.1:0",
        "management_listen": None,
        "data_dir": folder,
        "database_url": database_url,
        "service_token_file": token_file,
        "sweep_interval_s": 3600,
        **settings,
    }
    clock, blobs = SetClock(), FullingBlobs(folder / "blobs")
    blobs.prepare()
    chosen = ControlSettings(**values)
    if database_url is None:
        await _give_tables(chosen)
    store: BlobStore = blobs
    async with (
        asyncio.timeout(patience_s),
        build(
            chosen,
            blobs=store,
            clock=clock,
            sandbox=sandbox or InlineJobs(),
            model=model,
            lines=lines,
        ) as control,
        open_channel(str(control.server.address)) as channel,
    ):
        yield RunningControl(control, Client(channel), clock, folder, blobs)
