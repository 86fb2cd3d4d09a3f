"""Routes: POST /api/chat and /api/generate."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from corral.inference.v1 import engine_service_pb2, inference_service_pb2, model_pb2
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from dialects.ollama import events
from dialects.ollama.requests import (
    ChatBody,
    GenerateBody,
    GenerationBody,
    answered_request,
    chat_params,
    chat_request,
    completion_request,
    generate_params,
    load_request,
    parse_chat,
    parse_generate,
    prompt_request,
    render_request,
)
from gateway.calls import Calls
from gateway.context import AppContext, Context, Inference, JsonObject
from gateway.http.docs import json_body, ollama_operation
from gateway.http.errors import json_response
from gateway.http.large_bodies import convert
from gateway.routes.ollama.shortened_chat import ShortenedChat
from gateway.rpc import InferenceClient
from svc_kit.auth.scopes import Scope
from svc_kit.errors import CallerCancelled

router = APIRouter(prefix="/api")


@router.post(
    "/chat",
    **ollama_operation(
        "Chat (Ollama)", events.OllamaChat, json_body(ChatBody), events=events.OllamaChatEvent
    ),
)
async def chat(
    inference: Inference, fields: JsonObject, request: Request, context: Context
) -> Response:
    """Generate the next message of a conversation, in lines of JSON unless `stream` is false."""
    body = await convert(parse_chat, fields)
    answer = events.ChatAnswer(body.written_name)
    if not body.messages:
        return await _load(inference, body, events.NO_MESSAGE, request, context)
    proto = await convert(chat_request, body)
    call: Callable[..., Calls[Any]] = functools.partial(ShortenedChat, inference, proto)
    if body.truncate is False:
        call = functools.partial(inference.generate, [proto])
    return _respond(context, body, call, answer, chat_params(body))


@router.post(
    "/generate",
    **ollama_operation(
        "Generate (Ollama)",
        events.OllamaGeneration,
        json_body(GenerateBody),
        events=events.OllamaGenerationEvent,
    ),
)
async def generate(
    inference: Inference, fields: JsonObject, request: Request, context: Context
) -> Response:
    """Answer a prompt through the chat template, or continue it as it is with `raw`."""
    body = await convert(parse_generate, fields)
    if not body.prompt:
        return await _load(inference, body, events.NO_RESPONSE, request, context)
    if body.is_completion:
        call = functools.partial(inference.generate, [completion_request(body)])
        answer = events.PromptAnswer(body.written_name)
        return _respond(context, body, call, answer, generate_params(body))
    return await _answer_prompt(inference, body, request, context)


async def _answer_prompt(
    inference: InferenceClient, body: GenerateBody, request: Request, context: AppContext
) -> Response:
    proto = await convert(prompt_request, body)
    params, name = generate_params(body), body.written_name
    if body.images:  # the vectors of a picture are no tokens that a client could send back
        call = functools.partial(inference.generate, [proto])
        return _respond(context, body, call, events.PromptAnswer(name), params)
    reply = inference_service_pb2.RenderChatResponse
    rendered = await context.complete(request, inference.call(render_request(proto), reply))
    answered, prompt = answered_request(body, proto, rendered.token_ids)
    call = functools.partial(inference.generate, [answered])
    return _respond(context, body, call, events.PromptAnswer(name, prompt), params)


def _respond(
    context: AppContext,
    body: GenerationBody,
    call: Callable[..., Calls[Any]],
    answer: events.Answer,
    params: Mapping[str, str],
) -> Response:
    start = functools.partial(call, streams=body.streams)
    if body.streams:
        return context.line_response(start, answer, params)
    return context.object_response(start, answer, params)


async def _load(
    inference: InferenceClient,
    body: GenerationBody,
    empty: events.ChatOutput | events.PromptOutput,
    request: Request,
    context: AppContext,
) -> Response:
    """Load a model, or unload it with `keep_alive` 0, which only operators may."""
    model = await inference.get_model(body.model_name)
    if body.unloads:
        await context.identify(request, Scope.ADMIN)
        unload = engine_service_pb2.UnloadModelRequest(model=model.name, wait=False)
        await inference.call(unload, engine_service_pb2.UnloadModelResponse)
    elif model.state != model_pb2.Model.STATE_READY:
        await context.complete(request, _wait_until_loaded(inference, model))
    return json_response(events.loaded(body.written_name, empty, unloads=body.unloads))


async def _wait_until_loaded(inference: InferenceClient, model: model_pb2.Model) -> None:
    if model.model_class == model_pb2.MODEL_CLASS_ENCODER:
        request = inference_service_pb2.EmbedRequest(model=model.name)
        request.inputs.add(text="a")
        timeout_s = inference.transfer_timeout_s
        await inference.call(request, inference_service_pb2.EmbedResponse, timeout_s=timeout_s)
        return
    call = inference.generate([load_request(model.name)])
    try:
        await call.open()
        async for _ in call:
            pass
    finally:
        call.stop(CallerCancelled())
