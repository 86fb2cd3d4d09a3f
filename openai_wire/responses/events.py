"""Events of responses as JSON, valid for OpenAI's clients and for Open Responses."""

import re
from collections.abc import Callable
from typing import Any, Final

import orjson
from corral.control.v1 import response_event_pb2 as pb

from openai_wire.errors import error_body
from openai_wire.responses.objects import response_object
from openai_wire.responses.output_items import (
    citation_object,
    item_object,
    logprob_objects,
    part_object,
)
from svc_kit.errors import DomainError

Json = dict[str, Any]

DONE: Final = b"data: [DONE]\n\n"
"""Ends a stream: Open Responses asks for it, and OpenAI's clients pass over it."""
_STEPS: Final = re.compile(
    "(.+)_(added|done|delta|in_progress|searching|completed|failed|compacting)"
)
_LIFECYCLE: Final = frozenset(
    {"created", "queued", "in_progress", "completed", "incomplete", "failed", "cancelled"}
)
FINAL_TYPES: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})
"""The types of which one ends every response."""


def event_object(event: pb.ResponseEvent) -> Json:
    """One event."""
    kind = event.WhichOneof("event") or ""
    return {
        "type": EVENT_TYPES[kind],
        "sequence_number": event.sequence_number,
        **_WRITERS[kind](getattr(event, kind)),
    }


def error_event(error: DomainError, sequence_number: int) -> Json:
    """The end of a stream that broke: flat for OpenAI's clients, nested for Open Responses'."""
    nested: Any = error_body(error)["error"]
    flat = {name: nested[name] for name in ("code", "message", "param")}
    return {"type": "error", "sequence_number": sequence_number, **flat, "error": nested}


def event_frame(event: Json) -> bytes:
    """An event as one server-sent event; its id is what `starting_after` takes."""
    kind, number = event["type"].encode(), event["sequence_number"]
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (number, kind, orjson.dumps(event))


def _type_of(kind: str) -> str:
    if kind == "cancelled":  # OpenAI has no event of this name; the object's status says it
        return "response.incomplete"
    if kind in _LIFECYCLE:
        return f"response.{kind}"
    if kind == "output_text_annotation_added":
        return "response.output_text.annotation.added"
    step = _STEPS.fullmatch(kind)
    return f"response.{step[1]}.{step[2]}" if step else f"response.{kind}"


EVENT_TYPES: Final = {
    each.name: _type_of(each.name)
    for each in pb.ResponseEvent.DESCRIPTOR.oneofs_by_name["event"].fields
}
"""By the field of the message."""


def _response(response: Any) -> Json:
    return {"response": response_object(response)}


def _item(event: pb.ResponseItemEvent) -> Json:
    return {"output_index": event.output_index, "item": item_object(event.item)}


def _part(event: pb.ResponsePartEvent) -> Json:
    return _place(event) | {
        "content_index": event.part_index,
        "part": part_object(event.part, is_output=True),
    }


def _annotation(event: pb.ResponseAnnotationEvent) -> Json:
    return _place(event) | {
        "content_index": event.part_index,
        "annotation_index": event.annotation_index,
        "annotation": citation_object(event.citation),
    }


def _text(name: str) -> Callable[[pb.ResponseTextEvent], Json]:
    """Output text under a name, with the probabilities of its tokens."""
    return lambda event: (
        _place(event)
        | {
            "content_index": event.part_index,
            name: event.text,
            "logprobs": logprob_objects(event.logprobs),
        }
    )


def _refusal(name: str) -> Callable[[pb.ResponseTextEvent], Json]:
    return lambda event: _place(event) | {"content_index": event.part_index, name: event.text}


def _summary(name: str) -> Callable[[pb.ResponseTextEvent], Json]:
    return lambda event: _place(event) | {"summary_index": event.part_index, name: event.text}


def _summary_part(event: pb.ResponseTextEvent) -> Json:
    part = {"type": "summary_text", "text": event.text}
    return _place(event) | {"summary_index": event.part_index, "part": part}


def _call_delta(event: pb.ResponseCallEvent) -> Json:
    return _place(event) | {"delta": event.text}


def _arguments(event: pb.ResponseCallEvent) -> Json:
    return _place(event) | {"arguments": event.text, "name": event.name}


def _input(event: pb.ResponseCallEvent) -> Json:
    return _place(event) | {"input": event.text}


def _place(event: Any) -> Json:
    return {"item_id": event.item_id, "output_index": event.output_index}


_WRITERS: Final[dict[str, Callable[[Any], Json]]] = dict.fromkeys(_LIFECYCLE, _response) | {
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
    "file_search_call_in_progress": _place,
    "file_search_call_searching": _place,
    "file_search_call_completed": _place,
    "mcp_list_tools_in_progress": _place,
    "mcp_list_tools_completed": _place,
    "mcp_list_tools_failed": _place,
    "mcp_call_in_progress": _place,
    "mcp_call_arguments_delta": _call_delta,
    "mcp_call_arguments_done": _arguments,
    "mcp_call_completed": _place,
    "mcp_call_failed": _place,
    "compaction_compacting": _place,
}
"""By the field of the message."""
