"""Routes: /health, /ready and /v1/models."""

from typing import Annotated

from corral.inference.v1 import inference_service_pb2
from fastapi import APIRouter, Depends
from starlette.responses import Response

from gateway.auth import Caller
from gateway.context import AppContext
from gateway.http.docs import answers
from gateway.http.errors import json_response
from openai_wire.chat.objects import model_list, model_object
from svc_kit.errors import ModelNotFound


def health_router(context: AppContext) -> APIRouter:
    """The routes of probes. They require no key."""
    router = APIRouter()

    @router.head("/health", include_in_schema=False)
    @router.get("/health", summary="Liveness", responses=answers("The process is alive."))
    async def health() -> Response:
        """Succeeds while the process is alive, regardless of other services."""
        return json_response({"status": "ok"})

    @router.head("/ready", include_in_schema=False)
    @router.get("/ready", summary="Readiness", responses=answers("Requests are served."))
    async def ready() -> Response:
        """Returns 503 while the inference service is unreachable, loading or draining."""
        await context.check_ready()
        return json_response({"status": "ready"})

    return router


def models_router(context: AppContext) -> APIRouter:
    """The routes of models."""
    inference = context.inference
    router = APIRouter(prefix="/v1/models")

    @router.get("", summary="List the models", responses=answers("A list of models."))
    async def list_models(
        caller: Annotated[Caller, Depends(context.authentication)],
    ) -> Response:
        """List the models."""
        request = inference_service_pb2.ListModelsRequest()
        pages = inference.pages(inference.methods.ListModels, request, caller)
        return json_response(model_list([model async for page in pages for model in page.models]))

    @router.get("/{model:path}", summary="Retrieve a model", responses=answers("A model."))
    async def retrieve_model(
        model: str, caller: Annotated[Caller, Depends(context.authentication)]
    ) -> Response:
        """Retrieve a model by name or alias. Names may contain slashes and colons."""
        if not model:  # for the inference service, an empty name is its first model
            raise ModelNotFound(model=model)
        request = inference_service_pb2.GetModelRequest(model=model)
        reply = await inference.call(inference.methods.GetModel, request, caller)
        return json_response(model_object(reply.model))

    return router
