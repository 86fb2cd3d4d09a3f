"""The gRPC servicers of files and uploads, and their conversion from and to protos."""

from collections.abc import AsyncIterator
from typing import Final

import grpc
from corral.control.v1 import file_pb2
from corral.control.v1 import file_service_pb2 as file_pb
from corral.control.v1 import file_service_pb2_grpc as file_rpc
from corral.control.v1 import upload_service_pb2 as upload_pb
from corral.control.v1 import upload_service_pb2_grpc as upload_rpc

from control_svc.base.pagination import PageRequest
from control_svc.base.proto import is_newest_first, timestamp, to_timedelta
from control_svc.files.model import Completion, File, FilePurpose, NewFile, NewUpload, UploadPart
from control_svc.files.service import Files
from control_svc.files.uploads import Uploads, UploadWithFile
from svc_kit.auth.principal import current_principal
from svc_kit.errors import InvalidField, MissingField

_PURPOSE: Final = "FILE_PURPOSE_"


def purpose_from_pb(value: int) -> FilePurpose | None:
    """Convert a purpose; None if unset. Raises InvalidField for an unknown value."""
    if value == file_pb2.FILE_PURPOSE_UNSPECIFIED:
        return None
    known = file_pb2.FilePurpose.DESCRIPTOR.values_by_number.get(value)
    if known is None:
        raise InvalidField(field="purpose", problem=f"{value} is not a file purpose")
    return FilePurpose[known.name.removeprefix(_PURPOSE)]


def new_file(header: file_pb2.FileHeader) -> NewFile:
    """Convert the header of a new file."""
    return NewFile(
        filename=header.filename,
        purpose=purpose_from_pb(header.purpose),
        ttl=to_timedelta("ttl", header.ttl) if header.HasField("ttl") else None,
        size_bytes=header.size_bytes if header.HasField("size_bytes") else None,
        sha256=header.sha256,
        request_id=header.request_id,
    )


def new_upload(request: upload_pb.CreateUploadRequest) -> NewUpload:
    """Convert the request to create an upload."""
    return NewUpload(
        filename=request.filename,
        purpose=purpose_from_pb(request.purpose),
        size_bytes=request.size_bytes,
        mime_type=request.mime_type,
        ttl=to_timedelta("ttl", request.ttl) if request.HasField("ttl") else None,
        request_id=request.request_id,
    )


def file_to_pb(file: File) -> file_pb2.File:
    """Convert a file."""
    return file_pb2.File(
        id=file.id,
        filename=file.filename,
        purpose=f"{_PURPOSE}{file.purpose.name}",
        size_bytes=file.size_bytes,
        sha256=file.sha256,
        create_time=timestamp(file.created_at),
        expire_time=None if file.expires_at is None else timestamp(file.expires_at),
    )


def upload_to_pb(upload_with_file: UploadWithFile) -> upload_pb.Upload:
    """Convert an upload."""
    upload, file = upload_with_file
    return upload_pb.Upload(
        id=upload.id,
        filename=upload.filename,
        purpose=f"{_PURPOSE}{upload.purpose.name}",
        size_bytes=upload.size_bytes,
        mime_type=upload.mime_type,
        state=f"STATE_{upload.state.name}",
        create_time=timestamp(upload.created_at),
        expire_time=timestamp(upload.expires_at),
        file=None if file is None else file_to_pb(file),
    )


def part_to_pb(part: UploadPart) -> upload_pb.UploadPart:
    """Convert a part of an upload."""
    return upload_pb.UploadPart(
        id=part.id,
        upload_id=part.upload_id,
        size_bytes=part.size_bytes,
        create_time=timestamp(part.created_at),
    )


Context = grpc.aio.ServicerContext[object, object]


class FileServicer(file_rpc.FileServiceServicer):
    """Files over gRPC."""

    def __init__(self, files: Files) -> None:
        self._files = files

    async def CreateFile(
        self, request_iterator: AsyncIterator[file_pb.CreateFileRequest], context: Context
    ) -> file_pb.CreateFileResponse:
        """Create a file from a stream of bytes."""
        file = await self._files.create(current_principal().project, _pieces(request_iterator))
        return file_pb.CreateFileResponse(file=file_to_pb(file))

    async def GetFile(
        self, request: file_pb.GetFileRequest, context: Context
    ) -> file_pb.GetFileResponse:
        """Get a file."""
        file = await self._files.get(current_principal().project, request.file_id)
        return file_pb.GetFileResponse(file=file_to_pb(file))

    async def ListFiles(
        self, request: file_pb.ListFilesRequest, context: Context
    ) -> file_pb.ListFilesResponse:
        """List the project's files."""
        newest_first = is_newest_first(request.order)
        cursor = PageRequest(request.page_size, request.page_token, request.after, newest_first)
        purpose = purpose_from_pb(request.purpose)
        page = await self._files.page(current_principal().project, cursor, purpose)
        files = [file_to_pb(file) for file in page.items]
        return file_pb.ListFilesResponse(files=files, next_page_token=page.next_token)

    async def DeleteFile(
        self, request: file_pb.DeleteFileRequest, context: Context
    ) -> file_pb.DeleteFileResponse:
        """Delete a file and its bytes."""
        await self._files.delete(current_principal().project, request.file_id)
        return file_pb.DeleteFileResponse()

    async def DownloadFile(
        self, request: file_pb.DownloadFileRequest, context: Context
    ) -> AsyncIterator[file_pb.DownloadFileResponse]:
        """Stream a file and the bytes of a range of it."""
        file, chunks = await self._files.download(
            current_principal().project,
            request.file_id,
            request.offset,
            request.length if request.HasField("length") else None,
        )
        yield file_pb.DownloadFileResponse(file=file_to_pb(file))
        async for chunk in chunks:
            yield file_pb.DownloadFileResponse(chunk=chunk)


async def _pieces(
    requests: AsyncIterator[file_pb.CreateFileRequest],
) -> AsyncIterator[NewFile | bytes]:
    async for request in requests:
        if request.HasField("header"):
            yield new_file(request.header)
        else:
            yield request.chunk


class UploadServicer(upload_rpc.UploadServiceServicer):
    """Uploads over gRPC."""

    def __init__(self, uploads: Uploads) -> None:
        self._uploads = uploads

    async def CreateUpload(
        self, request: upload_pb.CreateUploadRequest, context: Context
    ) -> upload_pb.CreateUploadResponse:
        """Create an upload."""
        upload = await self._uploads.create(current_principal().project, new_upload(request))
        return upload_pb.CreateUploadResponse(upload=upload_to_pb(upload))

    async def GetUpload(
        self, request: upload_pb.GetUploadRequest, context: Context
    ) -> upload_pb.GetUploadResponse:
        """Get an upload."""
        upload = await self._uploads.get(current_principal().project, request.upload_id)
        return upload_pb.GetUploadResponse(upload=upload_to_pb(upload))

    async def AddUploadPart(
        self, request_iterator: AsyncIterator[upload_pb.AddUploadPartRequest], context: Context
    ) -> upload_pb.AddUploadPartResponse:
        """Store a part of an upload."""
        upload_id = await _upload_id(request_iterator)
        part = await self._uploads.add_part(
            current_principal().project, upload_id, _chunks(request_iterator)
        )
        return upload_pb.AddUploadPartResponse(part=part_to_pb(part))

    async def CompleteUpload(
        self, request: upload_pb.CompleteUploadRequest, context: Context
    ) -> upload_pb.CompleteUploadResponse:
        """Concatenate the parts of an upload to a file."""
        upload = await self._uploads.complete(
            current_principal().project,
            request.upload_id,
            Completion(list(request.part_ids), request.md5),
        )
        return upload_pb.CompleteUploadResponse(upload=upload_to_pb(upload))

    async def CancelUpload(
        self, request: upload_pb.CancelUploadRequest, context: Context
    ) -> upload_pb.CancelUploadResponse:
        """Cancel an upload."""
        upload = await self._uploads.cancel(current_principal().project, request.upload_id)
        return upload_pb.CancelUploadResponse(upload=upload_to_pb(upload))


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
