"""Request bodies and objects of message batches."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from corral.control.v1 import batch_pb2, batch_service_pb2, file_pb2
from google.protobuf.duration_pb2 import Duration
from pydantic import Field
from typing_extensions import TypedDict

from dialects.anthropic.blocks import Part
from dialects.anthropic.objects import PageEnds, page_ends, parse_page_query, rfc3339
from dialects.shared.fields import WireModel, validate
from dialects.shared.json_body import json_bytes
from svc_kit.errors import InvalidField, MissingField

BatchStatus = Literal["in_progress", "canceling", "ended"]
ENDPOINT: Final = "/v1/messages"
MAX_REQUESTS: Final = 100_000
CHUNK_BYTES: Final = 1 << 20
"""Size of the pieces in which the requests are stored."""
_FILENAME: Final = "message_batch.jsonl"
_WINDOW_S: Final = 24 * 3600
_RESULTS_TTL_S: Final = 29 * 24 * 3600
"""How long results can be read, as on Anthropic's servers."""
_ENDED: Final = {
    batch_pb2.Batch.STATE_COMPLETED: "completed_time",
    batch_pb2.Batch.STATE_FAILED: "failed_time",
    batch_pb2.Batch.STATE_EXPIRED: "expired_time",
    batch_pb2.Batch.STATE_CANCELLED: "cancelled_time",
}
"""States of batches that have ended, and the time of their end."""


class BatchedRequest(Part):
    custom_id: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")] = Field(
        description="Names the result; each once."
    )
    params: dict[str, Any] = Field(description="The body of a message, without stream.")


class MessageBatchBody(WireModel):
    """Messages to create in the background."""

    requests: Annotated[list[BatchedRequest], Field(min_length=1, max_length=MAX_REQUESTS)]


def parse_batch(fields: Mapping[str, Any]) -> MessageBatchBody:
    """Validate a new batch. What is in `params` is checked when a request runs, except for the
    model. Raises DomainErrors."""
    body = validate(MessageBatchBody, fields)
    seen: set[str] = set()
    for index, request in enumerate(body.requests):
        if request.custom_id in seen:
            field = f"requests[{index}].custom_id"
            raise InvalidField(field=field, problem="another request has this custom_id")
        seen.add(request.custom_id)
        model = request.params.get("model")
        if not isinstance(model, str) or not model:
            raise MissingField(field=f"requests[{index}].params.model")
    return body


def input_chunks(body: MessageBatchBody) -> Iterator[bytes]:
    buffer = bytearray()
    for request in body.requests:
        line = {"method": "POST", "url": ENDPOINT, "custom_id": request.custom_id}
        buffer += json_bytes(line | {"body": request.params}) + b"\n"
        while len(buffer) >= CHUNK_BYTES:
            yield bytes(buffer[:CHUNK_BYTES])
            del buffer[:CHUNK_BYTES]
    if buffer:
        yield bytes(buffer)


def input_header(request_id: str) -> file_pb2.FileHeader:
    return file_pb2.FileHeader(
        filename=_FILENAME, purpose=file_pb2.FILE_PURPOSE_BATCH, request_id=request_id
    )


def create_batch_request(file_id: str, request_id: str) -> batch_service_pb2.CreateBatchRequest:
    return batch_service_pb2.CreateBatchRequest(
        input_file_id=file_id,
        endpoint=ENDPOINT,
        completion_window=Duration(seconds=_WINDOW_S),
        output_ttl=Duration(seconds=_RESULTS_TTL_S),
        request_id=request_id,
    )


def list_batches_request(query: Mapping[str, str]) -> batch_service_pb2.ListBatchesRequest:
    """Convert the query of a list. Raises DomainErrors."""
    page = parse_page_query(query)
    return batch_service_pb2.ListBatchesRequest(
        page_size=page.limit,
        after=page.after_id or "",
        before=page.before_id or "",
        endpoint=ENDPOINT,
    )


def has_ended(batch: batch_pb2.Batch) -> bool:
    return batch.state in _ENDED


class MessageBatchCounts(TypedDict):
    """How many requests are in each state."""

    processing: int
    succeeded: int
    errored: int
    canceled: int
    expired: int


class MessageBatch(TypedDict):
    """Messages that are created in the background."""

    id: str
    type: Literal["message_batch"]
    processing_status: BatchStatus
    request_counts: MessageBatchCounts
    created_at: str
    expires_at: str
    ended_at: str | None
    cancel_initiated_at: str | None
    archived_at: None
    results_url: str | None


class MessageBatchList(PageEnds):
    data: list[MessageBatch]


class DeletedMessageBatch(TypedDict):
    """The confirmation that a batch was deleted."""

    id: str
    type: Literal["message_batch_deleted"]


def batch_object(batch: batch_pb2.Batch, num_requests: int = 0) -> MessageBatch:
    """A message_batch. `num_requests` is the size of a new one, which is not checked yet."""
    ended = _ENDED.get(batch.state)
    status: BatchStatus = "in_progress" if ended is None else "ended"
    if batch.state == batch_pb2.Batch.STATE_CANCELLING:
        status = "canceling"
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": status,
        "request_counts": _counts(batch, num_requests),
        "created_at": rfc3339(batch.create_time),
        "expires_at": rfc3339(batch.expire_time),
        "ended_at": None if ended is None else _time(batch, ended),
        "cancel_initiated_at": _time(batch, "cancelling_time"),
        "archived_at": None,
        "results_url": None if ended is None else f"/v1/messages/batches/{batch.id}/results",
    }


def batch_page(page: batch_service_pb2.ListBatchesResponse) -> MessageBatchList:
    data = [batch_object(batch) for batch in page.batches]
    has_more = bool(page.next_page_token)
    return {"data": data, **page_ends([each["id"] for each in data], has_more=has_more)}


def deleted_batch(batch_id: str) -> DeletedMessageBatch:
    """The confirmation that a batch was deleted."""
    return {"id": batch_id, "type": "message_batch_deleted"}


def result_files(batch: batch_pb2.Batch) -> Sequence[str]:
    """The files of the results of an ended batch. Raises InvalidField if the requests could not be
    read."""
    files = [file_id for file_id in (batch.output_file_id, batch.error_file_id) if file_id]
    if not files and batch.errors:
        raise InvalidField(field="requests", problem=batch.errors[0].message)
    return files


def _counts(batch: batch_pb2.Batch, num_requests: int) -> MessageBatchCounts:
    counts, state = batch.request_counts, batch.state
    total = counts.total or num_requests
    was_cancelled = state in (batch_pb2.Batch.STATE_CANCELLING, batch_pb2.Batch.STATE_CANCELLED)
    return {
        "processing": total - counts.completed - counts.failed,
        "succeeded": counts.completed,
        "errored": counts.failed - counts.not_run,
        "canceled": counts.not_run if was_cancelled else 0,
        "expired": 0 if was_cancelled else counts.not_run,
    }


def _time(batch: batch_pb2.Batch, field: str) -> str | None:
    return rfc3339(getattr(batch, field)) if batch.HasField(field) else None
