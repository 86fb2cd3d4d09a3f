"""Routes under /v1/assistants. The header `OpenAI-Beta: assistants=v2` is not required."""

from typing import Annotated

from corral.control.v1 import assistant_service_pb2
from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from gateway.auth import Caller
from gateway.context import AppContext
from gateway.http.docs import answers, json_body
from gateway.http.errors import json_response
from gateway.routes.files import idempotency_key
from openai_wire.assistants.objects import assistant_object
from openai_wire.assistants.requests import (
    AssistantBody,
    AssistantUpdateBody,
    create_assistant_request,
    update_assistant_request,
)
from openai_wire.errors import ASSISTANT_PARAMS, openai_names
from openai_wire.shared.objects import deleted_object, list_object
from openai_wire.shared.pagination import PageQuery, page_fields, parse_page_query


def assistants_router(context: AppContext) -> APIRouter:
    """The routes of assistants."""
    control = context.control
    router = APIRouter(prefix="/v1/assistants")
    known_caller = Annotated[Caller, Depends(context.authentication)]

    @router.post(
        "",
        summary="Create an assistant",
        openapi_extra=json_body(AssistantBody),
        responses=answers("An assistant."),
    )
    async def create_assistant(request: Request, caller: known_caller) -> Response:
        """Create an assistant: a model with instructions and tools, to be run on threads."""
        body = await context.read_body(request)
        with openai_names(ASSISTANT_PARAMS):
            proto = create_assistant_request(body, idempotency_key(request))
            reply = await control.call(control.assistants.CreateAssistant, proto, caller)
        return json_response(assistant_object(reply.assistant))

    @router.get("", summary="List the assistants", responses=answers("A list of assistants."))
    async def list_assistants(request: Request, caller: known_caller) -> Response:
        """List assistants, paged by `after`, `before`, `limit` and `order`."""
        with openai_names(ASSISTANT_PARAMS):
            query = parse_page_query(PageQuery, request.query_params)
            proto = assistant_service_pb2.ListAssistantsRequest(**page_fields(query))
            page = await control.call(control.assistants.ListAssistants, proto, caller)
        has_more = bool(page.next_page_token)
        return json_response(list_object(page.assistants, assistant_object, has_more=has_more))

    @router.get(
        "/{assistant_id}", summary="Retrieve an assistant", responses=answers("An assistant.")
    )
    async def retrieve_assistant(assistant_id: str, caller: known_caller) -> Response:
        """Retrieve an assistant."""
        proto = assistant_service_pb2.GetAssistantRequest(assistant_id=assistant_id)
        reply = await control.call(control.assistants.GetAssistant, proto, caller)
        return json_response(assistant_object(reply.assistant))

    @router.post(
        "/{assistant_id}",
        summary="Update an assistant",
        openapi_extra=json_body(AssistantUpdateBody),
        responses=answers("An assistant."),
    )
    async def update_assistant(
        request: Request, assistant_id: str, caller: known_caller
    ) -> Response:
        """Update the fields in the body; null resets a field. Active runs are not affected."""
        with openai_names(ASSISTANT_PARAMS):
            proto = update_assistant_request(assistant_id, await context.read_body(request))
            reply = await control.call(control.assistants.UpdateAssistant, proto, caller)
        return json_response(assistant_object(reply.assistant))

    @router.delete(
        "/{assistant_id}", summary="Delete an assistant", responses=answers("Deletion status.")
    )
    async def delete_assistant(assistant_id: str, caller: known_caller) -> Response:
        """Delete an assistant. Threads and runs keep its id."""
        proto = assistant_service_pb2.DeleteAssistantRequest(assistant_id=assistant_id)
        await control.call(control.assistants.DeleteAssistant, proto, caller)
        return json_response(deleted_object(assistant_id, "assistant.deleted"))

    return router
