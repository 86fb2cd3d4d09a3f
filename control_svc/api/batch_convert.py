"""Batches between protos and the domain."""

from typing import Final

from corral.control.v1 import batch_pb2, batch_service_pb2
from google.protobuf.duration_pb2 import Duration

from control_svc.api.convert import optional_timestamp, time_span, timestamp
from control_svc.domain.batches import Batch, LineProblem, NewBatch

_TIMES: Final = (
    "in_progress",
    "finalizing",
    "completed",
    "failed",
    "expired",
    "cancelling",
    "cancelled",
)


def new_batch(request: batch_service_pb2.CreateBatchRequest) -> NewBatch:
    """What a caller asks for."""
    window = request.completion_window if request.HasField("completion_window") else None
    ttl = request.output_ttl if request.HasField("output_ttl") else None
    return NewBatch(
        input_file_id=request.input_file_id,
        endpoint=request.endpoint,
        window=None if window is None else time_span("completion_window", window),
        metadata=dict(request.metadata),
        output_ttl=None if ttl is None else time_span("output_ttl", ttl),
        request_id=request.request_id,
    )


def batch_to_pb(batch: Batch) -> batch_pb2.Batch:
    """A batch as callers see it."""
    counts, usage = batch.counts, batch.usage
    return batch_pb2.Batch(
        id=batch.id,
        endpoint=batch.endpoint.value,
        input_file_id=batch.input_file_id,
        completion_window=Duration(seconds=int(batch.window.total_seconds())),
        state=f"STATE_{batch.state.name}",
        model=batch.model,
        errors=[_error_to_pb(problem) for problem in batch.problems],
        request_counts=batch_pb2.BatchRequestCounts(
            total=counts.total, completed=counts.completed, failed=counts.failed
        ),
        usage=batch_pb2.BatchUsage(
            input_tokens=usage.input_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            reasoning_tokens=usage.reasoning_tokens,
        ),
        output_file_id=batch.output_file_id or "",
        error_file_id=batch.error_file_id or "",
        metadata=batch.metadata,
        create_time=timestamp(batch.created_at),
        expire_time=timestamp(batch.expires_at),
        output_ttl=None
        if batch.output_ttl is None
        else Duration(seconds=int(batch.output_ttl.total_seconds())),
        **{f"{name}_time": optional_timestamp(getattr(batch, f"{name}_at")) for name in _TIMES},
    )


def _error_to_pb(problem: LineProblem) -> batch_pb2.BatchError:
    return batch_pb2.BatchError(
        code=problem.code,
        message=problem.message,
        param=problem.param or "",
        line=problem.line or 0,
    )
