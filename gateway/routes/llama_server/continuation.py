"""Routes: POST /completion, /completions and /infill."""

import functools

from corral.inference.v1 import inference_service_pb2
from fastapi import APIRouter
from starlette.responses import Response

from dialects.llama_server.completion import (
    COMPLETION_PARAMS,
    INFILL_PARAMS,
    ContinuationBody,
    ContinuationOfPromptBody,
    InfillBody,
    continuation_requests,
    infill_request,
    parse_continuation,
    parse_infill,
    prompts_of,
    with_token_prompt,
)
from dialects.llama_server.events import (
    Continuation,
    ContinuationEvent,
    ContinuationList,
    Continuations,
)
from gateway.context import AppContext, Context, Inference, JsonObject
from gateway.http.docs import json_body, llama_server_operation
from gateway.http.large_bodies import convert
from gateway.rpc import InferenceClient

router = APIRouter()
_COMPLETION = llama_server_operation(
    "Continue prompts (llama-server)",
    Continuation | ContinuationList,
    json_body(ContinuationOfPromptBody),
    events=ContinuationEvent,
)


@router.post("/completion", **_COMPLETION)
@router.post("/completions", **_COMPLETION)
async def complete(inference: Inference, fields: JsonObject, context: Context) -> Response:
    """Continue one or several prompts. With `stream`, return server-sent events."""
    tokenize = functools.partial(inference.call, reply=inference_service_pb2.TokenizeResponse)
    body = await with_token_prompt(await convert(parse_continuation, fields), tokenize)
    answers = Continuations(body, prompts_of(body))
    requests = await convert(continuation_requests, body)
    return _respond(inference, context, body, requests, answers, COMPLETION_PARAMS)


@router.post(
    "/infill",
    **llama_server_operation(
        "Infill (llama-server)",
        Continuation | ContinuationList,
        json_body(InfillBody),
        events=ContinuationEvent,
    ),
)
async def infill(inference: Inference, fields: JsonObject, context: Context) -> Response:
    """Generate the text between a prefix and a suffix, for models with tokens for it."""
    body = await convert(parse_infill, fields)
    answers = Continuations(body, [body.input_prefix])
    return _respond(inference, context, body, [infill_request(body)], answers, INFILL_PARAMS)


def _respond(
    inference: InferenceClient,
    context: AppContext,
    body: ContinuationBody,
    requests: list[inference_service_pb2.GenerateRequest],
    answers: Continuations,
    params: dict[str, str],
) -> Response:
    start = functools.partial(inference.generate, requests, streams=bool(body.stream))
    if body.stream:
        return context.stream_response(start, answers, params)
    return context.object_response(start, answers, params)
