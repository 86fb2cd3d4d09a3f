"""Routes: POST /v1/messages and /v1/messages/count_tokens."""

import functools

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from dialects.anthropic.errors import AnthropicError, with_anthropic_names
from dialects.anthropic.events import PING, AnthropicEvent, MessageEvents
from dialects.anthropic.message_request import (
    CreateMessageBody,
    PromptBody,
    message_request,
    parse_message,
    parse_token_count,
    token_count_request,
)
from dialects.anthropic.objects import (
    AnthropicMessage,
    AnthropicTokenCount,
    CollectedMessage,
    token_count,
)
from gateway.auth import MAX_LABEL_BYTES
from gateway.context import Context, Inference, JsonObject
from gateway.http.docs import json_body, operation
from gateway.http.large_bodies import convert
from svc_kit.logs import add_call_fields

router = APIRouter(prefix="/v1/messages")
SESSION_HEADERS = ("x-claude-code-session-id", "x-session-affinity")
"""Headers whose value is equal for requests that share a prefix."""


@router.post(
    "",
    **operation(
        "Create a message",
        AnthropicMessage,
        json_body(CreateMessageBody),
        events=AnthropicEvent,
        error=AnthropicError,
    ),
)
async def create_message(
    inference: Inference, fields: JsonObject, request: Request, context: Context
) -> Response:
    """Generate the next message of a conversation. With `stream`, return server-sent events."""
    body = await convert(parse_message, fields)
    add_call_fields(model=body.model[:MAX_LABEL_BYTES])
    headers = request.headers
    affinity = next((headers[name] for name in SESSION_HEADERS if name in headers), "")
    proto, paths = await convert(message_request, body, affinity)
    start = functools.partial(inference.generate, [proto], streams=bool(body.stream))
    rename = functools.partial(with_anthropic_names, paths=paths)
    if not body.stream:
        return context.object_response(start, CollectedMessage(body), rename)
    return context.stream_response(start, MessageEvents(body), rename, PING)


@router.post(
    "/count_tokens",
    **operation(
        "Count the tokens of a message",
        AnthropicTokenCount,
        json_body(PromptBody),
        error=AnthropicError,
    ),
)
async def count_tokens(inference: Inference, fields: JsonObject, context: Context) -> Response:
    """Count the input tokens of a message without generating it."""
    body = await convert(parse_token_count, fields)
    add_call_fields(model=body.model[:MAX_LABEL_BYTES])
    proto, paths = await convert(token_count_request, body)
    start = functools.partial(inference.unary, proto)
    rename = functools.partial(with_anthropic_names, paths=paths)
    return context.reply_response(start, token_count, rename)
