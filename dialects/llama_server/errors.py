"""Errors in llama-server's envelope."""

from collections.abc import Mapping
from typing import Final, Literal

from typing_extensions import TypedDict

from svc_kit.errors import ContextLengthExceeded, DomainError, ModelCannot
from svc_kit.errors.status import http_status

LlamaServerErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "rate_limit_error",
    "server_error",
    "not_supported_error",
    "unavailable_error",
]
_TYPES: Final[Mapping[int, LlamaServerErrorType]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    501: "not_supported_error",
    503: "unavailable_error",
    504: "server_error",
}


class LlamaServerErrorDetails(TypedDict):
    """An error with its HTTP status."""

    code: int
    message: str
    type: LlamaServerErrorType


class ContextSizeError(TypedDict):
    """The error of a prompt that is too long."""

    code: int
    message: str
    type: Literal["exceed_context_size_error"]
    n_prompt_tokens: int
    n_ctx: int


class LlamaServerError(TypedDict):
    """An error in llama-server's envelope."""

    error: LlamaServerErrorDetails | ContextSizeError


def error_body(error: DomainError) -> LlamaServerError:
    """The error in llama-server's envelope."""
    status = http_status(error)
    if isinstance(error, ContextLengthExceeded):
        return {
            "error": {
                "code": status,
                "message": error.message,
                "type": "exceed_context_size_error",
                "n_prompt_tokens": error.prompt_tokens,
                "n_ctx": error.context_tokens,
            }
        }
    kind = _TYPES.get(status, "invalid_request_error")
    if isinstance(error, ModelCannot):
        kind = "not_supported_error"
    return {"error": {"code": status, "message": error.message, "type": kind}}
