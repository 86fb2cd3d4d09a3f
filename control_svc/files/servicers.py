"""The gRPC servicers of files and uploads, and their conversion from and to protos."""

from collections.abc import AsyncIterator
from typing import Final

from corral.control.v1 import file_pb2
from corral.control.v1 import file_service_pb2 as file_pb
from corral.control.v1 import file_service_pb2_grpc as file_rpc
from corral.control.v1 import upload_service_pb2 as upload_pb
from corral.control.v1 import upload_service_pb2_grpc as upload_rpc

from control_svc.base.proto import Context, caller_project, page_request
from control_svc.files.model import (
    Completion,
    File,
    FilePurpose,
    NewFile,
    NewUpload,
    Upload,
    UploadPart,
)
from control_svc.files.service import Files
from control_svc.files.uploads import Uploads, UploadWithFile
from svc_kit.errors import InvalidField, MissingField
from svc_kit.fair_semaphore import FairSemaphore
from svc_kit.rpc.message_mapper import EnumMapper, MessageMapper

MAX_TRANSFERS: Final = 32
"""Files that are received, sent or joined at once. Others wait, and projects are served in turns:
their bytes stay with the sender."""
MAX_PROJECT_TRANSFERS: Final = 24
"""Of these, those of one project, whose senders may be slow."""
_PURPOSES: Final = EnumMapper[FilePurpose](FilePurpose, file_pb2.FilePurpose)
_NEW_FILE: Final = MessageMapper(NewFile, file_pb2.FileHeader)
_NEW_UPLOAD: Final = MessageMapper(NewUpload, upload_pb.CreateUploadRequest)
_FILE: Final = MessageMapper(File, file_pb2.File, only_domain=["blob_key"])
_UPLOAD: Final = MessageMapper(
    UploadWithFile,
    upload_pb.Upload,
    flat={
        "upload": MessageMapper(
            Upload,
            upload_pb.Upload,
            only_domain=["ttl", "file_id", "completion"],
            is_part=True,
        )
    },
    uses=[_FILE],
)
_PART: Final = MessageMapper(UploadPart, upload_pb.UploadPart, only_domain=["blob_key"])


class FileServicer(file_rpc.FileServiceServicer):
    """Files over gRPC."""

    def __init__(self, files: Files, transfers: FairSemaphore) -> None:
        self._files = files
        self._transfers = transfers

    async def CreateFile(
        self, request_iterator: AsyncIterator[file_pb.CreateFileRequest], context: Context
    ) -> file_pb.CreateFileResponse:
        """Create a file from a stream of bytes."""
        project = caller_project()
        async with self._transfers.reserve(1, project):
            file = await self._files.create(project, _pieces(request_iterator))
        return file_pb.CreateFileResponse(file=_FILE.to_message(file))

    async def GetFile(
        self, request: file_pb.GetFileRequest, context: Context
    ) -> file_pb.GetFileResponse:
        """Get a file."""
        file = await self._files.get(caller_project(), request.file_id)
        return file_pb.GetFileResponse(file=_FILE.to_message(file))

    async def ListFiles(
        self, request: file_pb.ListFilesRequest, context: Context
    ) -> file_pb.ListFilesResponse:
        """List the project's files."""
        purpose = _PURPOSES.decode_optional(request.purpose, "purpose")
        page = await self._files.page(caller_project(), page_request(request, 0), purpose)
        files = [_FILE.to_message(file) for file in page.items]
        return file_pb.ListFilesResponse(files=files, next_page_token=page.next_token)

    async def DeleteFile(
        self, request: file_pb.DeleteFileRequest, context: Context
    ) -> file_pb.DeleteFileResponse:
        """Delete a file and its bytes."""
        await self._files.delete(caller_project(), request.file_id)
        return file_pb.DeleteFileResponse()

    async def DownloadFile(
        self, request: file_pb.DownloadFileRequest, context: Context
    ) -> AsyncIterator[file_pb.DownloadFileResponse]:
        """Stream a file and the bytes of a range of it."""
        project = caller_project()
        length = request.length if request.HasField("length") else None
        async with self._transfers.reserve(1, project):
            file, chunks = await self._files.download(
                project, request.file_id, request.offset, length
            )
            # Read first: lost bytes are an error, not a file that breaks off.
            first = await anext(chunks, b"")
            yield file_pb.DownloadFileResponse(file=_FILE.to_message(file))
            if first:
                yield file_pb.DownloadFileResponse(chunk=first)
            async for chunk in chunks:
                yield file_pb.DownloadFileResponse(chunk=chunk)


async def _pieces(
    requests: AsyncIterator[file_pb.CreateFileRequest],
) -> AsyncIterator[NewFile | bytes]:
    async for request in requests:
        if request.HasField("header"):
            yield _NEW_FILE.from_message(request.header)
        else:
            yield request.chunk


class UploadServicer(upload_rpc.UploadServiceServicer):
    """Uploads over gRPC."""

    def __init__(self, uploads: Uploads, transfers: FairSemaphore) -> None:
        self._uploads = uploads
        self._transfers = transfers

    async def CreateUpload(
        self, request: upload_pb.CreateUploadRequest, context: Context
    ) -> upload_pb.CreateUploadResponse:
        """Create an upload."""
        upload = await self._uploads.create(caller_project(), _NEW_UPLOAD.from_message(request))
        return upload_pb.CreateUploadResponse(upload=_UPLOAD.to_message(upload))

    async def GetUpload(
        self, request: upload_pb.GetUploadRequest, context: Context
    ) -> upload_pb.GetUploadResponse:
        """Get an upload."""
        upload = await self._uploads.get(caller_project(), request.upload_id)
        return upload_pb.GetUploadResponse(upload=_UPLOAD.to_message(upload))

    async def AddUploadPart(
        self, request_iterator: AsyncIterator[upload_pb.AddUploadPartRequest], context: Context
    ) -> upload_pb.AddUploadPartResponse:
        """Store a part of an upload."""
        project = caller_project()
        async with self._transfers.reserve(1, project):
            upload_id = await _upload_id(request_iterator)
            part = await self._uploads.add_part(project, upload_id, _chunks(request_iterator))
        return upload_pb.AddUploadPartResponse(part=_PART.to_message(part))

    async def CompleteUpload(
        self, request: upload_pb.CompleteUploadRequest, context: Context
    ) -> upload_pb.CompleteUploadResponse:
        """Concatenate the parts of an upload to a file."""
        project = caller_project()
        completion = Completion(list(request.part_ids), request.md5)
        async with self._transfers.reserve(1, project):
            upload = await self._uploads.complete(project, request.upload_id, completion)
        return upload_pb.CompleteUploadResponse(upload=_UPLOAD.to_message(upload))

    async def CancelUpload(
        self, request: upload_pb.CancelUploadRequest, context: Context
    ) -> upload_pb.CancelUploadResponse:
        """Cancel an upload."""
        upload = await self._uploads.cancel(caller_project(), request.upload_id)
        return upload_pb.CancelUploadResponse(upload=_UPLOAD.to_message(upload))


async def _upload_id(requests: AsyncIterator[upload_pb.AddUploadPartRequest]) -> str:
    async for first in requests:
        if first.HasField("upload_id"):
            return first.upload_id
        break
    raise MissingField(field="upload_id")


async def _chunks(requests: AsyncIterator[upload_pb.AddUploadPartRequest]) -> AsyncIterator[bytes]:
    async for request in requests:
        if request.HasField("upload_id"):
            raise InvalidField(field="upload_id", problem="must be set in the first message only")
        yield request.chunk
