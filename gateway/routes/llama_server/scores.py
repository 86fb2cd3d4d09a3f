"""Routes: /embedding and /embeddings, /rerank and its other paths, /score and /v1/score."""

import functools
import time

from corral.inference.v1.inference_service_pb2 import RerankResponse
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from dialects.llama_server.errors import LlamaServerError
from dialects.llama_server.scores import (
    EMBEDDING_PARAMS,
    SCORE_PARAMS,
    TEI_PARAMS,
    ContentEmbeddingBody,
    LlamaServerEmbeddings,
    ScoreBody,
    Scores,
    TextRankBody,
    TextRanks,
    embed_request,
    embedding_list,
    parse_embedding,
    parse_score,
    parse_text_rank,
    score_list,
    score_pairs,
    score_requests,
    text_rank_request,
    text_ranks,
)
from dialects.openai.chat.embeddings import RerankBody, RerankResult
from dialects.openai.errors import Error, openai_names
from gateway.context import Context, Inference, JsonObject
from gateway.http.docs import json_body, llama_server_operation, operation
from gateway.http.large_bodies import convert
from gateway.http.rate_limits import set_rate_limits
from gateway.routes.embeddings import create_rerank
from svc_kit.logs import current_request_id

router = APIRouter()
_EMBEDDING = llama_server_operation(
    "Create embeddings (llama-server)", LlamaServerEmbeddings, json_body(ContentEmbeddingBody)
)
_RERANK = operation(
    "Rerank documents (llama-server, TEI)",
    RerankResult | TextRanks,
    json_body(RerankBody, TextRankBody),
    error=LlamaServerError | Error,
)
_SCORE = operation("Score pairs of texts (vLLM)", Scores, json_body(ScoreBody))


@router.post("/embedding", **_EMBEDDING)
@router.post("/embeddings", **_EMBEDDING)
async def embed(inference: Inference, fields: JsonObject, context: Context) -> Response:
    """Create a vector for each input, in the order of the inputs."""
    body = await convert(parse_embedding, fields)
    proto = await convert(embed_request, body)
    start = functools.partial(inference.unary, proto)
    return context.reply_response(start, embedding_list, EMBEDDING_PARAMS)


@router.post("/rerank", **_RERANK)
@router.post("/reranking", **_RERANK)
@router.post("/v1/reranking", **_RERANK)
@router.post("/v2/rerank", **_RERANK)
async def rerank(inference: Inference, fields: JsonObject, context: Context) -> Response:
    """Score documents against a query: in TEI's form with `texts`, else as /v1/rerank."""
    if "texts" not in fields:
        return await create_rerank(inference, {"model": ""} | fields, context)
    body = await convert(parse_text_rank, fields)
    proto = await convert(text_rank_request, body)
    start = functools.partial(inference.unary, proto)
    return context.reply_response(start, functools.partial(text_ranks, body), TEI_PARAMS)


@router.post("/score", **_SCORE)
@router.post("/v1/score", **_SCORE)
async def score(
    inference: Inference, fields: JsonObject, request: Request, context: Context
) -> Response:
    """Score pairs of texts from 0 to 1: one text with many, or many with as many."""
    body = await convert(parse_score, fields)
    pairs = await convert(score_pairs, body)
    requests = await convert(score_requests, body.model or "", pairs)
    object_id = f"score-{current_request_id().removeprefix('req_')}"

    async def scores() -> Scores:
        timeout_s = inference.transfer_timeout_s
        with openai_names(SCORE_PARAMS):
            replies = [
                (indexes, await inference.call(proto, RerankResponse, timeout_s=timeout_s))
                for indexes, proto in requests
            ]
        for _, reply in replies:
            set_rate_limits(request.scope, reply)
        return score_list(object_id, int(time.time()), replies)

    return context.composed_response(scores, is_queued=True)
