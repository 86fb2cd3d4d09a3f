"""The routes under /v1/batches."""

from typing import Annotated

from corral.control.v1 import batch_service_pb2
from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from gateway.auth import Caller
from gateway.context import AppContext
from gateway.http.docs import answers, json_body
from gateway.http.errors import json_response
from gateway.routes.files import name_request
from openai_wire.errors import BATCH_PARAMS, openai_names
from openai_wire.resources.batches import (
    BatchBody,
    batch_list,
    batch_object,
    create_batch_request,
    list_batches_request,
)


def batches_router(context: AppContext) -> APIRouter:
    """The routes of batches."""
    control = context.control
    router = APIRouter(prefix="/v1/batches")
    known_caller = Annotated[Caller, Depends(context.authentication)]

    @router.post(
        "",
        summary="Carry out a file of requests",
        openapi_extra=json_body(BatchBody),
        responses=answers("A batch."),
    )
    async def create_batch(request: Request, caller: known_caller) -> Response:
        """Begins a batch: its file is checked, then its lines run when there is time."""
        body = await context.read_body(request)
        with openai_names(BATCH_PARAMS):
            asked = create_batch_request(body, name_request(request))
            reply = await control.call(control.batches.CreateBatch, asked, caller)
            batch = reply.batch
        return json_response(batch_object(batch))

    @router.get("", summary="List the batches", responses=answers("A list of batches."))
    async def list_batches(request: Request, caller: known_caller) -> Response:
        """A page of batches, newest first: `after` and `limit` choose it."""
        with openai_names(BATCH_PARAMS):
            asked = list_batches_request(request.query_params)
            page = await control.call(control.batches.ListBatches, asked, caller)
        return json_response(batch_list(page.batches, has_more=bool(page.next_page_token)))

    @router.get("/{batch_id}", summary="Describe a batch", responses=answers("A batch."))
    async def retrieve_batch(batch_id: str, caller: known_caller) -> Response:
        """One batch, with counts and usage as they are now."""
        wanted = batch_service_pb2.GetBatchRequest(batch_id=batch_id)
        reply = await control.call(control.batches.GetBatch, wanted, caller)
        return json_response(batch_object(reply.batch))

    @router.post("/{batch_id}/cancel", summary="Give up", responses=answers("The batch."))
    async def cancel_batch(batch_id: str, caller: known_caller) -> Response:
        """Gives a batch up; what has run is kept in its files."""
        wanted = batch_service_pb2.CancelBatchRequest(batch_id=batch_id)
        reply = await control.call(control.batches.CancelBatch, wanted, caller)
        return json_response(batch_object(reply.batch))

    return router
