"""Servicer of `BatchService`: convert, call, convert."""

from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc
from corral.control.v1 import batch_service_pb2 as pb
from corral.control.v1 import batch_service_pb2_grpc as rpc

from control_svc.api.batch_convert import batch_to_pb, new_batch
from control_svc.domain.listing import DEFAULT_PAGE, PageRequest
from control_svc.usecases.batches import Batches
from svc_kit.auth import current_principal

Context = grpc.aio.ServicerContext[object, object]


class BatchServicer(rpc.BatchServiceServicer):
    """Batches over gRPC."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    async def CreateBatch(
        self, request: pb.CreateBatchRequest, context: Context
    ) -> pb.CreateBatchResponse:
        """Begin a batch."""
        batch = await self._batches.create(current_principal().project, new_batch(request))
        return pb.CreateBatchResponse(batch=batch_to_pb(batch))

    async def GetBatch(self, request: pb.GetBatchRequest, context: Context) -> pb.GetBatchResponse:
        """Describe a batch."""
        batch = await self._batches.get(current_principal().project, request.batch_id)
        return pb.GetBatchResponse(batch=batch_to_pb(batch))

    async def ListBatches(
        self, request: pb.ListBatchesRequest, context: Context
    ) -> pb.ListBatchesResponse:
        """List the project's batches."""
        asked = PageRequest(request.page_size or DEFAULT_PAGE, request.page_token, request.after)
        page = await self._batches.page(current_principal().project, asked)
        batches = [batch_to_pb(batch) for batch in page.items]
        return pb.ListBatchesResponse(batches=batches, next_page_token=page.next_token)

    async def CancelBatch(
        self, request: pb.CancelBatchRequest, context: Context
    ) -> pb.CancelBatchResponse:
        """Give a batch up."""
        batch = await self._batches.cancel(current_principal().project, request.batch_id)
        return pb.CancelBatchResponse(batch=batch_to_pb(batch))

    async def WatchBatch(
        self, request: pb.WatchBatchRequest, context: Context
    ) -> AsyncIterator[pb.WatchBatchResponse]:
        """Send a batch whenever it has changed."""
        watching = self._batches.watch(current_principal().project, request.batch_id)
        async with aclosing(watching) as batches:
            async for batch in batches:
                yield pb.WatchBatchResponse(batch=batch_to_pb(batch))
