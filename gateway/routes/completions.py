"""Routes: POST /v1/chat/completions and /v1/completions."""

import functools
from collections.abc import Sequence
from contextlib import AsyncExitStack

from corral.inference.v1 import inference_service_pb2
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from dialects.openai.chat.chat_request import ChatCompletionBody, chat_request, parse_chat
from dialects.openai.chat.chunks import ChatChunks, CompletionChunks
from dialects.openai.chat.completion_request import (
    CompletionBody,
    parse_completion,
    prompt_requests,
)
from dialects.openai.chat.messages import NO_FILES, StoredFiles, referenced_files
from dialects.openai.chat.objects import (
    CHAT_ID,
    COMPLETION_ID,
    CollectedChat,
    CollectedCompletion,
    chat_params,
    completion_params,
    render_echoes,
)
from dialects.openai.chat.shapes import (
    ChatCompletion,
    ChatCompletionEvent,
    Completion,
    CompletionEvent,
)
from dialects.openai.errors import openai_names
from gateway.context import AppContext, Context, Inference, JsonObject, provide_control
from gateway.http.docs import json_body, operation
from gateway.http.large_bodies import convert
from gateway.rpc import InferenceClient
from gateway.sse import CallResponse

router = APIRouter(prefix="/v1")


@router.post(
    "/chat/completions",
    **operation(
        "Create a chat completion",
        ChatCompletion,
        json_body(ChatCompletionBody),
        events=ChatCompletionEvent,
    ),
)
async def create_chat_completion(
    inference: Inference, fields: JsonObject, request: Request, context: Context
) -> Response:
    """Generate the next message of a conversation. With `stream`, return server-sent events."""
    body = await convert(parse_chat, fields)
    references = list(referenced_files(body.messages))
    if not references:
        return await _chat_response(inference, body, NO_FILES, context)
    async with AsyncExitStack() as stack:
        control = await provide_control(request)
        files = await stack.enter_async_context(context.stored_files.open(control, references))
        response = await _chat_response(inference, body, files, context)
        response.resources = stack.pop_all()  # the files are in memory until its end
        return response


async def _chat_response(
    inference: InferenceClient, body: ChatCompletionBody, files: StoredFiles, context: AppContext
) -> CallResponse:
    params = chat_params(body)
    requests = [await convert(chat_request, body, files)]
    start = functools.partial(inference.generate, requests, streams=bool(body.stream))
    envelope = context.new_envelope(CHAT_ID, body.model)
    if not body.stream:
        return context.object_response(start, CollectedChat(envelope, body), params)
    return context.stream_response(start, ChatChunks(envelope, body), params)


@router.post(
    "/completions",
    **operation(
        "Create a text completion",
        Completion,
        json_body(CompletionBody),
        events=CompletionEvent,
    ),
)
async def create_completion(
    inference: Inference, fields: JsonObject, request: Request, context: Context
) -> Response:
    """Complete one or several prompts. With `stream`, return server-sent events."""
    body = await convert(parse_completion, fields)
    params = completion_params(body)
    requests = await convert(prompt_requests, body)

    async def detokenize(tokens: Sequence[int]) -> str:
        proto = inference_service_pb2.DetokenizeRequest(
            model=body.model, token_ids=tokens, special_tokens=True
        )
        reply = await inference.call(proto, inference_service_pb2.DetokenizeResponse)
        return reply.text

    with openai_names(params):
        rendered = render_echoes(body, detokenize)
        echoes = await context.complete(request, rendered) if body.echo else await rendered
    start = functools.partial(inference.generate, requests, streams=bool(body.stream))
    envelope = context.new_envelope(COMPLETION_ID, body.model)
    if not body.stream:
        return context.object_response(start, CollectedCompletion(envelope, body, echoes), params)
    return context.stream_response(start, CompletionChunks(envelope, body, echoes), params)
