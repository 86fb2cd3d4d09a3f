"""Frames of the WebSocket API of responses. `stream_id` multiplexes a connection."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from dialects.openai.errors import error_body
from dialects.openai.responses.requests import ResponseBody, parse_response
from dialects.shared.parameters import ParameterReport, parameter_report
from svc_kit.errors import (
    DomainError,
    InvalidType,
    MissingField,
    TooLong,
    UnsupportedField,
    UnsupportedValue,
)
from svc_kit.errors.status import http_status

CREATE: Final = "response.create"
MAX_STREAM_ID_CHARACTERS: Final = 64


@dataclass(frozen=True)
class CreateFrame:
    body: ResponseBody
    stream_id: str
    """The client's id of the stream, or ""."""
    generate: bool
    """False: only prefill, and return an id to continue from."""
    size: int
    """Size of the frame in bytes."""
    report: ParameterReport = field(default_factory=ParameterReport)
    """Its ignored parameters, which the first event names."""


def parse_stream_id(fields: Mapping[str, Any]) -> str:
    """The stream of a frame, "" if it has none. Raises InvalidType or TooLong."""
    stream_id = fields.get("stream_id")
    if stream_id is None:
        return ""
    if not isinstance(stream_id, str):
        raise InvalidType(field="stream_id", expected="a string")
    if len(stream_id) > MAX_STREAM_ID_CHARACTERS:
        limit = MAX_STREAM_ID_CHARACTERS
        raise TooLong(field="stream_id", length=len(stream_id), limit=limit, unit="characters")
    return stream_id


def parse_create_frame(
    fields: Mapping[str, Any], size: int, *, strict: bool = False
) -> CreateFrame:
    """Validate a frame of `size` bytes. `strict` refuses parameters that would be ignored.

    Raises DomainErrors with OpenAI's field names.
    """
    kind = fields.get("type")
    if kind is None:
        raise MissingField(field="type")
    if kind != CREATE:
        raise UnsupportedValue(field="type", value=str(kind))
    generate = fields.get("generate")
    if generate not in (None, True, False):
        raise InvalidType(field="generate", expected="a boolean")
    if fields.get("background"):
        raise UnsupportedField(field="background")
    frame_fields = ("type", "stream_id", "generate", "background")
    body = {name: value for name, value in fields.items() if name not in frame_fields}
    body["stream"] = True
    report = ParameterReport(strict=strict)
    parameter_report.set(report)
    parsed, stream_id = parse_response(body), parse_stream_id(fields)
    return CreateFrame(parsed, stream_id, generate is not False, size, report)


def encode_event(event: Mapping[str, Any], stream_id: str) -> str:
    return orjson.dumps({**event, "stream_id": stream_id} if stream_id else event).decode()


def encode_error(error: DomainError, stream_id: str) -> str:
    """Encode an error as a frame. The connection stays open."""
    event = {"type": "error", "status": http_status(error), **error_body(error)}
    return encode_event(event, stream_id)
