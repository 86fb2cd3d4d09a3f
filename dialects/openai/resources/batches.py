"""Request bodies and objects of batches."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from corral.control.v1 import batch_pb2, batch_service_pb2
from google.protobuf.duration_pb2 import Duration
from pydantic import Field
from typing_extensions import TypedDict

from dialects.openai.resources.files import ExpiresAfter, ttl_duration
from dialects.openai.shared.objects import TokenUsage
from dialects.openai.shared.pagination import MAX_PAGE, parse_page_query
from dialects.shared.fields import WireModel, message_of, parse_integer, validate
from dialects.shared.wire import From, seconds, writer
from svc_kit.errors import InvalidField

BatchStatus = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]


class BatchBody(WireModel):
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
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] | None = None
    after: str | None = None


def create_batch_request(
    fields: Mapping[str, Any], request_id: str
) -> batch_service_pb2.CreateBatchRequest:
    """Convert the body of a new batch. Raises DomainErrors with the body's field names."""
    body = validate(BatchBody, fields)
    return message_of(
        batch_service_pb2.CreateBatchRequest,
        body,
        completion_window=_window(body.completion_window),
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


class BatchError(TypedDict):
    """Why the file of a batch was refused."""

    code: str
    message: str
    param: str | None
    line: int | None


class BatchErrors(TypedDict):
    """Why a batch failed."""

    object: Literal["list"]
    data: list[BatchError]


_batch_error = writer(batch_pb2.BatchError, BatchError)


def _errors(errors: Sequence[batch_pb2.BatchError]) -> BatchErrors:
    return {"object": "list", "data": [_batch_error(error) for error in errors]}


def _window_name(window: Duration) -> str:
    return f"{window.seconds // 3600}h"


class RequestCounts(TypedDict):
    """How many requests of a batch have ended."""

    total: int
    completed: int
    failed: int


class Batch(TypedDict):
    id: str
    object: Literal["batch"]
    endpoint: str
    model: str | None
    errors: Annotated[BatchErrors | None, From(write=_errors)]
    input_file_id: str
    completion_window: Annotated[str, From(write=_window_name)]
    status: Annotated[BatchStatus, From("state")]
    output_file_id: str | None
    error_file_id: str | None
    created_at: Annotated[int, seconds("create_time")]
    expires_at: Annotated[int, seconds("expire_time")]
    in_progress_at: Annotated[int | None, seconds("in_progress_time")]
    finalizing_at: Annotated[int | None, seconds("finalizing_time")]
    completed_at: Annotated[int | None, seconds("completed_time")]
    failed_at: Annotated[int | None, seconds("failed_time")]
    expired_at: Annotated[int | None, seconds("expired_time")]
    cancelling_at: Annotated[int | None, seconds("cancelling_time")]
    cancelled_at: Annotated[int | None, seconds("cancelled_time")]
    request_counts: RequestCounts
    usage: TokenUsage
    metadata: dict[str, str] | None


batch_object = writer(batch_pb2.Batch, Batch)
