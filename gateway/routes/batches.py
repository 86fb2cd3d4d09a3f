"""Routes under /v1/batches."""

from corral.control.v1 import batch_service_pb2 as pb
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from dialects.openai.errors import BATCH_PARAMS, openai_names
from dialects.openai.resources.batches import (
    BatchBody,
    BatchListQuery,
    batch_object,
    create_batch_request,
    list_batches_request,
)
from dialects.openai.shared.objects import list_object
from gateway.context import Control, IdempotencyKey, JsonObject
from gateway.http.docs import json_body, operation
from gateway.http.errors import json_response

router = APIRouter(prefix="/v1/batches")


@router.post("", **operation("Create a batch", "Batch", json_body(BatchBody)))
async def create_batch(control: Control, body: JsonObject, request_id: IdempotencyKey) -> Response:
    """Create a batch. Its file is validated, then its requests run in the background."""
    with openai_names(BATCH_PARAMS):
        proto = create_batch_request(body, request_id)
        reply = await control.call(control.batches.CreateBatch, proto)
    return json_response(batch_object(reply.batch))


@router.get("", **operation("List the batches", "BatchList", query=BatchListQuery))
async def list_batches(control: Control, request: Request) -> Response:
    """List batches, newest first, paged by `after` and `limit`."""
    with openai_names(BATCH_PARAMS):
        proto = list_batches_request(request.query_params)
        page = await control.call(control.batches.ListBatches, proto)
    return json_response(list_object(page.batches, batch_object, page.next_page_token))


@router.get("/{batch_id}", **operation("Retrieve a batch", "Batch"))
async def retrieve_batch(control: Control, batch_id: str) -> Response:
    """Retrieve a batch with its current counts and usage."""
    proto = pb.GetBatchRequest(batch_id=batch_id)
    reply = await control.call(control.batches.GetBatch, proto)
    return json_response(batch_object(reply.batch))


@router.post("/{batch_id}/cancel", **operation("Cancel a batch", "Batch"))
async def cancel_batch(control: Control, batch_id: str) -> Response:
    """Cancel a batch. Results so far are kept in its output files."""
    proto = pb.CancelBatchRequest(batch_id=batch_id)
    reply = await control.call(control.batches.CancelBatch, proto)
    return json_response(batch_object(reply.batch))
