"""Routes: models (/api/tags, /api/show, /api/ps), their names, versions, and what this server does
not do."""

from typing import Final

from corral.inference.v1 import engine_service_pb2, model_pb2
from fastapi import APIRouter
from starlette.responses import Response

from dialects.ollama.model_body import CopyModelBody, NamedModelBody, parse_model, untagged
from dialects.ollama.objects import (
    API_VERSION,
    OllamaModel,
    OllamaModelList,
    OllamaRunningModels,
    OllamaVersion,
    described_model,
    listed_model,
    running_model,
)
from dialects.shared.fields import validate
from gateway.context import JsonObject, Models
from gateway.http.docs import json_body, ollama_operation
from gateway.http.errors import json_response
from svc_kit.errors import FeatureUnsupported

router = APIRouter(prefix="/api")
_MANAGEMENT: Final = (
    "making and pushing models; the operator adds them in the settings, with 'corral models add' "
    "or with /api/pull"
)


@router.get("/tags", **ollama_operation("List the models (Ollama)", OllamaModelList))
async def list_tags(inference: Models) -> Response:
    """List the models, their other names and adapters, with a tag where the name has none."""
    models = await inference.list_models()
    tags: OllamaModelList = {
        "models": [
            listed_model(each, name) for each in models for name in (each.name, *each.aliases)
        ]
    }
    return json_response(tags)


@router.get("/ps", **ollama_operation("List the loaded models (Ollama)", OllamaRunningModels))
async def list_running(inference: Models) -> Response:
    """List the models that are in memory."""
    models = await inference.list_models()
    ready = model_pb2.Model.STATE_READY
    running: OllamaRunningModels = {
        "models": [
            running_model(each) for each in models if each.state == ready and not each.parent
        ]
    }
    return json_response(running)


@router.post(
    "/show",
    **ollama_operation("Describe a model (Ollama)", OllamaModel, json_body(NamedModelBody)),
)
async def show(inference: Models, fields: JsonObject) -> Response:
    """Describe a model: its sizes, its chat template, and what it can do."""
    model = await inference.get_model(parse_model(fields).model_name)
    return json_response(described_model(model))


@router.get("/version", **ollama_operation("The version of the API (Ollama)", OllamaVersion))
async def show_version(_inference: Models) -> Response:
    """The release of Ollama whose API this is."""
    version: OllamaVersion = {"version": API_VERSION}
    return json_response(version)


@router.post(
    "/copy", **ollama_operation("Copy a model (Ollama)", "text/plain", json_body(CopyModelBody))
)
async def copy(inference: Models, fields: JsonObject) -> Response:
    """Give a model another name, for operators."""
    body = validate(CopyModelBody, fields)
    request = engine_service_pb2.AddModelAliasRequest(
        model=untagged(body.source), alias=untagged(body.destination)
    )
    await inference.call(request, engine_service_pb2.AddModelAliasResponse)
    return Response(media_type="text/plain")


@router.delete(
    "/delete",
    **ollama_operation("Delete a model (Ollama)", "text/plain", json_body(NamedModelBody)),
)
async def delete(inference: Models, fields: JsonObject) -> Response:
    """Remove a model or an alias that was added at run time, for operators."""
    request = engine_service_pb2.RemoveModelRequest(model=parse_model(fields).model_name)
    timeout_s = inference.transfer_timeout_s  # its last requests finish first
    reply = engine_service_pb2.RemoveModelResponse
    await inference.call(request, reply, timeout_s=timeout_s)
    return Response(media_type="text/plain")


@router.post("/create", **ollama_operation("Create a model (Ollama)", ()))
@router.post("/push", **ollama_operation("Push a model (Ollama)", ()))
@router.head("/blobs/{digest}", include_in_schema=False)
@router.post("/blobs/{digest}", include_in_schema=False)
async def manage(_inference: Models) -> Response:
    """Refused: models are made elsewhere."""
    raise FeatureUnsupported(feature=_MANAGEMENT)
