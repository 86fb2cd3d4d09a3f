"""Frames of the WebSocket of responses."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from openai_wire.errors import error_body
from openai_wire.responses.requests import ResponseBody, parse_response
from openai_wire.shared.json_body import parse_object
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
MAX_LANE_CHARACTERS: Final = 64
_OF_HTTP: Final = ("stream", "stream_options")
"""Fields that libraries leave in: here everything is streamed."""


@dataclass(frozen=True)
class CreateFrame:
    """A client has a response made."""

    body: ResponseBody
    lane: str
    """The client's name of the lane; empty: the one without a name."""
    generates: bool
    """False: only prefill, and return an id to continue from."""
    size: int
    """Characters of its text."""


def lane_of(fields: Mapping[str, Any]) -> str:
    """The lane that a frame is for. Raises InvalidType or TooLong."""
    lane = fields.get("stream_id")
    if lane is None:
        return ""
    if not isinstance(lane, str):
        raise InvalidType(field="stream_id", expected="a string")
    if len(lane) > MAX_LANE_CHARACTERS:
        limit = MAX_LANE_CHARACTERS
        raise TooLong(field="stream_id", length=len(lane), limit=limit, unit="characters")
    return lane


def frame_fields(text: str) -> dict[str, Any]:
    """The JSON of a frame. Raises InvalidJson."""
    return parse_object(text.encode())


def create_frame(fields: Mapping[str, Any], size: int) -> CreateFrame:
    """What a client asks for in so many characters. Raises DomainErrors with OpenAI's field
    names."""
    kind = fields.get("type")
    if kind is None:
        raise MissingField(field="type")
    if kind != CREATE:
        raise UnsupportedValue(field="type", value=str(kind))
    generates = fields.get("generate")
    if generates not in (None, True, False):
        raise InvalidType(field="generate", expected="a boolean")
    if fields.get("background"):
        raise UnsupportedField(field="background")
    own = ("type", "stream_id", "generate", "background", *_OF_HTTP)
    body = {name: value for name, value in fields.items() if name not in own}
    return CreateFrame(parse_response(body), lane_of(fields), generates is not False, size)


def event_text(event: Mapping[str, Any], lane: str) -> str:
    """An event as a frame."""
    return orjson.dumps(_in_lane(event, lane)).decode()


def error_text(error: DomainError, lane: str) -> str:
    """An error as a frame; the connection stays open."""
    body = {"type": "error", "status": http_status(error), **error_body(error)}
    return orjson.dumps(_in_lane(body, lane)).decode()


def _in_lane(event: Mapping[str, Any], lane: str) -> dict[str, Any]:
    return {**event, "stream_id": lane} if lane else dict(event)
