"""The routes under /v1/threads, but those of messages and runs."""

from typing import Annotated

from corral.control.v1 import thread_service_pb2
from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from gateway.auth import Caller
from gateway.docs import answers, json_body
from gateway.errors import json_response
from gateway.parts import Parts
from gateway.routes.files import name_request
from openai_wire.assistants.objects import deleted_object, list_object, thread_object
from openai_wire.assistants.threads import (
    ThreadBody,
    ThreadUpdateBody,
    create_thread_request,
    update_thread_request,
)
from openai_wire.errors import ASSISTANT_PARAMS, openai_names
from openai_wire.requests.listing import PageQuery, page_fields, page_query
from openai_wire.responses.lists import conversation_object


def threads_router(parts: Parts) -> APIRouter:
    """The routes of threads."""
    router = APIRouter(prefix="/v1/threads")
    known_caller = Annotated[Caller, Depends(parts.authentication)]

    @router.post(
        "",
        summary="Begin a thread",
        openapi_extra=json_body(ThreadBody),
        responses=answers("A thread."),
    )
    async def create_thread(request: Request, caller: known_caller) -> Response:
        """Begins a thread, with messages perhaps."""
        body = await parts.read_body(request)
        with openai_names(ASSISTANT_PARAMS):
            asked = create_thread_request(body, name_request(request))
            thread = await parts.threads.create(asked, caller)
        return json_response(thread_object(thread))

    @router.get("", summary="List the threads", responses=answers("A list of threads."))
    async def list_threads(request: Request, caller: known_caller) -> Response:
        """A page of threads: `after`, `before`, `limit` and `order` choose it. OpenAI had no such
        list."""
        with openai_names(ASSISTANT_PARAMS):
            query = page_query(PageQuery, request.query_params)
            asked = thread_service_pb2.ListThreadsRequest(**page_fields(query))
            page = await parts.threads.page(asked, caller)
        has_more = bool(page.next_page_token)
        return json_response(list_object(page.threads, thread_object, has_more=has_more))

    @router.get("/{thread_id}", summary="Describe a thread", responses=answers("A thread."))
    async def retrieve_thread(thread_id: str, caller: known_caller) -> Response:
        """One thread."""
        return json_response(thread_object(await parts.threads.get(thread_id, caller)))

    @router.post(
        "/{thread_id}",
        summary="Change a thread",
        openapi_extra=json_body(ThreadUpdateBody),
        responses=answers("A thread."),
    )
    async def update_thread(request: Request, thread_id: str, caller: known_caller) -> Response:
        """Changes the metadata or the resources that the body names; null clears them."""
        with openai_names(ASSISTANT_PARAMS):
            asked = update_thread_request(thread_id, await parts.read_body(request))
            thread = await parts.threads.update(asked, caller)
        return json_response(thread_object(thread))

    @router.delete("/{thread_id}", summary="Delete a thread", responses=answers("What is left."))
    async def delete_thread(thread_id: str, caller: known_caller) -> Response:
        """Deletes a thread with its messages and runs; refused while a run is active."""
        await parts.threads.delete(thread_id, caller)
        return json_response(deleted_object(thread_id, "thread"))

    @router.post(
        "/{thread_id}/migrate",
        summary="Make a conversation of a thread",
        responses=answers("A conversation."),
    )
    async def migrate_thread(request: Request, thread_id: str, caller: known_caller) -> Response:
        """Makes a conversation of the same items, for Responses to go on from; the thread stays.
        OpenAI had no such thing."""
        with openai_names(ASSISTANT_PARAMS):
            made = await parts.threads.migrate(thread_id, name_request(request), caller)
        return json_response(conversation_object(made))

    return router
