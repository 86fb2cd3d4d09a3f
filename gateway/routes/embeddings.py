"""POST /v1/embeddings."""

import functools
from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from gateway.auth import Caller
from gateway.docs import answers, json_body
from gateway.parts import Parts
from openai_wire.answers import embedding_list
from openai_wire.errors import EMBEDDING_PARAMS
from openai_wire.requests import EmbeddingBody, embed_request, parse_embedding


def embeddings_router(parts: Parts) -> APIRouter:
    """The routes of embeddings."""
    router = APIRouter(prefix="/v1")

    @router.post(
        "/embeddings",
        summary="Turn texts into vectors",
        openapi_extra=json_body(EmbeddingBody),
        responses=answers("A list of embeddings."),
    )
    async def create_embedding(
        request: Request, caller: Annotated[Caller, Depends(parts.authentication)]
    ) -> Response:
        """A vector for each input, in their order."""
        body = parse_embedding(await parts.read_body(request))
        start = functools.partial(parts.inference.embed, embed_request(body), caller)
        return parts.whole(start, embedding_list(body), EMBEDDING_PARAMS)

    return router
