"""Adapter routes of other servers, for their clients: llama-server's /lora-adapters, vLLM's
/v1/load_lora_adapter, and /admin/loras.
"""

from typing import Annotated, Final

from corral.control.v1 import adapter_pb2, adapter_service_pb2
from fastapi import APIRouter, Depends
from google.protobuf.duration_pb2 import Duration
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from gateway.auth import Caller
from gateway.context import AppContext
from gateway.http.docs import answers, json_body
from gateway.http.errors import json_response
from gateway.routes.adapters import all_adapters, get_adapter, register_adapter
from gateway.routes.files import name_request
from openai_wire.errors import ADAPTER_PARAMS, LOAD_LORA_PARAMS, openai_names
from openai_wire.resources.adapters import (
    LoadLoraBody,
    NamedPathBody,
    UnloadLoraBody,
    header_of_load,
    header_of_path,
    llama_server_list,
    problems_of,
    scales_by_place,
    unload_name,
)
from svc_kit.errors import AdapterExists, AdapterInvalid, InvalidField

LOAD_WAIT: Final = Duration(seconds=30)
"""How long a client that expects a loaded adapter waits for the engines."""


def lora_router(context: AppContext) -> APIRouter:
    """The routes of llama-server and vLLM."""
    control = context.control
    router = APIRouter()
    known_caller = Annotated[Caller, Depends(context.authentication)]
    operator = Annotated[Caller, Depends(context.operators)]

    @router.get("/lora-adapters", summary="As llama-server", responses=answers("Scales."))
    async def list_scales(caller: known_caller) -> Response:
        """The adapters by their place, with the scales of requests that name none."""
        return json_response(llama_server_list(await all_adapters(control, caller)))

    @router.post("/lora-adapters", summary="As llama-server", responses=answers("Done."))
    async def set_scales(request: Request, caller: operator) -> Response:
        """Sets the scales of requests that name no adapter; those not in the list become 0."""
        items = await context.read_array(request)
        adapters = await all_adapters(control, caller)
        for place, scale in scales_by_place(items, len(adapters)).items():
            if adapters[place].standing_scale != scale:
                asked = adapter_service_pb2.UpdateAdapterRequest(
                    adapter=adapters[place].id, standing_scale=scale
                )
                await control.call(control.adapters.UpdateAdapter, asked, caller)
        return json_response({"success": True})

    @router.post(
        "/v1/load_lora_adapter",
        summary="As vLLM",
        openapi_extra=json_body(LoadLoraBody),
        responses=answers("Done."),
    )
    async def load(request: Request, caller: operator) -> Response:
        """Registers a file in one of the operator's folders, and waits until it is served."""
        header = header_of_load(await context.read_body(request), name_request(request))
        with openai_names(LOAD_LORA_PARAMS):
            try:
                await _load(context, header, caller)
            except AdapterExists:
                problem = f"the lora adapter '{header.name}' has already been loaded"
                raise InvalidField(field="name", problem=problem) from None
        return PlainTextResponse(f"Success: LoRA adapter '{header.name}' added successfully.")

    @router.post(
        "/v1/unload_lora_adapter",
        summary="As vLLM",
        openapi_extra=json_body(UnloadLoraBody),
        responses=answers("Done."),
    )
    async def unload(request: Request, caller: operator) -> Response:
        """Deletes an adapter."""
        name = unload_name(await context.read_body(request))
        wanted = adapter_service_pb2.DeleteAdapterRequest(adapter=name)
        await control.call(control.adapters.DeleteAdapter, wanted, caller)
        return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")

    return router


def admin_loras_router(context: AppContext) -> APIRouter:
    """The routes by name and path."""
    control = context.control
    router = APIRouter(prefix="/admin/loras")
    operator = Annotated[Caller, Depends(context.operators)]

    @router.get("", summary="Names of adapters", responses=answers("Names."))
    async def list_names(caller: operator) -> Response:
        """The names of the project's adapters."""
        names = [adapter.name for adapter in await all_adapters(control, caller)]
        return json_response({"object": "list", "loras": names})

    @router.post(
        "",
        summary="Register a path",
        openapi_extra=json_body(NamedPathBody),
        responses=answers("Done."),
    )
    async def register(request: Request, caller: operator) -> Response:
        """Registers a file in one of the operator's folders; a name that is there is taken."""
        header = header_of_path(await context.read_body(request), name_request(request))
        with openai_names(ADAPTER_PARAMS):
            await _load(context, header, caller)
        return json_response({"name": header.name, "status": "registered"})

    @router.delete("/{name}", summary="Forget a name", responses=answers("Done."))
    async def unregister(name: str, caller: operator) -> Response:
        """Deletes an adapter."""
        wanted = adapter_service_pb2.DeleteAdapterRequest(adapter=name)
        await control.call(control.adapters.DeleteAdapter, wanted, caller)
        return json_response({"name": name, "status": "unregistered"})

    return router


async def _load(context: AppContext, header: adapter_pb2.AdapterHeader, caller: Caller) -> None:
    """Register an adapter and wait for the engines. One that an engine cannot use is taken back,
    unless it replaced another. Raises AdapterInvalid."""
    created = await register_adapter(context.control, header, caller)
    found = await get_adapter(context.control, created.id, caller, LOAD_WAIT)
    problems = problems_of(found)
    if problems:
        if not header.replace:
            wanted = adapter_service_pb2.DeleteAdapterRequest(adapter=created.id)
            await context.control.call(context.control.adapters.DeleteAdapter, wanted, caller)
        raise AdapterInvalid(adapter=header.name, problem=problems[0])
