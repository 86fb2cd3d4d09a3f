"""Routes: /props and /slots."""

from corral.inference.v1 import engine_service_pb2
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from dialects.llama_server.objects import LlamaServerProps, LlamaServerSlots, props, slot_list
from gateway.context import Context, Inference, Models
from gateway.http.docs import TEXT, llama_server_operation
from gateway.http.errors import json_response
from svc_kit.auth.scopes import Scope
from svc_kit.errors import FeatureUnsupported, QueueFull

router = APIRouter()


@router.get(
    "/props",
    **llama_server_operation("Properties (llama-server)", LlamaServerProps, query={"model": TEXT}),
)
async def show_props(inference: Models, request: Request, context: Context) -> Response:
    """The properties of the model in the query, or of the first one."""
    model = await inference.get_model(request.query_params.get("model", ""))
    return json_response(props(model, context.fingerprint))


@router.get(
    "/slots",
    **llama_server_operation(
        "Slots (llama-server)", LlamaServerSlots, query={"model": TEXT, "fail_on_no_slot": TEXT}
    ),
)
async def list_slots(request: Request, context: Context) -> Response:
    """The slots of a model. What other projects do in them is not shown, nor any text."""
    caller = await context.identify(request, Scope.REQUESTS_READ)
    inference = context.inference.for_caller(caller)
    model = await inference.get_model(request.query_params.get("model", ""))
    listing = engine_service_pb2.ListRequestsRequest()
    pages = inference.pages(listing, engine_service_pb2.ListRequestsResponse)
    requests = [each async for page in pages for each in page.requests]
    slots = slot_list(model, requests, caller.principal.project)
    if request.query_params.get("fail_on_no_slot") and all(each["is_processing"] for each in slots):
        raise QueueFull(bound="slots", depth=len(slots), limit=len(slots))
    return json_response(slots)


@router.post(
    "/props",
    **llama_server_operation("Change properties (llama-server)", ()),
)
async def change_properties(_inference: Inference) -> Response:
    """Refused: they are the operator's."""
    raise FeatureUnsupported(feature="changes of properties over HTTP")


@router.post(
    "/slots/{slot}",
    **llama_server_operation("Change a slot (llama-server)", ()),
)
async def change_slot(_inference: Inference, slot: str) -> Response:
    """Refused: they are the scheduler's."""
    raise FeatureUnsupported(feature=f"changes of slots over HTTP ('{slot}')")
