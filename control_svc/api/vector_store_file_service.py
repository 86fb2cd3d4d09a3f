"""Servicer of `VectorStoreFileService`: convert, call, convert."""

import grpc
from corral.control.v1 import vector_store_file_service_pb2 as pb
from corral.control.v1 import vector_store_file_service_pb2_grpc as rpc

from control_svc.api import vector_convert as convert
from control_svc.api.convert import page_request
from control_svc.domain.listing import PageRequest
from control_svc.usecases.vector_files import DEFAULT_TEXTS, VectorFiles
from svc_kit.auth import current_principal

Context = grpc.aio.ServicerContext[object, object]


class VectorStoreFileServicer(rpc.VectorStoreFileServiceServicer):
    """The files of vector stores over gRPC."""

    def __init__(self, files: VectorFiles) -> None:
        self._files = files

    async def CreateVectorStoreFile(
        self, request: pb.CreateVectorStoreFileRequest, context: Context
    ) -> pb.CreateVectorStoreFileResponse:
        """Put a file into a store."""
        file = await self._files.create(
            current_principal().project,
            request.vector_store_id,
            convert.new_file(request),
            request.request_id,
        )
        return pb.CreateVectorStoreFileResponse(file=convert.file_to_pb(file))

    async def GetVectorStoreFile(
        self, request: pb.GetVectorStoreFileRequest, context: Context
    ) -> pb.GetVectorStoreFileResponse:
        """Describe a file in a store."""
        file = await self._files.get(
            current_principal().project, request.vector_store_id, request.file_id
        )
        return pb.GetVectorStoreFileResponse(file=convert.file_to_pb(file))

    async def ListVectorStoreFiles(
        self, request: pb.ListVectorStoreFilesRequest, context: Context
    ) -> pb.ListVectorStoreFilesResponse:
        """List the files of a store, or of a batch."""
        page = await self._files.page(
            current_principal().project,
            request.vector_store_id,
            page_request(request),
            request.batch_id,
            convert.file_state(request.state),
        )
        files = [convert.file_to_pb(file) for file in page.items]
        return pb.ListVectorStoreFilesResponse(files=files, next_page_token=page.next_token)

    async def UpdateVectorStoreFile(
        self, request: pb.UpdateVectorStoreFileRequest, context: Context
    ) -> pb.UpdateVectorStoreFileResponse:
        """Change the attributes of a file."""
        file = await self._files.update(
            current_principal().project,
            request.vector_store_id,
            request.file_id,
            convert.attributes_of(request.attributes),
        )
        return pb.UpdateVectorStoreFileResponse(file=convert.file_to_pb(file))

    async def DeleteVectorStoreFile(
        self, request: pb.DeleteVectorStoreFileRequest, context: Context
    ) -> pb.DeleteVectorStoreFileResponse:
        """Take a file out of a store."""
        await self._files.delete(
            current_principal().project, request.vector_store_id, request.file_id
        )
        return pb.DeleteVectorStoreFileResponse()

    async def ListVectorStoreFileContents(
        self, request: pb.ListVectorStoreFileContentsRequest, context: Context
    ) -> pb.ListVectorStoreFileContentsResponse:
        """Show what was read from a file."""
        asked = PageRequest(
            request.page_size or DEFAULT_TEXTS, request.page_token, newest_first=False
        )
        texts, next_token = await self._files.texts(
            current_principal().project, request.vector_store_id, request.file_id, asked
        )
        return pb.ListVectorStoreFileContentsResponse(texts=texts, next_page_token=next_token)

    async def CreateVectorStoreFileBatch(
        self, request: pb.CreateVectorStoreFileBatchRequest, context: Context
    ) -> pb.CreateVectorStoreFileBatchResponse:
        """Put files into a store together."""
        batch = await self._files.create_batch(
            current_principal().project,
            request.vector_store_id,
            [convert.new_file(file) for file in request.files],
            request.request_id,
        )
        return pb.CreateVectorStoreFileBatchResponse(batch=convert.batch_to_pb(batch))

    async def GetVectorStoreFileBatch(
        self, request: pb.GetVectorStoreFileBatchRequest, context: Context
    ) -> pb.GetVectorStoreFileBatchResponse:
        """Describe a batch."""
        batch = await self._files.get_batch(
            current_principal().project, request.vector_store_id, request.batch_id
        )
        return pb.GetVectorStoreFileBatchResponse(batch=convert.batch_to_pb(batch))

    async def CancelVectorStoreFileBatch(
        self, request: pb.CancelVectorStoreFileBatchRequest, context: Context
    ) -> pb.CancelVectorStoreFileBatchResponse:
        """Give up what of a batch is not complete."""
        batch = await self._files.cancel_batch(
            current_principal().project, request.vector_store_id, request.batch_id
        )
        return pb.CancelVectorStoreFileBatchResponse(batch=convert.batch_to_pb(batch))
