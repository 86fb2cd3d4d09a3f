"""Routes: POST /v1/chat/completions and /v1/completions."""

import functools
from collections.abc import Sequence
from typing import Annotated

from corral.inference.v1 import inference_service_pb2
from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from gateway.auth import Caller
from gateway.context import AppContext
from gateway.http.docs import answers, json_body
from openai_wire.chat.chat_request import ChatCompletionBody, chat_request, parse_chat
from openai_wire.chat.chunks import ChatChunks, CompletionChunks
from openai_wire.chat.completion_request import CompletionBody, parse_completion, prompt_requests
from openai_wire.chat.objects import (
    CHAT_ID,
    COMPLETION_ID,
    chat_params,
    completion_params,
    new_chat_completion,
    new_text_completion,
    render_echoes,
)
from openai_wire.errors import openai_names


def chat_router(context: AppContext) -> APIRouter:
    """The routes of chat completions."""
    inference = context.inference
    router = APIRouter(prefix="/v1/chat")

    @router.post(
        "/completions",
        summary="Create a chat completion",
        openapi_extra=json_body(ChatCompletionBody),
        responses=answers("A chat.completion, or its chunks.", stream=True),
    )
    async def create_chat_completion(
        request: Request, caller: Annotated[Caller, Depends(context.authentication)]
    ) -> Response:
        """Generate the next message of a conversation. With `stream`, return server-sent events."""
        body = parse_chat(await context.read_body(request))
        params = chat_params(body)
        requests = [chat_request(body)]
        start = functools.partial(inference.generate, inference.methods.Chat, requests, caller)
        envelope = context.new_envelope(CHAT_ID, body.model)
        if not body.stream:
            return context.object_response(start, new_chat_completion(body, envelope), params)
        chunks = ChatChunks(
            envelope,
            num_choices=body.n or 1,
            logprobs=bool(body.logprobs),
            include_usage=body.wants_usage,
        )
        return context.stream_response(start, chunks, params)

    return router


def completions_router(context: AppContext) -> APIRouter:
    """The routes of text completions."""
    inference = context.inference
    router = APIRouter(prefix="/v1")

    @router.post(
        "/completions",
        summary="Create a text completion",
        openapi_extra=json_body(CompletionBody),
        responses=answers("A text_completion, or its chunks.", stream=True),
    )
    async def create_completion(
        request: Request, caller: Annotated[Caller, Depends(context.authentication)]
    ) -> Response:
        """Complete one or several prompts. With `stream`, return server-sent events."""
        body = parse_completion(await context.read_body(request))
        params = completion_params(body)
        requests = prompt_requests(body)

        async def detokenize(tokens: Sequence[int]) -> str:
            request = inference_service_pb2.DetokenizeRequest(
                model=body.model, token_ids=tokens, special_tokens=True
            )
            return (await inference.call(inference.methods.Detokenize, request, caller)).text

        with openai_names(params):
            echoes = await render_echoes(body, detokenize)
        start = functools.partial(inference.generate, inference.methods.Generate, requests, caller)
        envelope = context.new_envelope(COMPLETION_ID, body.model)
        if not body.stream:
            return context.object_response(
                start, new_text_completion(body, envelope, echoes), params
            )
        chunks = CompletionChunks(
            envelope,
            num_choices=body.n or 1,
            logprobs=body.logprobs is not None,
            include_usage=body.wants_usage,
            echoes=echoes,
        )
        return context.stream_response(start, chunks, params)

    return router
