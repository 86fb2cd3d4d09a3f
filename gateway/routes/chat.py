"""POST /v1/chat/completions."""

import functools
from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from gateway.auth import Caller
from gateway.docs import answers, json_body
from gateway.parts import Parts
from openai_wire.errors import CHAT_PARAMS
from openai_wire.events import ChatChunks
from openai_wire.objects import ChatCompletion
from openai_wire.requests import ChatCompletionBody, chat_request, parse_chat

ID_PREFIX = "chatcmpl-"


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
        params = {**CHAT_PARAMS, "constraint": body.constraint_field}
        start = functools.partial(parts.inference.chat, chat_request(body), caller)
        envelope = parts.new_envelope(ID_PREFIX, body.model)
        num_choices, logprobs = body.n or 1, bool(body.logprobs)
        if not body.stream:
            whole = ChatCompletion(envelope, num_choices=num_choices, logprobs=logprobs)
            return parts.whole(start, whole, params)
        chunks = ChatChunks(
            envelope,
            num_choices=num_choices,
            logprobs=logprobs,
            include_usage=body.wants_usage,
        )
        return parts.streamed(start, chunks, params)

    return router
