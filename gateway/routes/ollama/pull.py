"""Route: POST /api/pull."""

import functools
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Final

from corral.inference.v1 import engine_service_pb2 as pb
from corral.inference.v1 import model_pb2
from fastapi import APIRouter
from starlette.responses import Response

from dialects.ollama.model_body import NamedModelBody, parse_model
from dialects.ollama.pull import (
    PULL_PARAMS,
    SUCCESS,
    OllamaPull,
    OllamaPullEvent,
    PullProgress,
    add_request,
)
from gateway.context import Context, JsonObject, Models
from gateway.http.docs import json_body, ollama_operation
from gateway.http.errors import json_response
from gateway.rpc import InferenceClient
from gateway.sse import LINE_HEADERS
from svc_kit.errors import DomainError, ModelLoadFailed, ModelLoading, ModelNotFound

router = APIRouter(prefix="/api")
_State = model_pb2.Model.State
_PENDING: Final = (_State.STATE_DOWNLOADING, _State.STATE_VERIFYING)


class PullCalls:
    """Adds a model and watches it until its files are here (`Calls`)."""

    def __init__(self, inference: InferenceClient, request: pb.AddModelRequest) -> None:
        self._inference = inference
        self._call: Any = inference.unary(request)
        self._stopped: DomainError | None = None

    async def open(self) -> None:
        """Wait until the model is added. Raises the DomainErrors of AddModel."""
        await self._call.open()
        if self._stopped is not None:
            raise self._stopped
        request = pb.WatchModelsRequest(model=self._call.first.model.name)
        self._call = self._inference.watch(request)
        await self._call.open()

    async def __aiter__(self) -> AsyncIterator[tuple[int, pb.WatchModelsResponse]]:
        """Yield the states of the model. Raises `ModelLoadFailed` if it cannot be downloaded, and
        `ModelNotFound` if it is removed meanwhile."""
        async with aclosing(aiter(self._call)) as responses:
            async for number, response in responses:
                model = response.model
                if response.removed:
                    raise ModelNotFound(model=response.removed)
                if model.state == _State.STATE_FAILED:
                    raise ModelLoadFailed(model=model.name, problem=model.problem)
                yield number, response
                if model.state not in _PENDING:
                    return

    @property
    def first(self) -> pb.WatchModelsResponse | None:
        """As `Calls`."""
        first: pb.WatchModelsResponse | None = self._call.first
        return first

    def stop(self, error: DomainError) -> None:
        """As `Calls`. The download continues."""
        self._stopped = error
        self._call.stop(error)


@router.post(
    "/pull",
    **ollama_operation(
        "Pull a model (Ollama)", OllamaPull, json_body(NamedModelBody), events=OllamaPullEvent
    ),
)
async def pull(inference: Models, fields: JsonObject, context: Context) -> Response:
    """Download a model of the Hugging Face Hub, for operators; succeed at once if it is there."""
    body, progress = parse_model(fields), PullProgress()
    streams = body.stream is not False
    if await _is_there(inference, body.model_name):
        if not streams:
            return json_response(SUCCESS)
        lines = [*progress.frames(pb.WatchModelsResponse()), *progress.final_frames()]
        return Response(b"".join(lines), headers={k.decode(): v.decode() for k, v in LINE_HEADERS})
    start = functools.partial(PullCalls, inference, add_request(body))
    if streams:
        return context.line_response(start, progress, PULL_PARAMS)
    return context.object_response(start, progress, PULL_PARAMS)


async def _is_there(inference: InferenceClient, name: str) -> bool:
    try:
        await inference.get_model(name)
    except (ModelLoadFailed, ModelLoading, ModelNotFound):  # also while it is downloaded
        return False
    return True
