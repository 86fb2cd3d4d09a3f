"""Servicer of `FileService`: convert, call, convert."""

from collections.abc import AsyncIterator

import grpc
from corral.control.v1 import file_service_pb2 as pb
from corral.control.v1 import file_service_pb2_grpc as rpc

from control_svc.api import convert
from control_svc.domain.files import NewFile
from control_svc.domain.listing import PageRequest
from control_svc.usecases.files import Files
from svc_kit.auth import current_principal

Context = grpc.aio.ServicerContext[object, object]


class FileServicer(rpc.FileServiceServicer):
    """Files over gRPC."""

    def __init__(self, files: Files) -> None:
        self._files = files

    async def CreateFile(
        self, request_iterator: AsyncIterator[pb.CreateFileRequest], context: Context
    ) -> pb.CreateFileResponse:
        """Store the bytes of a stream."""
        file = await self._files.create(current_principal().project, _pieces(request_iterator))
        return pb.CreateFileResponse(file=convert.file_to_pb(file))

    async def GetFile(self, request: pb.GetFileRequest, context: Context) -> pb.GetFileResponse:
        """Describe one file."""
        file = await self._files.get(current_principal().project, request.file_id)
        return pb.GetFileResponse(file=convert.file_to_pb(file))

    async def ListFiles(
        self, request: pb.ListFilesRequest, context: Context
    ) -> pb.ListFilesResponse:
        """List the project's files."""
        asked = PageRequest(
            request.page_size,
            request.page_token,
            request.after,
            convert.is_newest_first(request.order),
        )
        purpose = convert.purpose_from_pb(request.purpose)
        page = await self._files.page(current_principal().project, asked, purpose)
        files = [convert.file_to_pb(file) for file in page.items]
        return pb.ListFilesResponse(files=files, next_page_token=page.next_token)

    async def DeleteFile(
        self, request: pb.DeleteFileRequest, context: Context
    ) -> pb.DeleteFileResponse:
        """Delete a file and its bytes."""
        await self._files.delete(current_principal().project, request.file_id)
        return pb.DeleteFileResponse()

    async def DownloadFile(
        self, request: pb.DownloadFileRequest, context: Context
    ) -> AsyncIterator[pb.DownloadFileResponse]:
        """Send the bytes of a file."""
        file, chunks = await self._files.download(
            current_principal().project,
            request.file_id,
            request.offset,
            request.length if request.HasField("length") else None,
        )
        yield pb.DownloadFileResponse(file=convert.file_to_pb(file))
        async for chunk in chunks:
            yield pb.DownloadFileResponse(chunk=chunk)


async def _pieces(
    requests: AsyncIterator[pb.CreateFileRequest],
) -> AsyncIterator[NewFile | bytes]:
    async for request in requests:
        if request.HasField("header"):
            yield convert.new_file(request.header)
        else:
            yield request.chunk
