"""Errors in llama-server's envelope."""

from typing import Final

from svc_kit.errors import ContextLengthExceeded, DomainError, ModelCannot
from svc_kit.errors.status import http_status

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    501: "not_supported_error",
    503: "unavailable_error",
    504: "server_error",
}


def error_body(error: DomainError) -> dict[str, object]:
    """The error with its code, which is the HTTP status, and its type."""
    status = http_status(error)
    kind = _TYPES.get(status, "invalid_request_error")
    fields: dict[str, object] = {"code": status, "message": error.message, "type": kind}
    if isinstance(error, ModelCannot):
        fields["type"] = "not_supported_error"
    if isinstance(error, ContextLengthExceeded):
        fields |= {
            "type": "exceed_context_size_error",
            "n_prompt_tokens": error.prompt_tokens,
            "n_ctx": error.context_tokens,
        }
    return {"error": fields}
