"""Errors in Ollama's envelope: an object with one text."""

from typing import Final

from typing_extensions import TypedDict

from svc_kit.errors import DomainError, ModelCannot, ModelNotFound
from svc_kit.errors.status import http_status

_CAPABILITIES: Final = {"infill": "insert", "embed": "embeddings"}
"""Ollama's names of operations."""


class OllamaError(TypedDict):
    """An error in Ollama's envelope."""

    error: str


def error_body(error: DomainError) -> OllamaError:
    """The error as Ollama's clients expect it."""
    return {"error": _text(error)}


def _text(error: DomainError) -> str:
    match error:
        case ModelNotFound():
            return f"model '{error.model}' not found"
        case ModelCannot():
            capability = _CAPABILITIES.get(error.operation, error.operation)
            return f'"{error.model}" does not support {capability}'
    return "unauthorized" if http_status(error) == 401 else error.message
