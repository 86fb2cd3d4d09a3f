"""Request bodies and objects of batches."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from corral.control.v1 import batch_pb2, batch_service_pb2
from google.protobuf.duration_pb2 import Duration
from pydantic import Field

from dialects.openai.resources.files import ExpiresAfter, ttl_duration
from dialects.openai.shared.objects import optional_seconds, state_name, token_usage
from dialects.openai.shared.pagination import MAX_PAGE, parse_page_query
from dialects.shared.fields import WireModel, parse_integer, validate
from svc_kit.errors import InvalidField


class BatchBody(WireModel):
    """A file of requests to run in the background."""

    input_file_id: str = Field(description="A file of purpose batch.")
    endpoint: str = Field(
        description="The endpoint of all requests: /v1/chat/completions, /v1/completions, "
        "/v1/embeddings, /v1/responses, /v1/messages, /api/chat, /api/generate, /api/embed, "
        "/completion or /embedding."
    )
    completion_window: str = Field(
        description="How long the batch may run: 24h, or as an extension 1h to 168h."
    )
    metadata: dict[str, str] | None = Field(None, description="At most 16 pairs of strings.")
    output_expires_after: ExpiresAfter | None = Field(
        None, description="When the output files expire. Default: never."
    )


class BatchListQuery(WireModel):
    """The query of a list of batches."""

    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] | None = None
    after: str | None = None


def create_batch_request(
    fields: Mapping[str, Any], request_id: str
) -> batch_service_pb2.CreateBatchRequest:
    """Convert the body of a new batch. Raises DomainErrors with the body's field names."""
    body = validate(BatchBody, fields)
    return batch_service_pb2.CreateBatchRequest(
        input_file_id=body.input_file_id,
        endpoint=body.endpoint,
        completion_window=_window(body.completion_window),
        metadata=body.metadata or {},
        output_ttl=ttl_duration(body.output_expires_after),
        request_id=request_id,
    )


def list_batches_request(query: Mapping[str, str]) -> batch_service_pb2.ListBatchesRequest:
    """Convert the query of a list. Raises DomainErrors."""
    page = parse_page_query(BatchListQuery, query)
    return batch_service_pb2.ListBatchesRequest(page_size=page.limit or 0, after=page.after or "")


def _window(text: str) -> Duration:
    hours = parse_integer(text.removesuffix("h"))
    if not text.endswith("h") or isinstance(hours, str) or hours < 0:
        problem = "it must be a number of hours, as in '24h'"
        raise InvalidField(field="completion_window", problem=problem)
    return Duration(seconds=min(hours, 10_000) * 3600)


_TIMED_STATES = (
    "in_progress",
    "finalizing",
    "completed",
    "failed",
    "expired",
    "cancelling",
    "cancelled",
)
"""States with a timestamp: `failed_at` and so on."""


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
        "status": state_name(batch),
        "output_file_id": batch.output_file_id or None,
        "error_file_id": batch.error_file_id or None,
        "created_at": batch.create_time.seconds,
        "expires_at": batch.expire_time.seconds,
        **{f"{name}_at": optional_seconds(batch, f"{name}_time") for name in _TIMED_STATES},
        "request_counts": {
            "total": batch.request_counts.total,
            "completed": batch.request_counts.completed,
            "failed": batch.request_counts.failed,
        },
        "usage": token_usage(batch.usage),
        "metadata": dict(batch.metadata) or None,
    }


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
