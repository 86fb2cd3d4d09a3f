"""Adapter routes for clients of other servers: llama-server's /lora-adapters, vLLM's
/v1/load_lora_adapter, and /admin/loras.
"""

from typing import Final

from corral.control.v1 import adapter_pb2, adapter_service_pb2
from fastapi import APIRouter
from google.protobuf.duration_pb2 import Duration
from starlette.responses import PlainTextResponse, Response

from dialects.openai.errors import ADAPTER_PARAMS, LOAD_LORA_PARAMS, openai_names
from dialects.openai.resources.adapters import (
    AdapterNames,
    AdapterStatus,
    LoadLoraBody,
    LoraScales,
    NamedPathBody,
    Success,
    UnloadLoraBody,
    header_from_load,
    header_from_path,
    llama_server_list,
    load_problems,
    parse_unload,
    scales_by_index,
)
from gateway.context import Control, IdempotencyKey, JsonArray, JsonObject, OperatorControl
from gateway.http.docs import json_body, operation
from gateway.http.errors import json_response
from gateway.routes.adapters import get_adapter, list_all_adapters, register_adapter
from gateway.rpc import ControlClient
from svc_kit.errors import AdapterExists, AdapterInvalid, InvalidField

LOAD_WAIT: Final = Duration(seconds=30)
"""How long a registration waits for engines to load the adapter."""


router = APIRouter()


@router.get("/lora-adapters", **operation("List scales (llama-server)", LoraScales))
async def list_scales(control: Control) -> Response:
    """List the adapters by index, with their scales in requests that name no adapter."""
    return json_response(llama_server_list(await list_all_adapters(control)))


@router.post("/lora-adapters", **operation("Set scales (llama-server)", Success))
async def set_scales(control: OperatorControl, items: JsonArray) -> Response:
    """Set the scales in requests that name no adapter. Omitted adapters get 0."""
    adapters = await list_all_adapters(control)
    for index, scale in scales_by_index(items, len(adapters)).items():
        if adapters[index].standing_scale != scale:
            proto = adapter_service_pb2.UpdateAdapterRequest(
                adapter=adapters[index].id, standing_scale=scale
            )
            await control.call(proto, adapter_service_pb2.UpdateAdapterResponse)
    return json_response(Success(success=True))


@router.post(
    "/v1/load_lora_adapter",
    **operation("Load an adapter (vLLM)", "text/plain", json_body(LoadLoraBody)),
)
async def load(control: OperatorControl, body: JsonObject, request_id: IdempotencyKey) -> Response:
    """Register a file in one of the operator's folders, and wait until it is loaded."""
    header = header_from_load(body, request_id)
    with openai_names(LOAD_LORA_PARAMS):
        try:
            await _load(control, header)
        except AdapterExists:
            problem = f"the lora adapter '{header.name}' has already been loaded"
            raise InvalidField(field="name", problem=problem) from None
    return PlainTextResponse(f"Success: LoRA adapter '{header.name}' added successfully.")


@router.post(
    "/v1/unload_lora_adapter",
    **operation("Unload an adapter (vLLM)", "text/plain", json_body(UnloadLoraBody)),
)
async def unload(control: OperatorControl, body: JsonObject) -> Response:
    """Delete an adapter."""
    name = parse_unload(body)
    proto = adapter_service_pb2.DeleteAdapterRequest(adapter=name)
    await control.call(proto, adapter_service_pb2.DeleteAdapterResponse)
    return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")


@router.get("/admin/loras", **operation("List adapter names", AdapterNames))
async def list_names(control: OperatorControl) -> Response:
    """List the names of the project's adapters."""
    names = [adapter.name for adapter in await list_all_adapters(control)]
    return json_response(AdapterNames(object="list", loras=names))


@router.post(
    "/admin/loras",
    **operation("Register an adapter by path", AdapterStatus, json_body(NamedPathBody)),
)
async def register(
    control: OperatorControl, body: JsonObject, request_id: IdempotencyKey
) -> Response:
    """Register a file in one of the operator's folders. Replaces an existing adapter of the
    same name."""
    header = header_from_path(body, request_id)
    with openai_names(ADAPTER_PARAMS):
        await _load(control, header)
    return json_response(AdapterStatus(name=header.name, status="registered"))


@router.delete("/admin/loras/{name}", **operation("Delete an adapter", AdapterStatus))
async def unregister(control: OperatorControl, name: str) -> Response:
    """Delete an adapter."""
    proto = adapter_service_pb2.DeleteAdapterRequest(adapter=name)
    await control.call(proto, adapter_service_pb2.DeleteAdapterResponse)
    return json_response(AdapterStatus(name=name, status="unregistered"))


async def _load(control: ControlClient, header: adapter_pb2.AdapterHeader) -> None:
    """Register an adapter and wait until engines have loaded it.

    Raises AdapterInvalid if an engine cannot load it. The adapter is then deleted, unless it
    replaced another.
    """
    created = await register_adapter(control, header)
    adapter = await get_adapter(control, created.id, LOAD_WAIT)
    if problems := load_problems(adapter):
        if not header.replace:
            proto = adapter_service_pb2.DeleteAdapterRequest(adapter=created.id)
            await control.call(proto, adapter_service_pb2.DeleteAdapterResponse)
        raise AdapterInvalid(adapter=header.name, problem=problems[0])
