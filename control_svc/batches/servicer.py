"""The gRPC servicer of batches and its conversion."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import asdict
from typing import Final

import grpc
from corral.control.v1 import batch_pb2
from corral.control.v1 import batch_service_pb2 as pb
from corral.control.v1 import batch_service_pb2_grpc as rpc
from google.protobuf.duration_pb2 import Duration

from control_svc.base.pagination import DEFAULT_PAGE, PageRequest
from control_svc.base.proto import optional_timestamp, timestamp, to_timedelta
from control_svc.batches.model import Batch, NewBatch
from control_svc.batches.service import Batches
from svc_kit.auth.principal import current_principal

_TIMESTAMPS: Final = (
    "in_progress",
    "finalizing",
    "completed",
    "failed",
    "expired",
    "cancelling",
    "cancelled",
)


def new_batch(request: pb.CreateBatchRequest) -> NewBatch:
    """Convert a request."""
    window = request.completion_window if request.HasField("completion_window") else None
    ttl = request.output_ttl if request.HasField("output_ttl") else None
    return NewBatch(
        input_file_id=request.input_file_id,
        endpoint=request.endpoint,
        window=None if window is None else to_timedelta("completion_window", window),
        metadata=dict(request.metadata),
        output_ttl=None if ttl is None else to_timedelta("output_ttl", ttl),
        request_id=request.request_id,
    )


def batch_to_pb(batch: Batch) -> batch_pb2.Batch:
    """Convert a batch."""
    return batch_pb2.Batch(
        id=batch.id,
        endpoint=batch.endpoint.value,
        input_file_id=batch.input_file_id,
        completion_window=Duration(seconds=int(batch.window.total_seconds())),
        state=f"STATE_{batch.state.name}",
        model=batch.model,
        errors=[batch_pb2.BatchError(**asdict(problem)) for problem in batch.problems],
        request_counts=batch_pb2.BatchRequestCounts(**asdict(batch.counts)),
        usage=batch_pb2.BatchUsage(**asdict(batch.usage)),
        output_file_id=batch.output_file_id or "",
        error_file_id=batch.error_file_id or "",
        metadata=batch.metadata,
        create_time=timestamp(batch.created_at),
        expire_time=timestamp(batch.expires_at),
        output_ttl=None
        if batch.output_ttl is None
        else Duration(seconds=int(batch.output_ttl.total_seconds())),
        **{
            f"{name}_time": optional_timestamp(getattr(batch, f"{name}_at")) for name in _TIMESTAMPS
        },
    )


Context = grpc.aio.ServicerContext[object, object]


class BatchServicer(rpc.BatchServiceServicer):
    """BatchService."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    async def CreateBatch(
        self, request: pb.CreateBatchRequest, context: Context
    ) -> pb.CreateBatchResponse:
        """Create a batch."""
        batch = await self._batches.create(current_principal().project, new_batch(request))
        return pb.CreateBatchResponse(batch=batch_to_pb(batch))

    async def GetBatch(self, request: pb.GetBatchRequest, context: Context) -> pb.GetBatchResponse:
        """Get a batch."""
        batch = await self._batches.get(current_principal().project, request.batch_id)
        return pb.GetBatchResponse(batch=batch_to_pb(batch))

    async def ListBatches(
        self, request: pb.ListBatchesRequest, context: Context
    ) -> pb.ListBatchesResponse:
        """List the project's batches."""
        page_request = PageRequest(
            request.page_size or DEFAULT_PAGE, request.page_token, request.after
        )
        page = await self._batches.page(current_principal().project, page_request)
        batches = [batch_to_pb(batch) for batch in page.items]
        return pb.ListBatchesResponse(batches=batches, next_page_token=page.next_token)

    async def CancelBatch(
        self, request: pb.CancelBatchRequest, context: Context
    ) -> pb.CancelBatchResponse:
        """Cancel a batch."""
        batch = await self._batches.cancel(current_principal().project, request.batch_id)
        return pb.CancelBatchResponse(batch=batch_to_pb(batch))

    async def WatchBatch(
        self, request: pb.WatchBatchRequest, context: Context
    ) -> AsyncIterator[pb.WatchBatchResponse]:
        """Send a batch now and after each change, until it has ended."""
        changes = self._batches.watch(current_principal().project, request.batch_id)
        async with aclosing(changes) as batches:
            async for batch in batches:
                yield pb.WatchBatchResponse(batch=batch_to_pb(batch))
