"""Adapter routes for clients of other servers: llama-server's /lora-adapters, vLLM's
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
from gateway.routes.adapters import get_adapter, list_all_adapters, register_adapter
from gateway.routes.files import idempotency_key
from openai_wire.errors import ADAPTER_PARAMS, LOAD_LORA_PARAMS, openai_names
from openai_wire.resources.adapters import (
    LoadLoraBody,
    NamedPathBody,
    UnloadLoraBody,
    header_from_load,
    header_from_path,
    llama_server_list,
    load_problems,
    parse_unload,
    scales_by_index,
)
from svc_kit.errors import AdapterExists, AdapterInvalid, InvalidField

LOAD_WAIT: Final = Duration(seconds=30)
"""How long a registration waits for engines to load the adapter."""


def lora_router(context: AppContext) -> APIRouter:
    """The routes of llama-server and vLLM."""
    control = context.control
    router = APIRouter()
    known_caller = Annotated[Caller, Depends(context.authentication)]
    operator = Annotated[Caller, Depends(context.operators)]

    @router.get(
        "/lora-adapters", summary="List scales (llama-server)", responses=answers("Scales.")
    )
    async def list_scales(caller: known_caller) -> Response:
        """List the adapters by index, with their scales in requests that name no adapter."""
        return json_response(llama_server_list(await list_all_adapters(control, caller)))

    @router.post(
        "/lora-adapters", summary="Set scales (llama-server)", responses=answers("Success.")
    )
    async def set_scales(request: Request, caller: operator) -> Response:
        """Set the scales in requests that name no adapter. Omitted adapters get 0."""
        items = await context.read_array(request)
        adapters = await list_all_adapters(control, caller)
        for index, scale in scales_by_index(items, len(adapters)).items():
            if adapters[index].standing_scale != scale:
                proto = adapter_service_pb2.UpdateAdapterRequest(
                    adapter=adapters[index].id, standing_scale=scale
                )
                await control.call(control.adapters.UpdateAdapter, proto, caller)
        return json_response({"success": True})

    @router.post(
        "/v1/load_lora_adapter",
        summary="Load an adapter (vLLM)",
        openapi_extra=json_body(LoadLoraBody),
        responses=answers("Success."),
    )
    async def load(request: Request, caller: operator) -> Response:
        """Register a file in one of the operator's folders, and wait until it is loaded."""
        header = header_from_load(await context.read_body(request), idempotency_key(request))
        with openai_names(LOAD_LORA_PARAMS):
            try:
                await _load(context, header, caller)
            except AdapterExists:
                problem = f"the lora adapter '{header.name}' has already been loaded"
                raise InvalidField(field="name", problem=problem) from None
        return PlainTextResponse(f"Success: LoRA adapter '{header.name}' added successfully.")

    @router.post(
        "/v1/unload_lora_adapter",
        summary="Unload an adapter (vLLM)",
        openapi_extra=json_body(UnloadLoraBody),
        responses=answers("Success."),
    )
    async def unload(request: Request, caller: operator) -> Response:
        """Delete an adapter."""
        name = parse_unload(await context.read_body(request))
        proto = adapter_service_pb2.DeleteAdapterRequest(adapter=name)
        await control.call(control.adapters.DeleteAdapter, proto, caller)
        return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")

    return router


def admin_loras_router(context: AppContext) -> APIRouter:
    """The routes of adapters by name and path."""
    control = context.control
    router = APIRouter(prefix="/admin/loras")
    operator = Annotated[Caller, Depends(context.operators)]

    @router.get("", summary="List adapter names", responses=answers("Names."))
    async def list_names(caller: operator) -> Response:
        """List the names of the project's adapters."""
        names = [adapter.name for adapter in await list_all_adapters(control, caller)]
        return json_response({"object": "list", "loras": names})

    @router.post(
        "",
        summary="Register an adapter by path",
        openapi_extra=json_body(NamedPathBody),
        responses=answers("Success."),
    )
    async def register(request: Request, caller: operator) -> Response:
        """Register a file in one of the operator's folders. Replaces an existing adapter of the
        same name."""
        header = header_from_path(await context.read_body(request), idempotency_key(request))
        with openai_names(ADAPTER_PARAMS):
            await _load(context, header, caller)
        return json_response({"name": header.name, "status": "registered"})

    @router.delete("/{name}", summary="Delete an adapter", responses=answers("Success."))
    async def unregister(name: str, caller: operator) -> Response:
        """Delete an adapter."""
        proto = adapter_service_pb2.DeleteAdapterRequest(adapter=name)
        await control.call(control.adapters.DeleteAdapter, proto, caller)
        return json_response({"name": name, "status": "unregistered"})

    return router


async def _load(context: AppContext, header: adapter_pb2.AdapterHeader, caller: Caller) -> None:
    """Register an adapter and wait until engines have loaded it.

    Raises AdapterInvalid if an engine cannot load it. The adapter is then deleted, unless it
    replaced another.
    """
    created = await register_adapter(context.control, header, caller)
    adapter = await get_adapter(context.control, created.id, caller, LOAD_WAIT)
    if problems := load_problems(adapter):
        if not header.replace:
            proto = adapter_service_pb2.DeleteAdapterRequest(adapter=created.id)
            await context.control.call(context.control.adapters.DeleteAdapter, proto, caller)
        raise AdapterInvalid(adapter=header.name, problem=problems[0])
