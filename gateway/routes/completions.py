"""Routes: POST /v1/chat/completions and /v1/completions."""

import functools
from collections.abc import Sequence

from corral.inference.v1 import inference_service_pb2
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gateway.context import Context, Inference, JsonObject, provide_control
from gateway.http.docs import json_body, operation
from gateway.stored_files import read_files
from openai_wire.chat.chat_request import ChatCompletionBody, chat_request, parse_chat
from openai_wire.chat.chunks import ChatChunks, CompletionChunks
from openai_wire.chat.completion_request import CompletionBody, parse_completion, prompt_requests
from openai_wire.chat.messages import NO_FILES, referenced_files
from openai_wire.chat.objects import (
    CHAT_ID,
    COMPLETION_ID,
    ChatCompletion,
    TextCompletion,
    chat_params,
    completion_params,
    render_echoes,
)
from openai_wire.errors import openai_names

router = APIRouter(prefix="/v1")


@router.post(
    "/chat/completions",
    **operation(
        "Create a chat completion",
        "A chat.completion, or its chunks.",
        json_body(ChatCompletionBody),
        stream=True,
    ),
)
async def create_chat_completion(
    inference: Inference, fields: JsonObject, request: Request, context: Context
) -> Response:
    """Generate the next message of a conversation. With `stream`, return server-sent events."""
    body = parse_chat(fields)
    params = chat_params(body)
    files = NO_FILES
    if references := list(referenced_files(body.messages)):
        control = await provide_control(request)
        files = await read_files(control, context.active_calls, references)
    requests = [chat_request(body, files)]
    start = functools.partial(inference.generate, inference.methods.Chat, requests)
    envelope = context.new_envelope(CHAT_ID, body.model)
    if not body.stream:
        return context.object_response(start, ChatCompletion(envelope, body), params)
    return context.stream_response(start, ChatChunks(envelope, body), params)


@router.post(
    "/completions",
    **operation(
        "Create a text completion",
        "A text_completion, or its chunks.",
        json_body(CompletionBody),
        stream=True,
    ),
)
async def create_completion(inference: Inference, fields: JsonObject, context: Context) -> Response:
    """Complete one or several prompts. With `stream`, return server-sent events."""
    body = parse_completion(fields)
    params = completion_params(body)
    requests = prompt_requests(body)

    async def detokenize(tokens: Sequence[int]) -> str:
        request = inference_service_pb2.DetokenizeRequest(
            model=body.model, token_ids=tokens, special_tokens=True
        )
        return (await inference.call(inference.methods.Detokenize, request)).text

    with openai_names(params):
        echoes = await render_echoes(body, detokenize)
    start = functools.partial(inference.generate, inference.methods.Generate, requests)
    envelope = context.new_envelope(COMPLETION_ID, body.model)
    if not body.stream:
        return context.object_response(start, TextCompletion(envelope, body, echoes), params)
    return context.stream_response(start, CompletionChunks(envelope, body, echoes), params)
