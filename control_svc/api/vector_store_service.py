"""Servicer of `VectorStoreService`: convert, call, convert."""

from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc
from corral.control.v1 import vector_store_service_pb2 as pb
from corral.control.v1 import vector_store_service_pb2_grpc as rpc

from control_svc.api import vector_convert as convert
from control_svc.api.convert import page_request
from control_svc.domain.ports import Clock
from control_svc.domain.search import Search
from control_svc.usecases.vector_stores import VectorStores
from svc_kit.auth import current_principal

Context = grpc.aio.ServicerContext[object, object]
DEFAULT_RESULTS = 10


class VectorStoreServicer(rpc.VectorStoreServiceServicer):
    """Vector stores over gRPC."""

    def __init__(self, stores: VectorStores, search: Search, clock: Clock) -> None:
        self._stores = stores
        self._search = search
        self._clock = clock

    async def CreateVectorStore(
        self, request: pb.CreateVectorStoreRequest, context: Context
    ) -> pb.CreateVectorStoreResponse:
        """Begin a store."""
        store = await self._stores.create(current_principal().project, convert.new_store(request))
        return pb.CreateVectorStoreResponse(vector_store=convert.store_to_pb(store, self._clock))

    async def GetVectorStore(
        self, request: pb.GetVectorStoreRequest, context: Context
    ) -> pb.GetVectorStoreResponse:
        """Describe a store."""
        store = await self._stores.get(current_principal().project, request.vector_store_id)
        return pb.GetVectorStoreResponse(vector_store=convert.store_to_pb(store, self._clock))

    async def ListVectorStores(
        self, request: pb.ListVectorStoresRequest, context: Context
    ) -> pb.ListVectorStoresResponse:
        """List the project's stores."""
        asked = page_request(request)
        page = await self._stores.page(current_principal().project, asked)
        stores = [convert.store_to_pb(store, self._clock) for store in page.items]
        return pb.ListVectorStoresResponse(vector_stores=stores, next_page_token=page.next_token)

    async def UpdateVectorStore(
        self, request: pb.UpdateVectorStoreRequest, context: Context
    ) -> pb.UpdateVectorStoreResponse:
        """Change what its owner says."""
        changes = convert.store_changes(request)
        store = await self._stores.update(
            current_principal().project, request.vector_store_id, changes
        )
        return pb.UpdateVectorStoreResponse(vector_store=convert.store_to_pb(store, self._clock))

    async def DeleteVectorStore(
        self, request: pb.DeleteVectorStoreRequest, context: Context
    ) -> pb.DeleteVectorStoreResponse:
        """Delete a store."""
        await self._stores.delete(current_principal().project, request.vector_store_id)
        return pb.DeleteVectorStoreResponse()

    async def SearchVectorStore(
        self, request: pb.SearchVectorStoreRequest, context: Context
    ) -> pb.SearchVectorStoreResponse:
        """Find what answers a question best."""
        hits = await self._search.search(
            current_principal().project,
            [request.vector_store_id],
            request.queries,
            request.max_results or DEFAULT_RESULTS,
            convert.filter_of(request.filter) if request.HasField("filter") else None,
            convert.ranking_of(request.ranking),
        )
        return pb.SearchVectorStoreResponse(hits=[convert.hit_to_pb(hit) for hit in hits])

    async def WatchVectorStore(
        self, request: pb.WatchVectorStoreRequest, context: Context
    ) -> AsyncIterator[pb.WatchVectorStoreResponse]:
        """Send a store whenever it has changed."""
        watching = self._stores.watch(current_principal().project, request.vector_store_id)
        async with aclosing(watching) as stores:
            async for store in stores:
                yield pb.WatchVectorStoreResponse(
                    vector_store=convert.store_to_pb(store, self._clock)
                )
