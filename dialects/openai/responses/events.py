"""Events of responses as JSON, valid for OpenAI's clients and for Open Responses."""

import re
from typing import Any, Final, Literal, get_type_hints

import orjson
from corral.control.v1 import response_event_pb2 as pb
from typing_extensions import TypedDict

from dialects.openai.errors import error_body
from dialects.openai.responses.event_data import EVENT_DATA, LIFECYCLE, WRITERS
from dialects.openai.shared.composed_shapes import event_shape, one_of
from dialects.openai.shared.objects import Json
from svc_kit.errors import DomainError
from svc_kit.errors.status import ErrorDetails

_SUFFIXED: Final = re.compile(
    "(.+)_(added|done|delta|in_progress|searching|completed|failed|compacting)"
)


def event_object(event: pb.ResponseEvent) -> Json:
    """An event as JSON."""
    kind = event.WhichOneof("event") or ""
    return {
        "type": EVENT_TYPES[kind],
        "sequence_number": event.sequence_number,
        **WRITERS[kind](getattr(event, kind)),
    }


class ResponseErrorEvent(TypedDict):
    """The last event of a failed stream: flat for OpenAI's clients, nested for Open Responses."""

    type: Literal["error"]
    sequence_number: int
    code: str | None
    message: str
    param: str | None
    error: ErrorDetails


def error_event(error: DomainError, last_number: int) -> ResponseErrorEvent:
    """It is not stored, and has the number of the last event before it: a client that continues
    after it misses nothing."""
    nested = error_body(error)["error"]
    return {
        "type": "error",
        "sequence_number": last_number,
        "code": nested["code"],
        "message": nested["message"],
        "param": nested["param"],
        "error": nested,
    }


def event_frame(event: Json) -> bytes:
    """Encode a stored event as SSE. Its id can be passed as `starting_after`."""
    kind, number = event["type"].encode(), event["sequence_number"]
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (number, kind, orjson.dumps(event))


def error_frame(error: DomainError, last_number: int) -> bytes:
    """Encode the last event of a failed stream as SSE, without an id."""
    return b"event: error\ndata: %b\n\n" % orjson.dumps(error_event(error, last_number))


def _event_type(kind: str) -> str:
    if kind == "cancelled":  # OpenAI has no such event; the object has the status "cancelled"
        return "response.incomplete"
    if kind in LIFECYCLE:
        return f"response.{kind}"
    if kind == "output_text_annotation_added":
        return "response.output_text.annotation.added"
    match = _SUFFIXED.fullmatch(kind)
    return f"response.{match[1]}.{match[2]}" if match else f"response.{kind}"


EVENT_TYPES: Final = {
    each.name: _event_type(each.name)
    for each in pb.ResponseEvent.DESCRIPTOR.oneofs_by_name["event"].fields
}
"""OpenAI's event types by field of ResponseEvent."""


_SHAPES: Final = {
    EVENT_TYPES[kind]: event_shape(
        "Response",
        EVENT_TYPES[kind],
        {
            "type": Literal[EVENT_TYPES[kind]],
            "sequence_number": int,
            **get_type_hints(data, include_extras=True),
        },
    )
    for kind, data in EVENT_DATA.items()
}
ResponseEvent: Any = one_of("ResponseEvent", [*_SHAPES.values(), ResponseErrorEvent], "type")
