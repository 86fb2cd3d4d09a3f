"""Routes: POST /v1/embeddings and /v1/rerank."""

import functools

from fastapi import APIRouter
from starlette.responses import Response

from dialects.openai.chat import embeddings
from dialects.openai.errors import EMBEDDING_PARAMS, RERANK_PARAMS
from gateway.context import Context, Inference, JsonObject
from gateway.http.docs import json_body, operation
from gateway.http.large_bodies import convert

router = APIRouter(prefix="/v1")


@router.post(
    "/embeddings",
    **operation("Create embeddings", embeddings.EmbeddingList, json_body(embeddings.EmbeddingBody)),
)
async def create_embedding(inference: Inference, fields: JsonObject, context: Context) -> Response:
    """Create a vector for each input, in the order of the inputs."""
    body = await convert(embeddings.parse_embedding, fields)
    start = functools.partial(inference.unary, await convert(embeddings.embed_request, body))
    write = functools.partial(embeddings.embedding_list, body)
    return context.reply_response(start, write, EMBEDDING_PARAMS)


@router.post(
    "/rerank",
    **operation("Rerank documents", embeddings.RerankResult, json_body(embeddings.RerankBody)),
)
async def create_rerank(inference: Inference, fields: JsonObject, context: Context) -> Response:
    """Score the relevance of each document to a query, from 0 to 1."""
    body = await convert(embeddings.parse_rerank, fields)
    start = functools.partial(inference.unary, await convert(embeddings.rerank_request, body))
    envelope = context.new_envelope("rerank-", body.model)
    write = functools.partial(embeddings.ranked_list, envelope.id, body)
    return context.reply_response(start, write, RERANK_PARAMS)
