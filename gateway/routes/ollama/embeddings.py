"""Routes: POST /api/embed and /api/embeddings."""

import functools

from corral.inference.v1 import inference_service_pb2
from fastapi import APIRouter
from starlette.responses import Response

from dialects.ollama.embeddings import (
    EMBED_PARAMS,
    PROMPT_EMBED_PARAMS,
    EmbedAnswer,
    EmbedBody,
    OllamaEmbedding,
    OllamaEmbeddings,
    PromptEmbedBody,
    embed_request,
    parse_embed,
    parse_prompt_embed,
    prompt_embedding,
)
from gateway.context import Context, Inference, JsonObject
from gateway.http.docs import json_body, ollama_operation
from gateway.http.errors import json_response
from gateway.http.large_bodies import convert

router = APIRouter(prefix="/api")


@router.post(
    "/embed",
    **ollama_operation("Create embeddings (Ollama)", OllamaEmbeddings, json_body(EmbedBody)),
)
async def embed(inference: Inference, fields: JsonObject, context: Context) -> Response:
    """Create a vector of length 1 for each text. Texts that are too long are cut."""
    body = await convert(parse_embed, fields)
    answer, proto = EmbedAnswer(body.written_name), await convert(embed_request, body)
    if not proto.inputs:
        await inference.get_model(proto.model)
        return json_response(answer.as_object(inference_service_pb2.EmbedResponse()))
    start = functools.partial(inference.unary, proto)
    return context.reply_response(start, answer.as_object, EMBED_PARAMS)


@router.post(
    "/embeddings",
    **ollama_operation("Create an embedding (Ollama)", OllamaEmbedding, json_body(PromptEmbedBody)),
)
async def embed_prompt(inference: Inference, fields: JsonObject, context: Context) -> Response:
    """Create the vector of one text, which is not normalized."""
    body = await convert(parse_prompt_embed, fields)
    proto = await convert(embed_request, body)
    if not body.prompt:
        await inference.get_model(proto.model)
        return json_response(prompt_embedding(inference_service_pb2.EmbedResponse()))
    start = functools.partial(inference.unary, proto)
    return context.reply_response(start, prompt_embedding, PROMPT_EMBED_PARAMS)
