"""Routes under /v1/batches."""

from typing import Annotated

from corral.control.v1 import batch_service_pb2
from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from gateway.auth import Caller
from gateway.context import AppContext
from gateway.http.docs import answers, json_body
from gateway.http.errors import json_response
from gateway.routes.files import idempotency_key
from openai_wire.errors import BATCH_PARAMS, openai_names
from openai_wire.resources.batches import (
    BatchBody,
    batch_object,
    create_batch_request,
    list_batches_request,
)
from openai_wire.shared.objects import list_object


def batches_router(context: AppContext) -> APIRouter:
    """The routes of batches."""
    control = context.control
    router = APIRouter(prefix="/v1/batches")
    known_caller = Annotated[Caller, Depends(context.authentication)]

    @router.post(
        "",
        summary="Create a batch",
        openapi_extra=json_body(BatchBody),
        responses=answers("A batch."),
    )
    async def create_batch(request: Request, caller: known_caller) -> Response:
        """Create a batch. Its file is validated, then its requests run in the background."""
        body = await context.read_body(request)
        with openai_names(BATCH_PARAMS):
            proto = create_batch_request(body, idempotency_key(request))
            reply = await control.call(control.batches.CreateBatch, proto, caller)
        return json_response(batch_object(reply.batch))

    @router.get("", summary="List the batches", responses=answers("A list of batches."))
    async def list_batches(request: Request, caller: known_caller) -> Response:
        """List batches, newest first, paged by `after` and `limit`."""
        with openai_names(BATCH_PARAMS):
            proto = list_batches_request(request.query_params)
            page = await control.call(control.batches.ListBatches, proto, caller)
        has_more = bool(page.next_page_token)
        return json_response(list_object(page.batches, batch_object, has_more=has_more))

    @router.get("/{batch_id}", summary="Retrieve a batch", responses=answers("A batch."))
    async def retrieve_batch(batch_id: str, caller: known_caller) -> Response:
        """Retrieve a batch with its current counts and usage."""
        proto = batch_service_pb2.GetBatchRequest(batch_id=batch_id)
        reply = await control.call(control.batches.GetBatch, proto, caller)
        return json_response(batch_object(reply.batch))

    @router.post("/{batch_id}/cancel", summary="Cancel a batch", responses=answers("The batch."))
    async def cancel_batch(batch_id: str, caller: known_caller) -> Response:
        """Cancel a batch. Results so far are kept in its output files."""
        proto = batch_service_pb2.CancelBatchRequest(batch_id=batch_id)
        reply = await control.call(control.batches.CancelBatch, proto, caller)
        return json_response(batch_object(reply.batch))

    return router
