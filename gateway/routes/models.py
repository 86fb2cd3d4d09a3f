"""Routes: /health, /ready and /v1/models."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from dialects.anthropic import objects as anthropic
from dialects.anthropic.errors import AnthropicError
from dialects.openai.chat.models import Model, ModelList, model_list, model_object
from dialects.openai.errors import Error
from gateway.context import Context, Models
from gateway.http.dialect import Dialect, dialect_of
from gateway.http.docs import operation
from gateway.http.errors import json_response
from svc_kit.errors import ModelNotFound

router = APIRouter()
_ERRORS = Error | AnthropicError


class Status(TypedDict):
    status: str


_OK: Status = {"status": "ok"}
_READY: Status = {"status": "ready"}


@router.get("/v1/health", include_in_schema=False)
@router.get("/health", **operation("Liveness", Status))
async def health() -> Response:
    """Succeeds while the process is alive, regardless of other services."""
    return json_response(_OK)


@router.get("/ready", **operation("Readiness", Status))
async def ready(context: Context) -> Response:
    """Returns 503 while the inference service is unreachable, loading or draining."""
    await context.check_ready()
    return json_response(_READY)


@router.get(
    "/v1/models",
    **operation(
        "List the models",
        ModelList | anthropic.AnthropicModelList,
        query=anthropic.PageQuery,
        error=_ERRORS,
    ),
)
async def list_models(inference: Models, request: Request) -> Response:
    """List the models, as Anthropic does for requests with the header anthropic-version."""
    models = await inference.list_models()
    if dialect_of(request.scope) is Dialect.ANTHROPIC:
        query = anthropic.parse_page_query(request.query_params)
        return json_response(anthropic.model_page(models, query))
    return json_response(model_list(models))


@router.get(
    "/v1/models/{model:path}",
    **operation("Retrieve a model", Model | anthropic.AnthropicModel, error=_ERRORS),
)
async def retrieve_model(inference: Models, model: str, request: Request) -> Response:
    """Retrieve a model by name or alias. Names may contain slashes and colons."""
    if not model:  # for the inference service, an empty name is its first model
        raise ModelNotFound(model=model)
    found = await inference.get_model(model)
    is_anthropic = dialect_of(request.scope) is Dialect.ANTHROPIC
    return json_response(anthropic.model_object(found) if is_anthropic else model_object(found))
