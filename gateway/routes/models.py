"""GET /v1/models and /v1/models/{id}."""

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.responses import Response

from gateway.auth import Caller
from gateway.docs import answers
from gateway.errors import json_response
from gateway.parts import Parts
from openai_wire.objects import model_list, model_object
from svc_kit.errors import ModelNotFound


def models_router(parts: Parts) -> APIRouter:
    """The routes of models."""
    router = APIRouter(prefix="/v1/models")

    @router.get("", summary="List the models", responses=answers("A list of models."))
    async def list_models(
        caller: Annotated[Caller, Depends(parts.authentication)],
    ) -> Response:
        """Every model that a request may name."""
        return json_response(model_list(await parts.inference.list_models(caller)))

    @router.get("/{model:path}", summary="Describe a model", responses=answers("A model."))
    async def retrieve_model(
        model: str, caller: Annotated[Caller, Depends(parts.authentication)]
    ) -> Response:
        """One model, by its name or an alias. Names may contain slashes and colons."""
        if not model:  # to the service an empty name is its first model
            raise ModelNotFound(model=model)
        return json_response(model_object(await parts.inference.get_model(model, caller)))

    return router
