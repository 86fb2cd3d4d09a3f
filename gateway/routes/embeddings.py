"""Routes: POST /v1/embeddings and /v1/rerank."""

import functools

from fastapi import APIRouter
from starlette.responses import Response

from dialects.openai.chat.embeddings import (
    EmbeddingBody,
    EmbeddingList,
    RerankBody,
    RerankResult,
    embed_request,
    embedding_list,
    parse_embedding,
    parse_rerank,
    ranked_list,
    rerank_request,
)
from dialects.openai.errors import EMBEDDING_PARAMS, RERANK_PARAMS
from gateway.context import Context, Inference, JsonObject
from gateway.http.docs import json_body, operation
from gateway.http.large_bodies import convert

router = APIRouter(prefix="/v1")


@router.post(
    "/embeddings",
    **operation("Create embeddings", EmbeddingList, json_body(EmbeddingBody)),
)
async def create_embedding(inference: Inference, fields: JsonObject, context: Context) -> Response:
    """Create a vector for each input, in the order of the inputs."""
    body = await convert(parse_embedding, fields)
    start = functools.partial(inference.unary, await convert(embed_request, body))
    write = functools.partial(embedding_list, body)
    return context.reply_response(start, write, EMBEDDING_PARAMS)


@router.post(
    "/rerank",
    **operation("Rerank documents", RerankResult, json_body(RerankBody)),
)
async def create_rerank(inference: Inference, fields: JsonObject, context: Context) -> Response:
    """Score the relevance of each document to a query, from 0 to 1."""
    body = await convert(parse_rerank, fields)
    start = functools.partial(inference.unary, await convert(rerank_request, body))
    envelope = context.new_envelope("rerank-", body.model)
    write = functools.partial(ranked_list, envelope.id, body)
    return context.reply_response(start, write, RERANK_PARAMS)
