"""Lines of the output files of a batch: in OpenAI's form, or in Anthropic's for /v1/messages.
Answers and errors in OpenAI's lines have the form of the endpoint's API."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from control_svc.batches.lines import EndedLine, error_line, response_line
from control_svc.batches.model import Batch, BatchEndpoint, LineState
from dialects.anthropic import errors as anthropic
from dialects.llama_server import errors as llama_server
from dialects.ollama import errors as ollama
from dialects.openai import errors as openai
from svc_kit.errors import DomainError
from svc_kit.errors.status import http_status

_UNRUN_ERRORS: Final = {
    LineState.EXPIRED: ("batch_expired", "The batch's window closed before this request ran."),
    LineState.CANCELLED: ("batch_cancelled", "The batch was cancelled before this request ran."),
    LineState.ABANDONED: ("batch_failed", "The batch failed before this request ran."),
}
_UNRUN_TYPES: Final = {LineState.EXPIRED: "expired", LineState.CANCELLED: "canceled"}
"""Anthropic's types of the results of lines that did not run."""


_ERROR_BODIES: Final[Mapping[BatchEndpoint, Callable[[DomainError], Mapping[str, Any]]]] = {
    BatchEndpoint.OLLAMA_CHAT: ollama.error_body,
    BatchEndpoint.OLLAMA_GENERATE: ollama.error_body,
    BatchEndpoint.OLLAMA_EMBED: ollama.error_body,
    BatchEndpoint.COMPLETION: llama_server.error_body,
    BatchEndpoint.EMBEDDING: llama_server.error_body,
}
"""Those of other endpoints are OpenAI's."""


def answered_line(batch: Batch, number: int, custom_id: str, request_id: str, body: Any) -> bytes:
    if batch.endpoint is BatchEndpoint.MESSAGES:
        return _message_result(custom_id, "succeeded", message=body)
    return response_line(batch.id, number, custom_id, 200, request_id, body)


def refused_line(
    batch: Batch, number: int, custom_id: str, request_id: str, error: DomainError
) -> bytes:
    """The line of a request that was refused or failed."""
    if batch.endpoint is BatchEndpoint.MESSAGES:
        body = anthropic.error_body(error, request_id)
        return _message_result(custom_id, "errored", error=body)
    error_body = _ERROR_BODIES.get(batch.endpoint, openai.error_body)
    status = http_status(error)
    return response_line(batch.id, number, custom_id, status, request_id, error_body(error))


def unanswered_line(batch: Batch, number: int, request: bytes, code: str, message: str) -> bytes:
    """The line of a request that got no answer."""
    if batch.endpoint is BatchEndpoint.MESSAGES:
        custom_id = orjson.loads(request)["custom_id"]
        body = {"type": "error", "error": {"type": "api_error", "message": message}}
        return _message_result(custom_id, "errored", error=body)
    return error_line(batch.id, number, request, code, message)


def ended_line(batch: Batch, line: EndedLine) -> bytes:
    """The line of a closed batch."""
    if line.text is not None:
        return line.text
    if batch.endpoint is BatchEndpoint.MESSAGES and line.state in _UNRUN_TYPES:
        custom_id = orjson.loads(line.request)["custom_id"]
        return _message_result(custom_id, _UNRUN_TYPES[line.state])
    code, message = _UNRUN_ERRORS[line.state]
    return unanswered_line(batch, line.number, line.request, code, message)


def _message_result(custom_id: str, kind: str, **fields: Any) -> bytes:
    return orjson.dumps({"custom_id": custom_id, "result": {"type": kind, **fields}})
