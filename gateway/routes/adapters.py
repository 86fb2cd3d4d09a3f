"""Routes under /v1/adapters."""

from corral.control.v1 import adapter_pb2, adapter_service_pb2, listing_pb2
from fastapi import APIRouter
from google.protobuf.duration_pb2 import Duration
from starlette.requests import Request
from starlette.responses import Response

from dialects.openai.errors import ADAPTER_PARAMS, openai_names
from dialects.openai.resources import adapters
from dialects.openai.shared.objects import Deleted, deleted_object
from dialects.openai.shared.pagination import parse_page_fields
from dialects.shared.json_body import parse_object
from gateway.calls import UploadCall
from gateway.context import Context, Control, JsonObject, idempotency_key
from gateway.http.docs import INTEGER, either_body, form_body, json_body, operation
from gateway.http.errors import json_response
from gateway.http.multipart import FILE_FIELD, MEDIA_TYPE, read_file
from gateway.rpc import UNARY_TIMEOUT_S, ControlClient
from gateway.rpc_routes import Page, RpcRoutes

_BODY = either_body(json_body(adapters.AdapterBody), form_body(adapters.AdapterFields, FILE_FIELD))
_MAX_PAGE = 1000
_AdapterUpload = UploadCall[
    adapter_service_pb2.CreateAdapterRequest, adapter_service_pb2.CreateAdapterResponse
]

router = APIRouter(prefix="/v1/adapters")
rpc = RpcRoutes(router, ADAPTER_PARAMS)


@router.post("", **operation("Register an adapter", adapters.Adapter, _BODY))
async def create_adapter(control: Control, request: Request, context: Context) -> Response:
    """Register a LoRA adapter: the file of a form, or the stored file of a JSON body."""
    is_form = request.headers.get("content-type", "").startswith(MEDIA_TYPE)
    with openai_names(ADAPTER_PARAMS):
        if is_form:
            upload = control.upload(adapter_service_pb2.CreateAdapterRequest)
            with context.active_calls.track(upload):
                idle_timeout_s = context.settings.receive_timeout_s
                adapter = await _send_form(request, upload, idle_timeout_s)
        else:
            body = await context.bodies.read(request, parse_object)
            header = adapters.header_from_json(body, await idempotency_key(request))
            adapter = await register_adapter(control, header)
    return json_response(adapters.adapter_object(adapter))


@rpc.route("GET", "", "List the adapters", Page(adapters.Adapter), query=adapters.AdapterListQuery)
def list_adapters(request: Request) -> adapter_service_pb2.ListAdaptersRequest:
    """List adapters, paged by `after`, `limit` and `order`."""
    query = parse_page_fields(request.query_params, adapters.AdapterListQuery)
    return adapter_service_pb2.ListAdaptersRequest(**query)


@router.get(
    "/{adapter}", **operation("Retrieve an adapter", adapters.Adapter, query={"wait": INTEGER})
)
async def retrieve_adapter(control: Control, request: Request, adapter: str) -> Response:
    """Retrieve an adapter by id or name, with its state in every engine. Waits up to `wait`
    seconds until all engines have loaded it."""
    wait = adapters.parse_wait(request.query_params)
    return json_response(adapters.adapter_object(await get_adapter(control, adapter, wait)))


@rpc.route("POST", "/{adapter}", "Update an adapter", adapters.Adapter, adapters.AdapterUpdateBody)
@rpc.route("PATCH", "/{adapter}", "Update an adapter", adapters.Adapter, adapters.AdapterUpdateBody)
def update_adapter(adapter: str, body: JsonObject) -> adapter_service_pb2.UpdateAdapterRequest:
    """Update the scales or the description of an adapter."""
    return adapters.update_request(adapter, body)


@rpc.route("POST", "/{adapter}/retry", "Retry an adapter", adapters.Adapter)
def retry_adapter(adapter: str) -> adapter_service_pb2.RetryAdapterRequest:
    """Retry loading an adapter in engines that failed to load it."""
    return adapter_service_pb2.RetryAdapterRequest(adapter=adapter)


@router.delete("/{adapter}", **operation("Delete an adapter", Deleted))
async def delete_adapter(control: Control, adapter: str) -> Response:
    """Delete an adapter. Running requests continue to use it."""
    proto = adapter_service_pb2.DeleteAdapterRequest(adapter=adapter)
    reply = await control.call(proto, adapter_service_pb2.DeleteAdapterResponse)
    return json_response(deleted_object(reply.adapter_id, "adapter"))


async def _send_form(
    request: Request, upload: _AdapterUpload, idle_timeout_s: float
) -> adapter_pb2.Adapter:
    """Stream the file of a form to the control service, then the header with all fields."""
    fields: dict[str, str] = {}
    async for piece in read_file(request, idle_timeout_s, fields):
        if isinstance(piece, bytes):
            await upload.write(adapter_service_pb2.CreateAdapterRequest(chunk=piece))
    header = adapters.header_from_form(fields, await idempotency_key(request))
    return await _finish(upload, header)


async def register_adapter(
    control: ControlClient, header: adapter_pb2.AdapterHeader
) -> adapter_pb2.Adapter:
    """Register an adapter from a stored file or a path."""
    return await _finish(control.upload(adapter_service_pb2.CreateAdapterRequest), header)


async def _finish(upload: _AdapterUpload, header: adapter_pb2.AdapterHeader) -> adapter_pb2.Adapter:
    await upload.write(adapter_service_pb2.CreateAdapterRequest(header=header))
    return (await upload.finish()).adapter


async def get_adapter(
    control: ControlClient, adapter: str, wait: Duration | None = None
) -> adapter_pb2.Adapter:
    """Get an adapter by id or name, after at most `wait` for engines that are loading it."""
    request = adapter_service_pb2.GetAdapterRequest(adapter=adapter, wait=wait)
    timeout_s = UNARY_TIMEOUT_S + (wait.seconds if wait is not None else 0)
    reply = adapter_service_pb2.GetAdapterResponse
    return (await control.call(request, reply, timeout_s=timeout_s)).adapter


async def list_all_adapters(control: ControlClient) -> list[adapter_pb2.Adapter]:
    """List the adapters of the caller's project, oldest first."""
    request = adapter_service_pb2.ListAdaptersRequest(
        page_size=_MAX_PAGE, order=listing_pb2.LIST_ORDER_OLDEST_FIRST
    )
    pages = control.pages(request, adapter_service_pb2.ListAdaptersResponse)
    return [adapter async for page in pages for adapter in page.adapters]
