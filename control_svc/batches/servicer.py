"""The gRPC servicer of batches and its conversion."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Final

from corral.control.v1 import batch_pb2
from corral.control.v1 import batch_service_pb2 as pb
from corral.control.v1 import batch_service_pb2_grpc as rpc

from control_svc.base.proto import Context, caller_project, page_request
from control_svc.base.validation import check_text
from control_svc.batches.model import Batch, NewBatch
from control_svc.batches.service import Batches
from svc_kit.rpc.message_mapper import MessageMapper

_NEW_BATCH: Final = MessageMapper(
    NewBatch, pb.CreateBatchRequest, renamed={"window": "completion_window"}
)
_BATCH: Final = MessageMapper(
    Batch,
    batch_pb2.Batch,
    renamed={"window": "completion_window", "problems": "errors", "counts": "request_counts"},
)


class BatchServicer(rpc.BatchServiceServicer):
    """BatchService."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    async def CreateBatch(
        self, request: pb.CreateBatchRequest, context: Context
    ) -> pb.CreateBatchResponse:
        """Create a batch."""
        batch = await self._batches.create(caller_project(), _NEW_BATCH.from_message(request))
        return pb.CreateBatchResponse(batch=_BATCH.to_message(batch))

    async def GetBatch(self, request: pb.GetBatchRequest, context: Context) -> pb.GetBatchResponse:
        """Get a batch."""
        batch = await self._batches.get(caller_project(), request.batch_id)
        return pb.GetBatchResponse(batch=_BATCH.to_message(batch))

    async def ListBatches(
        self, request: pb.ListBatchesRequest, context: Context
    ) -> pb.ListBatchesResponse:
        """List the project's batches."""
        endpoint = check_text("endpoint", request.endpoint) if request.endpoint else ""
        page = await self._batches.page(caller_project(), page_request(request), endpoint)
        batches = [_BATCH.to_message(batch) for batch in page.items]
        return pb.ListBatchesResponse(batches=batches, next_page_token=page.next_token)

    async def CancelBatch(
        self, request: pb.CancelBatchRequest, context: Context
    ) -> pb.CancelBatchResponse:
        """Cancel a batch."""
        batch = await self._batches.cancel(caller_project(), request.batch_id)
        return pb.CancelBatchResponse(batch=_BATCH.to_message(batch))

    async def DeleteBatch(
        self, request: pb.DeleteBatchRequest, context: Context
    ) -> pb.DeleteBatchResponse:
        """Delete a batch that has ended."""
        await self._batches.delete(caller_project(), request.batch_id)
        return pb.DeleteBatchResponse()

    async def WatchBatch(
        self, request: pb.WatchBatchRequest, context: Context
    ) -> AsyncIterator[pb.WatchBatchResponse]:
        """Send a batch now and after each change, until it has ended."""
        changes = self._batches.watch(caller_project(), request.batch_id)
        async with aclosing(changes) as batches:
            async for batch in batches:
                yield pb.WatchBatchResponse(batch=_BATCH.to_message(batch))
