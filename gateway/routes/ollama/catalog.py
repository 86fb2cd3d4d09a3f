"""Routes: models (/api/tags, /api/show, /api/ps), versions, and what this server does not do."""

from collections.abc import Callable
from typing import Any, Final

from corral.inference.v1 import inference_service_pb2, model_pb2
from fastapi import APIRouter
from starlette.responses import Response

from dialects.ollama.model_body import NamedModelBody, parse_model
from dialects.ollama.objects import API_VERSION, described_model, listed_model, running_model
from gateway.context import Inference, JsonObject
from gateway.http.docs import json_body, ollama_operation
from gateway.http.errors import json_response
from gateway.rpc import InferenceClient
from svc_kit.errors import FeatureUnsupported, ModelNotFound

router = APIRouter(prefix="/api")
_OPERATORS: Final = "of models over HTTP; the operator adds and removes them in the settings"
_SUCCESS: Final = {"status": "success"}


@router.get("/tags", **ollama_operation("List the models (Ollama)", "Models."))
async def list_tags(inference: Inference) -> Response:
    """List the models and adapters, with the tag `latest` where the name has none."""
    return json_response({"models": await _models(inference, listed_model)})


@router.get("/ps", **ollama_operation("List the loaded models (Ollama)", "Models."))
async def list_running(inference: Inference) -> Response:
    """List the models that are in memory."""

    def running(model: model_pb2.Model) -> dict[str, Any] | None:
        is_loaded = model.state == model_pb2.Model.STATE_READY and not model.parent
        return running_model(model) if is_loaded else None

    return json_response({"models": await _models(inference, running)})


@router.post(
    "/show",
    **ollama_operation("Describe a model (Ollama)", "The model.", json_body(NamedModelBody)),
)
async def show(inference: Inference, fields: JsonObject) -> Response:
    """Describe a model: its sizes, its chat template, and what it can do."""
    return json_response(described_model(await _get_model(inference, fields)))


@router.get("/version", **ollama_operation("The version of the API (Ollama)", "The version."))
async def show_version(_inference: Inference) -> Response:
    """The release of Ollama whose API this is."""
    return json_response({"version": API_VERSION})


@router.post(
    "/pull",
    **ollama_operation("Pull a model (Ollama)", "Success.", json_body(NamedModelBody), lines=True),
)
async def pull(inference: Inference, fields: JsonObject) -> Response:
    """Succeed if the model is there. Nothing is downloaded."""
    try:
        await _get_model(inference, fields)
    except ModelNotFound as error:
        feature = f"the download {_OPERATORS} ('{error.model}' is not there)"
        raise FeatureUnsupported(feature=feature) from None
    return json_response(_SUCCESS)


@router.delete("/delete", **ollama_operation("Delete a model (Ollama)", "Not supported."))
@router.post("/copy", **ollama_operation("Copy a model (Ollama)", "Not supported."))
@router.post("/create", **ollama_operation("Create a model (Ollama)", "Not supported."))
@router.post("/push", **ollama_operation("Push a model (Ollama)", "Not supported."))
@router.head("/blobs/{digest}", include_in_schema=False)
@router.post("/blobs/{digest}", include_in_schema=False)
async def manage(_inference: Inference) -> Response:
    """Refused: models are files of the operator."""
    raise FeatureUnsupported(feature=f"management {_OPERATORS}")


async def _models(
    inference: InferenceClient, write: Callable[[model_pb2.Model], dict[str, Any] | None]
) -> list[dict[str, Any]]:
    request = inference_service_pb2.ListModelsRequest()
    pages = inference.pages(inference.methods.ListModels, request)
    written = [write(model) async for page in pages for model in page.models]
    return [each for each in written if each is not None]


async def _get_model(inference: InferenceClient, fields: dict[str, Any]) -> model_pb2.Model:
    request = inference_service_pb2.GetModelRequest(model=parse_model(fields).model_name)
    return (await inference.call(inference.methods.GetModel, request)).model
