"""The gRPC servicers of vector stores and their files."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing

from corral.control.v1 import vector_store_file_service_pb2 as files_pb
from corral.control.v1 import vector_store_file_service_pb2_grpc as files_rpc
from corral.control.v1 import vector_store_pb2
from corral.control.v1 import vector_store_service_pb2 as stores_pb
from corral.control.v1 import vector_store_service_pb2_grpc as stores_rpc
from corral.inference.v1.generation_pb2 import RateLimitStatus

from control_svc.base.proto import Context, caller_project, changed_fields, page_request
from control_svc.db.transaction import Clock
from control_svc.vector_stores import proto as convert
from control_svc.vector_stores.files import DEFAULT_TEXTS, VectorFiles
from control_svc.vector_stores.model import VectorStore
from control_svc.vector_stores.search.model import Search
from control_svc.vector_stores.service import VectorStores

DEFAULT_RESULTS = 10
CallerLimits = Callable[[], Awaitable[Sequence[RateLimitStatus]]]
"""Reads the enforced limits of the running call for the embedding model."""


class VectorStoreServicer(stores_rpc.VectorStoreServiceServicer):
    """VectorStoreService."""

    def __init__(
        self, stores: VectorStores, search: Search, clock: Clock, limits: CallerLimits
    ) -> None:
        self._stores = stores
        self._search = search
        self._clock = clock
        self._limits = limits

    def _to_pb(self, store: VectorStore) -> vector_store_pb2.VectorStore:
        return convert.store_to_pb(store, self._clock)

    async def CreateVectorStore(
        self, request: stores_pb.CreateVectorStoreRequest, context: Context
    ) -> stores_pb.CreateVectorStoreResponse:
        """Create a store."""
        store = await self._stores.create(caller_project(), convert.NEW_STORE.from_message(request))
        limits = await self._limits() if request.file_ids else ()
        return stores_pb.CreateVectorStoreResponse(
            vector_store=self._to_pb(store), rate_limits=limits
        )

    async def GetVectorStore(
        self, request: stores_pb.GetVectorStoreRequest, context: Context
    ) -> stores_pb.GetVectorStoreResponse:
        """Get a store."""
        store = await self._stores.get(caller_project(), request.vector_store_id)
        return stores_pb.GetVectorStoreResponse(vector_store=self._to_pb(store))

    async def ListVectorStores(
        self, request: stores_pb.ListVectorStoresRequest, context: Context
    ) -> stores_pb.ListVectorStoresResponse:
        """List the project's stores."""
        page = await self._stores.page(caller_project(), page_request(request))
        stores = [self._to_pb(store) for store in page.items]
        return stores_pb.ListVectorStoresResponse(
            vector_stores=stores, next_page_token=page.next_token
        )

    async def UpdateVectorStore(
        self, request: stores_pb.UpdateVectorStoreRequest, context: Context
    ) -> stores_pb.UpdateVectorStoreResponse:
        """Update a store."""
        changes = convert.store_changes(request)
        store = await self._stores.update(caller_project(), request.vector_store_id, changes)
        return stores_pb.UpdateVectorStoreResponse(vector_store=self._to_pb(store))

    async def DeleteVectorStore(
        self, request: stores_pb.DeleteVectorStoreRequest, context: Context
    ) -> stores_pb.DeleteVectorStoreResponse:
        """Delete a store."""
        await self._stores.delete(caller_project(), request.vector_store_id)
        return stores_pb.DeleteVectorStoreResponse()

    async def SearchVectorStore(
        self, request: stores_pb.SearchVectorStoreRequest, context: Context
    ) -> stores_pb.SearchVectorStoreResponse:
        """Search the chunks of a store."""
        hits = await self._search.search(
            caller_project(),
            [request.vector_store_id],
            request.queries,
            request.max_results or DEFAULT_RESULTS,
            convert.read_filter(request.filter) if request.HasField("filter") else None,
            convert.RANKING.from_message(request.ranking),
        )
        return stores_pb.SearchVectorStoreResponse(
            hits=[convert.HIT.to_message(hit) for hit in hits], rate_limits=await self._limits()
        )

    async def WatchVectorStore(
        self, request: stores_pb.WatchVectorStoreRequest, context: Context
    ) -> AsyncIterator[stores_pb.WatchVectorStoreResponse]:
        """Send a store now and after each change, until no file is in progress."""
        changes = self._stores.watch(caller_project(), request.vector_store_id)
        async with aclosing(changes) as stores:
            async for store in stores:
                yield stores_pb.WatchVectorStoreResponse(vector_store=self._to_pb(store))


class VectorStoreFileServicer(files_rpc.VectorStoreFileServiceServicer):
    """VectorStoreFileService."""

    def __init__(self, files: VectorFiles, limits: CallerLimits) -> None:
        self._files = files
        self._limits = limits

    async def CreateVectorStoreFile(
        self, request: files_pb.CreateVectorStoreFileRequest, context: Context
    ) -> files_pb.CreateVectorStoreFileResponse:
        """Add a file to a store."""
        file = await self._files.create(
            caller_project(),
            request.vector_store_id,
            convert.NEW_SINGLE_FILE.from_message(request),
            request.request_id,
        )
        return files_pb.CreateVectorStoreFileResponse(
            file=convert.file_to_pb(file), rate_limits=await self._limits()
        )

    async def GetVectorStoreFile(
        self, request: files_pb.GetVectorStoreFileRequest, context: Context
    ) -> files_pb.GetVectorStoreFileResponse:
        """Get a file of a store."""
        file = await self._files.get(caller_project(), request.vector_store_id, request.file_id)
        return files_pb.GetVectorStoreFileResponse(file=convert.file_to_pb(file))

    async def ListVectorStoreFiles(
        self, request: files_pb.ListVectorStoreFilesRequest, context: Context
    ) -> files_pb.ListVectorStoreFilesResponse:
        """List the files of a store, or of a batch."""
        page = await self._files.page(
            caller_project(),
            request.vector_store_id,
            page_request(request),
            request.batch_id,
            convert.FILE_STATE.decode_optional(request.state, "state"),
        )
        files = [convert.file_to_pb(file) for file in page.items]
        return files_pb.ListVectorStoreFilesResponse(files=files, next_page_token=page.next_token)

    async def UpdateVectorStoreFile(
        self, request: files_pb.UpdateVectorStoreFileRequest, context: Context
    ) -> files_pb.UpdateVectorStoreFileResponse:
        """Change the attributes of a file."""
        changed = changed_fields(request, ("attributes",))
        file = await self._files.update(
            caller_project(),
            request.vector_store_id,
            request.file_id,
            convert.read_attributes(request.attributes) if changed else None,
        )
        return files_pb.UpdateVectorStoreFileResponse(file=convert.file_to_pb(file))

    async def DeleteVectorStoreFile(
        self, request: files_pb.DeleteVectorStoreFileRequest, context: Context
    ) -> files_pb.DeleteVectorStoreFileResponse:
        """Remove a file from a store."""
        await self._files.delete(caller_project(), request.vector_store_id, request.file_id)
        return files_pb.DeleteVectorStoreFileResponse()

    async def ListVectorStoreFileContents(
        self, request: files_pb.ListVectorStoreFileContentsRequest, context: Context
    ) -> files_pb.ListVectorStoreFileContentsResponse:
        """List the texts of a file's chunks."""
        page = await self._files.list_texts(
            caller_project(),
            request.vector_store_id,
            request.file_id,
            page_request(request, DEFAULT_TEXTS, newest_first=False),
        )
        texts = [chunk.text for chunk in page.items]
        return files_pb.ListVectorStoreFileContentsResponse(
            texts=texts, next_page_token=page.next_token
        )

    async def CreateVectorStoreFileBatch(
        self, request: files_pb.CreateVectorStoreFileBatchRequest, context: Context
    ) -> files_pb.CreateVectorStoreFileBatchResponse:
        """Add files to a store as a batch."""
        batch = await self._files.create_batch(
            caller_project(),
            request.vector_store_id,
            [
                convert.NEW_FILE.from_message(file, f"files[{index}]")
                for index, file in enumerate(request.files)
            ],
            request.request_id,
        )
        return files_pb.CreateVectorStoreFileBatchResponse(
            batch=convert.BATCH.to_message(batch), rate_limits=await self._limits()
        )

    async def GetVectorStoreFileBatch(
        self, request: files_pb.GetVectorStoreFileBatchRequest, context: Context
    ) -> files_pb.GetVectorStoreFileBatchResponse:
        """Get a batch."""
        batch = await self._files.get_batch(
            caller_project(), request.vector_store_id, request.batch_id
        )
        return files_pb.GetVectorStoreFileBatchResponse(batch=convert.BATCH.to_message(batch))

    async def CancelVectorStoreFileBatch(
        self, request: files_pb.CancelVectorStoreFileBatchRequest, context: Context
    ) -> files_pb.CancelVectorStoreFileBatchResponse:
        """Cancel the files of a batch that are in progress."""
        batch = await self._files.cancel_batch(
            caller_project(), request.vector_store_id, request.batch_id
        )
        return files_pb.CancelVectorStoreFileBatchResponse(batch=convert.BATCH.to_message(batch))
