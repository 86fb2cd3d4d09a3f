"""Routes under /v1/assistants. The header `OpenAI-Beta: assistants=v2` is not required."""

from corral.control.v1 import assistant_service_pb2 as pb
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from dialects.openai.assistants.objects import assistant_object
from dialects.openai.assistants.requests import (
    AssistantBody,
    AssistantUpdateBody,
    create_assistant_request,
    update_assistant_request,
)
from dialects.openai.errors import ASSISTANT_PARAMS, openai_names
from dialects.openai.shared.objects import deleted_object, list_object
from dialects.openai.shared.pagination import PageQuery, parse_page_fields
from gateway.context import Control, IdempotencyKey, JsonObject
from gateway.http.docs import json_body, operation
from gateway.http.errors import json_response

router = APIRouter(prefix="/v1/assistants")


@router.post("", **operation("Create an assistant", "Assistant", json_body(AssistantBody)))
async def create_assistant(
    control: Control, body: JsonObject, request_id: IdempotencyKey
) -> Response:
    """Create an assistant: a model with instructions and tools, to be run on threads."""
    with openai_names(ASSISTANT_PARAMS):
        proto = create_assistant_request(body, request_id)
        reply = await control.call(control.assistants.CreateAssistant, proto)
    return json_response(assistant_object(reply.assistant))


@router.get("", **operation("List the assistants", "AssistantList", query=PageQuery))
async def list_assistants(control: Control, request: Request) -> Response:
    """List assistants, paged by `after`, `before`, `limit` and `order`."""
    with openai_names(ASSISTANT_PARAMS):
        proto = pb.ListAssistantsRequest(**parse_page_fields(request.query_params))
        page = await control.call(control.assistants.ListAssistants, proto)
    return json_response(list_object(page.assistants, assistant_object, page.next_page_token))


@router.get("/{assistant_id}", **operation("Retrieve an assistant", "Assistant"))
async def retrieve_assistant(control: Control, assistant_id: str) -> Response:
    """Retrieve an assistant."""
    proto = pb.GetAssistantRequest(assistant_id=assistant_id)
    reply = await control.call(control.assistants.GetAssistant, proto)
    return json_response(assistant_object(reply.assistant))


@router.post(
    "/{assistant_id}",
    **operation("Update an assistant", "Assistant", json_body(AssistantUpdateBody)),
)
async def update_assistant(control: Control, assistant_id: str, body: JsonObject) -> Response:
    """Update the fields in the body; null resets a field. Active runs are not affected."""
    with openai_names(ASSISTANT_PARAMS):
        proto = update_assistant_request(assistant_id, body)
        reply = await control.call(control.assistants.UpdateAssistant, proto)
    return json_response(assistant_object(reply.assistant))


@router.delete("/{assistant_id}", **operation("Delete an assistant", "Deleted"))
async def delete_assistant(control: Control, assistant_id: str) -> Response:
    """Delete an assistant. Threads and runs keep its id."""
    proto = pb.DeleteAssistantRequest(assistant_id=assistant_id)
    await control.call(control.assistants.DeleteAssistant, proto)
    return json_response(deleted_object(assistant_id, "assistant.deleted"))
