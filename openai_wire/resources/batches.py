"""Requests and objects of batches."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from corral.control.v1 import batch_pb2, batch_service_pb2
from google.protobuf.duration_pb2 import Duration
from pydantic import Field

from openai_wire.resources.files import ExpiresAfter, duration_of
from openai_wire.shared.fields import WireModel, number_of, validated, without_neutral
from svc_kit.errors import InvalidField

MAX_PAGE = 100


class BatchBody(WireModel):
    """A file of requests to carry out when there is time."""

    input_file_id: str = Field(description="A file of purpose batch.")
    endpoint: str = Field(
        description="/v1/chat/completions, /v1/completions, /v1/embeddings or /v1/responses, for "
        "every line."
    )
    completion_window: str = Field(
        description="How long it may run: 24h, or as an extension 1h to 168h."
    )
    metadata: dict[str, str] | None = Field(None, description="At most 16 pairs.")
    output_expires_after: ExpiresAfter | None = Field(
        None, description="When the files that it writes go away. Default: never."
    )


class BatchListQuery(WireModel):
    """The query of a list of batches."""

    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] | None = None
    after: str | None = None


def create_batch_request(
    fields: Mapping[str, Any], request_id: str
) -> batch_service_pb2.CreateBatchRequest:
    """The batch that a body asks for. Raises DomainErrors with the body's field names."""
    body = validated(BatchBody, without_neutral(fields, {}))
    return batch_service_pb2.CreateBatchRequest(
        input_file_id=body.input_file_id,
        endpoint=body.endpoint,
        completion_window=_window(body.completion_window),
        metadata=body.metadata or {},
        output_ttl=duration_of(body.output_expires_after),
        request_id=request_id,
    )


def list_batches_request(query: Mapping[str, str]) -> batch_service_pb2.ListBatchesRequest:
    """The page that a query asks for. Parameters that are not known are ignored."""
    known: dict[str, Any] = {
        name: query[name] for name in BatchListQuery.model_fields if query.get(name)
    }
    if "limit" in known:
        known["limit"] = number_of(known["limit"])
    request = validated(BatchListQuery, known)
    return batch_service_pb2.ListBatchesRequest(
        page_size=request.limit or 0, after=request.after or ""
    )


def _window(text: str) -> Duration:
    hours = number_of(text.removesuffix("h"))
    if not text.endswith("h") or isinstance(hours, str) or hours < 0:
        raise InvalidField(field="completion_window", problem="write it in hours, as in 24h")
    return Duration(seconds=min(hours, 10_000) * 3600)


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
