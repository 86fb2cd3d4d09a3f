"""POST /v1/completions."""

import functools
from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from gateway.auth import Caller
from gateway.docs import answers, json_body
from gateway.parts import Parts
from openai_wire.answers import COMPLETION_ID, completion_params, echoes_of, whole_completion
from openai_wire.errors import openai_names
from openai_wire.events import CompletionChunks
from openai_wire.requests import CompletionBody, parse_completion, prompt_requests


def completions_router(parts: Parts) -> APIRouter:
    """The routes of text completions."""
    router = APIRouter(prefix="/v1")

    @router.post(
        "/completions",
        summary="Continue a text",
        openapi_extra=json_body(CompletionBody),
        responses=answers("A text_completion, or its chunks.", stream=True),
    )
    async def create_completion(
        request: Request, caller: Annotated[Caller, Depends(parts.authentication)]
    ) -> Response:
        """The continuation of one or several prompts, whole or as server-sent events."""
        body = parse_completion(await parts.read_body(request))
        params = completion_params(body)
        requests = prompt_requests(body)
        with openai_names(params):
            echoes = await echoes_of(
                body, lambda tokens: parts.inference.detokenize(body.model, tokens, caller)
            )
        start = functools.partial(parts.inference.generate, requests, caller)
        envelope = parts.new_envelope(COMPLETION_ID, body.model)
        if not body.stream:
            return parts.whole(start, whole_completion(body, envelope, echoes), params)
        chunks = CompletionChunks(
            envelope,
            num_choices=body.n or 1,
            logprobs=body.logprobs is not None,
            include_usage=body.wants_usage,
            echoes=echoes,
        )
        return parts.streamed(start, chunks, params)

    return router
