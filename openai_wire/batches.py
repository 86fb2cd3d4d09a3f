"""Batches as OpenAI's objects."""

from collections.abc import Sequence

from corral.control.v1 import batch_pb2

_TIMES = (
    "in_progress",
    "finalizing",
    "completed",
    "failed",
    "expired",
    "cancelling",
    "cancelled",
)
"""Of states that leave a time behind."""


def batch_object(batch: batch_pb2.Batch) -> dict[str, object]:
    """A batch."""
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model or None,
        "errors": _errors(batch.errors),
        "input_file_id": batch.input_file_id,
        "completion_window": f"{batch.completion_window.seconds // 3600}h",
        "status": batch_status(batch),
        "output_file_id": batch.output_file_id or None,
        "error_file_id": batch.error_file_id or None,
        "created_at": batch.create_time.seconds,
        "expires_at": batch.expire_time.seconds,
        **{f"{name}_at": _time(batch, f"{name}_time") for name in _TIMES},
        "request_counts": {
            "total": batch.request_counts.total,
            "completed": batch.request_counts.completed,
            "failed": batch.request_counts.failed,
        },
        "usage": _usage(batch.usage),
        "metadata": dict(batch.metadata) or None,
    }


def batch_list(batches: Sequence[batch_pb2.Batch], *, has_more: bool) -> dict[str, object]:
    """A page of batches."""
    return {
        "object": "list",
        "data": [batch_object(batch) for batch in batches],
        "first_id": batches[0].id if batches else None,
        "last_id": batches[-1].id if batches else None,
        "has_more": has_more,
    }


def batch_status(batch: batch_pb2.Batch) -> str:
    """OpenAI's word for its state."""
    return batch_pb2.Batch.State.Name(batch.state).removeprefix("STATE_").lower()


def _errors(errors: Sequence[batch_pb2.BatchError]) -> dict[str, object] | None:
    if not errors:
        return None
    data = [
        {
            "code": error.code,
            "message": error.message,
            "param": error.param or None,
            "line": error.line or None,
        }
        for error in errors
    ]
    return {"object": "list", "data": data}


def _time(batch: batch_pb2.Batch, field: str) -> int | None:
    return getattr(batch, field).seconds if batch.HasField(field) else None


def _usage(usage: batch_pb2.BatchUsage) -> dict[str, object]:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
