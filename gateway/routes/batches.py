"""The routes under /v1/batches."""

from typing import Annotated

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


def batches_router(parts: AppContext) -> APIRouter:
    """The routes of batches."""
    router = APIRouter(prefix="/v1/batches")
    known_caller = Annotated[Caller, Depends(parts.authentication)]

    @router.post(
        "",
        summary="Carry out a file of requests",
        openapi_extra=json_body(BatchBody),
        responses=answers("A batch."),
    )
    async def create_batch(request: Request, caller: known_caller) -> Response:
        """Begins a batch: its file is checked, then its lines run when there is time."""
        body = await parts.read_body(request)
        with openai_names(BATCH_PARAMS):
            asked = create_batch_request(body, name_request(request))
            batch = await parts.control.create_batch(asked, caller)
        return json_response(batch_object(batch))

    @router.get("", summary="List the batches", responses=answers("A list of batches."))
    async def list_batches(request: Request, caller: known_caller) -> Response:
        """A page of batches, newest first: `after` and `limit` choose it."""
        with openai_names(BATCH_PARAMS):
            asked = list_batches_request(request.query_params)
            page = await parts.control.list_batches(asked, caller)
        return json_response(batch_list(page.batches, has_more=bool(page.next_page_token)))

    @router.get("/{batch_id}", summary="Describe a batch", responses=answers("A batch."))
    async def retrieve_batch(batch_id: str, caller: known_caller) -> Response:
        """One batch, with counts and usage as they are now."""
        return json_response(batch_object(await parts.control.get_batch(batch_id, caller)))

    @router.post("/{batch_id}/cancel", summary="Give up", responses=answers("The batch."))
    async def cancel_batch(batch_id: str, caller: known_caller) -> Response:
        """Gives a batch up; what has run is kept in its files."""
        return json_response(batch_object(await parts.control.cancel_batch(batch_id, caller)))

    return router
