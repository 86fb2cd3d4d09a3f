"""Answers that are sent whole."""

from typing import Final

from corral.inference.v1.inference_service_pb2 import ChatRequest, GenerateRequest

_INTERVAL_MS: Final = 250


def gather_output(request: ChatRequest | GenerateRequest) -> None:
    """Let the tokens of an answer come in few messages. Its last ones come at once."""
    request.options.output.interval_ms = _INTERVAL_MS
