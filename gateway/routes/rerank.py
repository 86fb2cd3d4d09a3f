"""POST /v1/rerank."""

import functools
from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from gateway.auth import Caller
from gateway.docs import answers, json_body
from gateway.parts import Parts
from openai_wire.errors import RERANK_PARAMS
from openai_wire.requests import RerankBody, parse_rerank, rerank_request
from openai_wire.requests.reranking import documents_of
from openai_wire.vectors import RankedList

ID_PREFIX = "rerank-"


def rerank_router(parts: Parts) -> APIRouter:
    """The routes of ranking."""
    router = APIRouter(prefix="/v1")

    @router.post(
        "/rerank",
        summary="Order documents by a query",
        openapi_extra=json_body(RerankBody),
        responses=answers("The documents' scores, best first."),
    )
    async def create_rerank(
        request: Request, caller: Annotated[Caller, Depends(parts.authentication)]
    ) -> Response:
        """How relevant each document is to the query, from 0 to 1."""
        body = parse_rerank(await parts.read_body(request))
        start = functools.partial(parts.inference.rerank, rerank_request(body), caller)
        envelope = parts.new_envelope(ID_PREFIX, body.model)
        documents = documents_of(body) if body.return_documents else None
        return parts.whole(start, RankedList(envelope.id, body.model, documents), RERANK_PARAMS)

    return router
