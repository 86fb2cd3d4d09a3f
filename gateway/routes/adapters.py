"""The routes under /v1/adapters."""

from typing import Annotated

from corral.control.v1 import adapter_pb2, adapter_service_pb2, listing_pb2
from fastapi import APIRouter, Depends
from google.protobuf.duration_pb2 import Duration
from starlette.requests import Request
from starlette.responses import Response

from gateway.auth import Caller
from gateway.context import AppContext
from gateway.http.docs import answers, form_body, json_body
from gateway.http.errors import json_response
from gateway.http.multipart import MEDIA_TYPE, FormField, FormFile, read_form
from gateway.routes.files import FILE_FIELD, name_request
from gateway.rpc import UNARY_TIMEOUT_S, ControlClient
from gateway.upload_call import UploadCall
from openai_wire.errors import ADAPTER_PARAMS, openai_names
from openai_wire.resources.adapters import (
    AdapterBody,
    AdapterFields,
    AdapterUpdateBody,
    adapter_list,
    adapter_object,
    deleted_adapter,
    header_of_body,
    header_of_form,
    list_adapters_request,
    update_request,
    wait_of,
)
from svc_kit.errors import CallerCancelled, InvalidField, MissingField

_BODIES = {
    "requestBody": {
        "required": True,
        "content": {
            **json_body(AdapterBody)["requestBody"]["content"],
            **form_body(AdapterFields, FILE_FIELD)["requestBody"]["content"],
        },
    }
}

_MAX_PAGE = 1000
_AdapterUpload = UploadCall[
    adapter_service_pb2.CreateAdapterRequest, adapter_service_pb2.CreateAdapterResponse
]


def adapters_router(context: AppContext) -> APIRouter:
    """The routes of adapters."""
    control = context.control
    router = APIRouter(prefix="/v1/adapters")
    known_caller = Annotated[Caller, Depends(context.authentication)]

    @router.post(
        "", summary="Register an adapter", openapi_extra=_BODIES, responses=answers("An adapter.")
    )
    async def create_adapter(request: Request, caller: known_caller) -> Response:
        """Keeps a LoRA: the file of a form, or the one whose id a JSON body names."""
        is_form = request.headers.get("content-type", "").startswith(MEDIA_TYPE)
        with openai_names(ADAPTER_PARAMS):
            if is_form:
                adapter = await _create_from_form(context, request, caller)
            else:
                body = await context.read_body(request)
                header = header_of_body(body, name_request(request))
                adapter = await register_adapter(control, header, caller)
        return json_response(adapter_object(adapter))

    @router.get("", summary="List the adapters", responses=answers("A list of adapters."))
    async def list_adapters(request: Request, caller: known_caller) -> Response:
        """A page of adapters: `after`, `limit` and `order` choose it."""
        with openai_names(ADAPTER_PARAMS):
            asked = list_adapters_request(request.query_params)
            page = await control.call(control.adapters.ListAdapters, asked, caller)
        has_more = bool(page.next_page_token)
        return json_response(adapter_list(page.adapters, has_more=has_more))

    @router.get("/{adapter}", summary="Describe an adapter", responses=answers("An adapter."))
    async def retrieve_adapter(request: Request, adapter: str, caller: known_caller) -> Response:
        """One adapter by id or name, with its state in every engine; `wait` so many seconds for
        them."""
        wait = wait_of(request.query_params)
        return json_response(adapter_object(await get_adapter(control, adapter, caller, wait)))

    @router.post(
        "/{adapter}",
        summary="Change an adapter",
        openapi_extra=json_body(AdapterUpdateBody),
        responses=answers("An adapter."),
    )
    @router.patch(
        "/{adapter}",
        summary="Change an adapter",
        openapi_extra=json_body(AdapterUpdateBody),
        responses=answers("An adapter."),
    )
    async def update_adapter(request: Request, adapter: str, caller: known_caller) -> Response:
        """Changes scales or description."""
        with openai_names(ADAPTER_PARAMS):
            asked = update_request(adapter, await context.read_body(request))
            reply = await control.call(control.adapters.UpdateAdapter, asked, caller)
            changed = reply.adapter
        return json_response(adapter_object(changed))

    @router.post(
        "/{adapter}/retry", summary="Try an adapter again", responses=answers("An adapter.")
    )
    async def retry_adapter(adapter: str, caller: known_caller) -> Response:
        """Has engines load what they could not, also where one ended while it did."""
        wanted = adapter_service_pb2.RetryAdapterRequest(adapter=adapter)
        reply = await control.call(control.adapters.RetryAdapter, wanted, caller)
        return json_response(adapter_object(reply.adapter))

    @router.delete("/{adapter}", summary="Delete an adapter", responses=answers("What is left."))
    async def delete_adapter(adapter: str, caller: known_caller) -> Response:
        """Deletes an adapter; running requests continue with it."""
        wanted = adapter_service_pb2.DeleteAdapterRequest(adapter=adapter)
        reply = await control.call(control.adapters.DeleteAdapter, wanted, caller)
        return json_response(deleted_adapter(reply.adapter_id))

    return router


async def _create_from_form(
    context: AppContext, request: Request, caller: Caller
) -> adapter_pb2.Adapter:
    sending = context.control.upload(context.control.adapters.CreateAdapter, caller)
    with context.live.holding(sending):
        try:
            return await _send_form(request, sending, context.settings.receive_timeout_s)
        finally:
            sending.stop(CallerCancelled())


async def _send_form(
    request: Request, sending: _AdapterUpload, idle_s: float
) -> adapter_pb2.Adapter:
    """Pass the file of a form on while it arrives; the header goes last, as fields may."""
    fields: dict[str, str] = {}
    has_file = False
    async for piece in read_form(request, idle_s):
        if isinstance(piece, FormField):
            fields[piece.name] = piece.text
        elif isinstance(piece, FormFile):
            if piece.name != FILE_FIELD or has_file:
                raise InvalidField(field=piece.name, problem="the form has one file, 'file'")
            has_file = True
        else:
            await sending.write(adapter_service_pb2.CreateAdapterRequest(chunk=piece))
    if not has_file:
        raise MissingField(field=FILE_FIELD)
    header = header_of_form(fields, name_request(request))
    await sending.write(adapter_service_pb2.CreateAdapterRequest(header=header))
    return (await sending.finish()).adapter


async def register_adapter(
    control: ControlClient, header: adapter_pb2.AdapterHeader, caller: Caller
) -> adapter_pb2.Adapter:
    """Register an adapter whose bytes the control service has or can read."""
    upload = control.upload(control.adapters.CreateAdapter, caller)
    await upload.write(adapter_service_pb2.CreateAdapterRequest(header=header))
    return (await upload.finish()).adapter


async def get_adapter(
    control: ControlClient, adapter: str, caller: Caller, wait: Duration | None = None
) -> adapter_pb2.Adapter:
    """Return an adapter by id or name, after at most `wait` for engines that load it."""
    request = adapter_service_pb2.GetAdapterRequest(adapter=adapter, wait=wait)
    timeout_s = UNARY_TIMEOUT_S + (wait.seconds if wait is not None else 0)
    method = control.adapters.GetAdapter
    reply = await control.call(method, request, caller, timeout_s=timeout_s)
    return reply.adapter


async def all_adapters(control: ControlClient, caller: Caller) -> list[adapter_pb2.Adapter]:
    """Return the adapters of the caller's project, oldest first."""
    request = adapter_service_pb2.ListAdaptersRequest(
        page_size=_MAX_PAGE, order=listing_pb2.LIST_ORDER_OLDEST_FIRST
    )
    adapters: list[adapter_pb2.Adapter] = []
    while True:
        page = await control.call(control.adapters.ListAdapters, request, caller)
        adapters.extend(page.adapters)
        if not page.next_page_token:
            return adapters
        request.page_token = page.next_page_token
