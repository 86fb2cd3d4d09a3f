"""Errors in the envelope of Anthropic's API, with its types and the names of its fields."""

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from typing_extensions import TypedDict

from dialects.shared.errors import field_steps, with_field
from svc_kit.errors import ContextLengthExceeded, DomainError
from svc_kit.errors.status import http_status

MessagePaths = Sequence[Sequence[str]]
"""For each message of a converted conversation its path in the body, and those of its parts."""
AnthropicErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "conflict_error",
    "request_too_large",
    "rate_limit_error",
    "overloaded_error",
    "timeout_error",
    "api_error",
]
_TYPES: Final[Mapping[int, AnthropicErrorType]] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""`error.type` by HTTP status; of others the first digit decides."""
_NAMES: Final = {
    "prompt": "messages",
    "text": "messages",
    "token_ids": "messages",
    "conversation": "messages",
    "constraint": "output_config.format.schema",
    "kwargs_json": "chat_template_kwargs",
    "stop": "stop_sequences",
    "enable_thinking": "thinking",
    "reasoning_effort": "output_config.effort",
    "thinking_budget_tokens": "thinking.budget_tokens",
    "page_size": "limit",
    "after": "after_id",
    "before": "before_id",
    "request_id": "Idempotency-Key",
}
_TOOL: Final = re.compile(r"^(tools\[\d+\]\.)(?:function\.)?(\w+)(.*)$")
_TOOL_FIELDS: Final = {"parameters": "input_schema", "parameters_json": "input_schema"}
_MESSAGE: Final = re.compile(r"^messages\[(\d+)\](?:\.(?:content|parts)\[(\d+)\])?(.*)$")
_MEDIA: Final = re.compile(r"^\.(?:image|document)\b")


class AnthropicErrorDetails(TypedDict):
    type: AnthropicErrorType
    message: str


class AnthropicError(TypedDict):
    """An error in Anthropic's envelope."""

    type: Literal["error"]
    error: AnthropicErrorDetails
    request_id: str


def error_details(error: DomainError) -> AnthropicErrorDetails:
    """The kind of an error, and its message in Anthropic's words."""
    return {"type": _type(error), "message": _message(error)}


def error_body(error: DomainError, request_id: str) -> AnthropicError:
    """The error in Anthropic's envelope."""
    return {"type": "error", "error": error_details(error), "request_id": request_id}


def _type(error: DomainError) -> AnthropicErrorType:
    status = http_status(error)
    return _TYPES.get(status) or ("invalid_request_error" if status < 500 else "api_error")


def _message(error: DomainError) -> str:
    """The message. Claude Code compacts a conversation because of the words and the
    numbers about a prompt that is too long."""
    if isinstance(error, ContextLengthExceeded):
        tokens, maximum = error.prompt_tokens, error.context_tokens
        return f"prompt is too long: {tokens} tokens > {maximum} maximum"
    return error.message


def with_anthropic_names(error: DomainError, paths: MessagePaths = ()) -> DomainError:
    """The same error with the caller's name of the field."""
    if error.field is None:
        return error
    return with_field(error, anthropic_name(error.field, paths))


def anthropic_name(field: str, paths: MessagePaths = ()) -> str:
    """The caller's name of a proto field, given with or without its enclosing messages."""
    name = ".".join(field_steps(field))
    if message := _MESSAGE.match(name):
        return _message_name(message, paths)
    if tool := _TOOL.match(name):
        return tool[1] + _TOOL_FIELDS.get(tool[2], tool[2]) + tool[3]
    head, bracket, rest = name.partition("[")
    if head.startswith("constraint"):
        return _NAMES["constraint"]
    return _NAMES.get(head, head) + bracket + rest


def _message_name(match: re.Match[str], paths: MessagePaths) -> str:
    """A message or a part, which can have another place in the body: `system` is a message, and
    results of tools are messages of their own."""
    index, part, rest = int(match[1]), match[2], match[3]
    if index >= len(paths):
        return match[0]
    message, *parts = paths[index]
    if part is None:
        return message if message == "system" else message + rest
    place = parts[int(part)] if int(part) < len(parts) else message
    return place + _MEDIA.sub(".source", rest)
