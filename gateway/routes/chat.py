"""POST /v1/chat/completions."""

import functools
from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from gateway.auth import Caller
from gateway.docs import answers, json_body
from gateway.parts import Parts
from openai_wire.answers import CHAT_ID, chat_params, whole_chat
from openai_wire.events import ChatChunks
from openai_wire.requests import ChatCompletionBody, chat_request, parse_chat


def chat_router(parts: Parts) -> APIRouter:
    """The routes of chat completions."""
    router = APIRouter(prefix="/v1/chat")

    @router.post(
        "/completions",
        summary="Answer a conversation",
        openapi_extra=json_body(ChatCompletionBody),
        responses=answers("A chat.completion, or its chunks.", stream=True),
    )
    async def create_chat_completion(
        request: Request, caller: Annotated[Caller, Depends(parts.authentication)]
    ) -> Response:
        """The model's next turn, whole or, with `stream`, as server-sent events."""
        body = parse_chat(await parts.read_body(request))
        params = chat_params(body)
        start = functools.partial(parts.inference.chat, chat_request(body), caller)
        envelope = parts.new_envelope(CHAT_ID, body.model)
        if not body.stream:
            return parts.whole(start, whole_chat(body, envelope), params)
        chunks = ChatChunks(
            envelope,
            num_choices=body.n or 1,
            logprobs=bool(body.logprobs),
            include_usage=body.wants_usage,
        )
        return parts.streamed(start, chunks, params)

    return router
