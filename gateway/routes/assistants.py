"""Routes under /v1/assistants. The header `OpenAI-Beta: assistants=v2` is not required."""

from corral.control.v1 import assistant_service_pb2 as pb
from fastapi import APIRouter
from starlette.requests import Request

from dialects.openai.assistants import requests
from dialects.openai.assistants.objects import Assistant
from dialects.openai.errors import ASSISTANT_PARAMS
from dialects.openai.shared.pagination import PageQuery, parse_page_fields
from gateway.context import IdempotencyKey, JsonObject
from gateway.rpc_routes import Deletion, Page, RpcRoutes

router = APIRouter(prefix="/v1/assistants")
rpc = RpcRoutes(router, ASSISTANT_PARAMS)


@rpc.route("POST", "", "Create an assistant", Assistant, requests.AssistantBody)
def create_assistant(body: JsonObject, request_id: IdempotencyKey) -> pb.CreateAssistantRequest:
    """Create an assistant: a model with instructions and tools, to be run on threads."""
    return requests.create_assistant_request(body, request_id)


@rpc.route("GET", "", "List the assistants", Page(Assistant), query=PageQuery)
def list_assistants(request: Request) -> pb.ListAssistantsRequest:
    """List assistants, paged by `after`, `before`, `limit` and `order`."""
    return pb.ListAssistantsRequest(**parse_page_fields(request.query_params))


@rpc.route("GET", "/{assistant_id}", "Retrieve an assistant", Assistant)
def retrieve_assistant(assistant_id: str) -> pb.GetAssistantRequest:
    """Retrieve an assistant."""
    return pb.GetAssistantRequest(assistant_id=assistant_id)


@rpc.route(
    "POST", "/{assistant_id}", "Update an assistant", Assistant, requests.AssistantUpdateBody
)
def update_assistant(assistant_id: str, body: JsonObject) -> pb.UpdateAssistantRequest:
    """Update the fields in the body; null resets a field. Active runs are not affected."""
    return requests.update_assistant_request(assistant_id, body)


@rpc.route("DELETE", "/{assistant_id}", "Delete an assistant", Deletion("assistant.deleted"))
def delete_assistant(assistant_id: str) -> pb.DeleteAssistantRequest:
    """Delete an assistant. Threads and runs keep its id."""
    return pb.DeleteAssistantRequest(assistant_id=assistant_id)
