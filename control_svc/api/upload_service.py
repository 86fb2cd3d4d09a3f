"""Servicer of `UploadService`: convert, call, convert."""

from collections.abc import AsyncIterator

import grpc
from corral.control.v1 import upload_service_pb2 as pb
from corral.control.v1 import upload_service_pb2_grpc as rpc

from control_svc.api import convert
from control_svc.domain.uploads import Completion
from control_svc.usecases.uploads import Uploads
from svc_kit.auth import current_principal
from svc_kit.errors import InvalidField, MissingField

Context = grpc.aio.ServicerContext[object, object]


class UploadServicer(rpc.UploadServiceServicer):
    """Uploads over gRPC."""

    def __init__(self, uploads: Uploads) -> None:
        self._uploads = uploads

    async def CreateUpload(
        self, request: pb.CreateUploadRequest, context: Context
    ) -> pb.CreateUploadResponse:
        """Announce a file."""
        described = convert.new_upload(request)
        found = await self._uploads.create(current_principal().project, described)
        return pb.CreateUploadResponse(upload=convert.upload_to_pb(found))

    async def GetUpload(
        self, request: pb.GetUploadRequest, context: Context
    ) -> pb.GetUploadResponse:
        """Describe an upload."""
        found = await self._uploads.get(current_principal().project, request.upload_id)
        return pb.GetUploadResponse(upload=convert.upload_to_pb(found))

    async def AddUploadPart(
        self, request_iterator: AsyncIterator[pb.AddUploadPartRequest], context: Context
    ) -> pb.AddUploadPartResponse:
        """Store a part."""
        upload_id = await _upload_id(request_iterator)
        part = await self._uploads.add_part(
            current_principal().project, upload_id, _chunks(request_iterator)
        )
        return pb.AddUploadPartResponse(part=convert.part_to_pb(part))

    async def CompleteUpload(
        self, request: pb.CompleteUploadRequest, context: Context
    ) -> pb.CompleteUploadResponse:
        """Make a file of parts."""
        found = await self._uploads.complete(
            current_principal().project,
            request.upload_id,
            Completion(list(request.part_ids), request.md5),
        )
        return pb.CompleteUploadResponse(upload=convert.upload_to_pb(found))

    async def CancelUpload(
        self, request: pb.CancelUploadRequest, context: Context
    ) -> pb.CancelUploadResponse:
        """Give an upload up."""
        found = await self._uploads.cancel(current_principal().project, request.upload_id)
        return pb.CancelUploadResponse(upload=convert.upload_to_pb(found))


async def _upload_id(requests: AsyncIterator[pb.AddUploadPartRequest]) -> str:
    async for first in requests:
        if first.HasField("upload_id"):
            return first.upload_id
        break
    raise MissingField(field="upload_id")


async def _chunks(requests: AsyncIterator[pb.AddUploadPartRequest]) -> AsyncIterator[bytes]:
    async for request in requests:
        if request.HasField("upload_id"):
            raise InvalidField(field="upload_id", problem="it comes first, and once")
        yield request.chunk
