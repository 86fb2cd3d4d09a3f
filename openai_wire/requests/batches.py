"""What clients say of batches, and the requests of the control service it becomes."""

from collections.abc import Mapping
from typing import Annotated, Any

from corral.control.v1 import batch_service_pb2
from google.protobuf.duration_pb2 import Duration
from pydantic import Field

from openai_wire.requests.fields import WireModel, validated, without_neutral
from openai_wire.requests.files import ExpiresAfter, duration_of, number_of
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
    asked = validated(BatchListQuery, known)
    return batch_service_pb2.ListBatchesRequest(page_size=asked.limit or 0, after=asked.after or "")


def _window(text: str) -> Duration:
    hours = number_of(text.removesuffix("h"))
    if not text.endswith("h") or isinstance(hours, str) or hours < 0:
        raise InvalidField(field="completion_window", problem="write it in hours, as in 24h")
    return Duration(seconds=min(hours, 10_000) * 3600)
