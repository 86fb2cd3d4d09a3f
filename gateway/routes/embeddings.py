"""Routes: POST /v1/embeddings and /v1/rerank."""

import functools
from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from gateway.auth import Caller
from gateway.context import AppContext
from gateway.http.docs import answers, json_body
from openai_wire.chat.embeddings import (
    EmbeddingBody,
    RankedList,
    RerankBody,
    documents_of,
    embed_request,
    parse_embedding,
    parse_rerank,
    rerank_request,
)
from openai_wire.chat.objects import embedding_list
from openai_wire.errors import EMBEDDING_PARAMS, RERANK_PARAMS


def embeddings_router(context: AppContext) -> APIRouter:
    """The routes of embeddings."""
    router = APIRouter(prefix="/v1")

    @router.post(
        "/embeddings",
        summary="Turn texts into vectors",
        openapi_extra=json_body(EmbeddingBody),
        responses=answers("A list of embeddings."),
    )
    async def create_embedding(
        request: Request, caller: Annotated[Caller, Depends(context.authentication)]
    ) -> Response:
        """A vector for each input, in their order."""
        body = parse_embedding(await context.read_body(request))
        start = functools.partial(context.inference.embed, embed_request(body), caller)
        return context.whole(start, embedding_list(body), EMBEDDING_PARAMS)

    return router


ID_PREFIX = "rerank-"


def rerank_router(context: AppContext) -> APIRouter:
    """The routes of ranking."""
    router = APIRouter(prefix="/v1")

    @router.post(
        "/rerank",
        summary="Order documents by a query",
        openapi_extra=json_body(RerankBody),
        responses=answers("The documents' scores, best first."),
    )
    async def create_rerank(
        request: Request, caller: Annotated[Caller, Depends(context.authentication)]
    ) -> Response:
        """How relevant each document is to the query, from 0 to 1."""
        body = parse_rerank(await context.read_body(request))
        start = functools.partial(context.inference.rerank, rerank_request(body), caller)
        envelope = context.new_envelope(ID_PREFIX, body.model)
        documents = documents_of(body) if body.return_documents else None
        return context.whole(start, RankedList(envelope.id, body.model, documents), RERANK_PARAMS)

    return router
