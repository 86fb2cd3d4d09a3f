"""Events of responses as JSON, valid for OpenAI's clients and for Open Responses."""

import re
from collections.abc import Callable
from typing import Any, Final

import orjson
from corral.control.v1 import response_event_pb2 as pb

from dialects.openai.errors import error_body
from dialects.openai.responses.namespaces import split_name
from dialects.openai.responses.objects import response_object
from dialects.openai.responses.output_items import (
    citation_object,
    item_object,
    logprob_objects,
    part_object,
)
from dialects.openai.shared.objects import Json
from svc_kit.errors import DomainError

_SUFFIXED: Final = re.compile(
    "(.+)_(added|done|delta|in_progress|searching|completed|failed|compacting)"
)
_LIFECYCLE: Final = frozenset(
    {"created", "queued", "in_progress", "completed", "incomplete", "failed", "cancelled"}
)


def event_object(event: pb.ResponseEvent) -> Json:
    """An event as JSON."""
    kind = event.WhichOneof("event") or ""
    return {
        "type": EVENT_TYPES[kind],
        "sequence_number": event.sequence_number,
        **_WRITERS[kind](getattr(event, kind)),
    }


def error_event(error: DomainError, last_number: int) -> Json:
    """The last event of a failed stream: flat for OpenAI's clients, nested for Open Responses.

    It is not stored, and has the number of the last event before it: a client that continues after
    it misses nothing.
    """
    nested: Any = error_body(error)["error"]
    flat = {name: nested[name] for name in ("code", "message", "param")}
    return {"type": "error", "sequence_number": last_number, **flat, "error": nested}


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
    if kind in _LIFECYCLE:
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


def _response(response: Any) -> Json:
    return {"response": response_object(response)}


def _created(response: Any) -> Json:
    """A response that waits only in the background is in progress for OpenAI's clients."""
    written = _response(response)
    if not response.settings.background:
        written["response"]["status"] = "in_progress"
    return written


def _item(event: pb.ResponseItemEvent) -> Json:
    return {"output_index": event.output_index, "item": item_object(event.item)}


def _part(event: pb.ResponsePartEvent) -> Json:
    return _item_position(event) | {
        "content_index": event.part_index,
        "part": part_object(event.part, is_output=True),
    }


def _annotation(event: pb.ResponseAnnotationEvent) -> Json:
    return _item_position(event) | {
        "content_index": event.part_index,
        "annotation_index": event.annotation_index,
        "annotation": citation_object(event.citation),
    }


def _text(name: str) -> Callable[[pb.ResponseTextEvent], Json]:
    """Output text in the field `name`, with the log probabilities of its tokens."""
    return lambda event: (
        _item_position(event)
        | {
            "content_index": event.part_index,
            name: event.text,
            "logprobs": logprob_objects(event.logprobs),
        }
    )


def _refusal(name: str) -> Callable[[pb.ResponseTextEvent], Json]:
    return lambda event: (
        _item_position(event) | {"content_index": event.part_index, name: event.text}
    )


def _summary(name: str) -> Callable[[pb.ResponseTextEvent], Json]:
    return lambda event: (
        _item_position(event) | {"summary_index": event.part_index, name: event.text}
    )


def _summary_part(event: pb.ResponseTextEvent) -> Json:
    part = {"type": "summary_text", "text": event.text}
    return _item_position(event) | {"summary_index": event.part_index, "part": part}


def _call_delta(event: pb.ResponseCallEvent) -> Json:
    return _item_position(event) | {"delta": event.text}


def _arguments(event: pb.ResponseCallEvent) -> Json:
    return _item_position(event) | {"arguments": event.text, **split_name(event.name)}


def _input(event: pb.ResponseCallEvent) -> Json:
    return _item_position(event) | {"input": event.text}


def _item_position(event: Any) -> Json:
    return {"item_id": event.item_id, "output_index": event.output_index}


_WRITERS: Final[dict[str, Callable[[Any], Json]]] = dict.fromkeys(_LIFECYCLE, _response) | {
    "created": _created,
    "output_item_added": _item,
    "output_item_done": _item,
    "content_part_added": _part,
    "content_part_done": _part,
    "output_text_delta": _text("delta"),
    "output_text_done": _text("text"),
    "output_text_annotation_added": _annotation,
    "refusal_delta": _refusal("delta"),
    "refusal_done": _refusal("refusal"),
    "reasoning_summary_part_added": _summary_part,
    "reasoning_summary_part_done": _summary_part,
    "reasoning_summary_text_delta": _summary("delta"),
    "reasoning_summary_text_done": _summary("text"),
    "function_call_arguments_delta": _call_delta,
    "function_call_arguments_done": _arguments,
    "custom_tool_call_input_delta": _call_delta,
    "custom_tool_call_input_done": _input,
    "file_search_call_in_progress": _item_position,
    "file_search_call_searching": _item_position,
    "file_search_call_completed": _item_position,
    "mcp_list_tools_in_progress": _item_position,
    "mcp_list_tools_completed": _item_position,
    "mcp_list_tools_failed": _item_position,
    "mcp_call_in_progress": _item_position,
    "mcp_call_arguments_delta": _call_delta,
    "mcp_call_arguments_done": _arguments,
    "mcp_call_completed": _item_position,
    "mcp_call_failed": _item_position,
    "compaction_compacting": _item_position,
}
"""Converters by field of ResponseEvent."""
