"""Vector stores as the routes see them: typed calls as a caller, with a deadline."""

from typing import Final

import grpc.aio
from corral.control.v1 import vector_store_file_service_pb2 as files_pb
from corral.control.v1 import vector_store_pb2
from corral.control.v1 import vector_store_service_pb2 as pb
from corral.control.v1.vector_store_file_service_pb2_grpc import VectorStoreFileServiceStub
from corral.control.v1.vector_store_service_pb2_grpc import VectorStoreServiceStub

from gateway.auth import Caller, Credentials
from gateway.clients.control import ControlCalls

_SEARCH_TIMEOUT_S: Final = 120.0
"""A model may have to be loaded first."""


class VectorStoreClient(ControlCalls):
    """Stores and their files over one channel."""

    def __init__(
        self, channel: grpc.aio.Channel, credentials: Credentials, transfer_timeout_s: float
    ) -> None:
        super().__init__(credentials, transfer_timeout_s)
        self._stores = VectorStoreServiceStub(channel)
        self._files = VectorStoreFileServiceStub(channel)

    async def create(
        self, request: pb.CreateVectorStoreRequest, caller: Caller
    ) -> vector_store_pb2.VectorStore:
        """Begin a store."""
        answer = await self._ask(self._stores.CreateVectorStore, request, caller)
        return answer.vector_store

    async def get(self, store_id: str, caller: Caller) -> vector_store_pb2.VectorStore:
        """One store."""
        request = pb.GetVectorStoreRequest(vector_store_id=store_id)
        answer = await self._ask(self._stores.GetVectorStore, request, caller)
        return answer.vector_store

    async def page(
        self, request: pb.ListVectorStoresRequest, caller: Caller
    ) -> pb.ListVectorStoresResponse:
        """A page of stores."""
        return await self._ask(self._stores.ListVectorStores, request, caller)

    async def update(
        self, request: pb.UpdateVectorStoreRequest, caller: Caller
    ) -> vector_store_pb2.VectorStore:
        """Change a store."""
        answer = await self._ask(self._stores.UpdateVectorStore, request, caller)
        return answer.vector_store

    async def delete(self, store_id: str, caller: Caller) -> None:
        """Delete a store."""
        request = pb.DeleteVectorStoreRequest(vector_store_id=store_id)
        await self._ask(self._stores.DeleteVectorStore, request, caller)

    async def search(
        self, request: pb.SearchVectorStoreRequest, caller: Caller
    ) -> pb.SearchVectorStoreResponse:
        """Find passages."""
        method = self._stores.SearchVectorStore
        return await self._ask(method, request, caller, timeout_s=_SEARCH_TIMEOUT_S)

    async def add_file(
        self, request: files_pb.CreateVectorStoreFileRequest, caller: Caller
    ) -> vector_store_pb2.VectorStoreFile:
        """Put a file into a store."""
        answer = await self._ask(self._files.CreateVectorStoreFile, request, caller)
        return answer.file

    async def get_file(
        self, store_id: str, file_id: str, caller: Caller
    ) -> vector_store_pb2.VectorStoreFile:
        """One file in a store."""
        request = files_pb.GetVectorStoreFileRequest(vector_store_id=store_id, file_id=file_id)
        answer = await self._ask(self._files.GetVectorStoreFile, request, caller)
        return answer.file

    async def page_files(
        self, request: files_pb.ListVectorStoreFilesRequest, caller: Caller
    ) -> files_pb.ListVectorStoreFilesResponse:
        """A page of the files in a store, or of a batch."""
        return await self._ask(self._files.ListVectorStoreFiles, request, caller)

    async def update_file(
        self, request: files_pb.UpdateVectorStoreFileRequest, caller: Caller
    ) -> vector_store_pb2.VectorStoreFile:
        """Change the attributes of a file."""
        answer = await self._ask(self._files.UpdateVectorStoreFile, request, caller)
        return answer.file

    async def remove_file(self, store_id: str, file_id: str, caller: Caller) -> None:
        """Take a file out of a store."""
        request = files_pb.DeleteVectorStoreFileRequest(vector_store_id=store_id, file_id=file_id)
        await self._ask(self._files.DeleteVectorStoreFile, request, caller)

    async def texts(self, store_id: str, file_id: str, caller: Caller) -> list[str]:
        """All passages of a file."""
        texts: list[str] = []
        token = ""
        while True:
            request = files_pb.ListVectorStoreFileContentsRequest(
                vector_store_id=store_id, file_id=file_id, page_token=token
            )
            answer = await self._ask(self._files.ListVectorStoreFileContents, request, caller)
            texts += answer.texts
            token = answer.next_page_token
            if not token:
                return texts

    async def add_batch(
        self, request: files_pb.CreateVectorStoreFileBatchRequest, caller: Caller
    ) -> vector_store_pb2.VectorStoreFileBatch:
        """Put files into a store together."""
        answer = await self._ask(self._files.CreateVectorStoreFileBatch, request, caller)
        return answer.batch

    async def get_batch(
        self, store_id: str, batch_id: str, caller: Caller
    ) -> vector_store_pb2.VectorStoreFileBatch:
        """One batch."""
        request = files_pb.GetVectorStoreFileBatchRequest(
            vector_store_id=store_id, batch_id=batch_id
        )
        answer = await self._ask(self._files.GetVectorStoreFileBatch, request, caller)
        return answer.batch

    async def cancel_batch(
        self, store_id: str, batch_id: str, caller: Caller
    ) -> vector_store_pb2.VectorStoreFileBatch:
        """Give a batch up."""
        request = files_pb.CancelVectorStoreFileBatchRequest(
            vector_store_id=store_id, batch_id=batch_id
        )
        answer = await self._ask(self._files.CancelVectorStoreFileBatch, request, caller)
        return answer.batch
