"""Events of runs as server-sent events, in OpenAI's words."""

from typing import Any, Final

import orjson
from corral.control.v1 import run_event_pb2
from corral.control.v1 import run_service_pb2 as pb

from openai_wire.assistants.objects import citation_object, message_object, thread_object
from openai_wire.assistants.run_objects import run_object, step_object
from openai_wire.errors import error_body
from svc_kit.errors import DomainError

Json = dict[str, Any]

DONE: Final = b"event: done\ndata: [DONE]\n\n"
"""Ends a stream."""


def event_frame(message: pb.WatchRunResponse, *, with_results: bool) -> bytes | None:
    """An event with its number as its id; None for those that OpenAI has no word for."""
    kind = message.event.WhichOneof("event")
    match kind:
        case "thread_created":
            named = "thread.created", thread_object(message.event.thread_created)
        case "run_changed":
            run = message.event.run_changed
            named = f"thread.run.{run.what}", run_object(run.run)
        case "step_changed":
            step = message.event.step_changed
            written = step_object(step.step, with_results=with_results)
            named = f"thread.run.step.{step.what}", written
        case "message_changed":
            changed = message.event.message_changed
            named = f"thread.message.{changed.what}", message_object(changed.message)
        case "message_delta":
            named = "thread.message.delta", _message_delta(message.event.message_delta)
        case "call_delta" if _is_shown(message.event.call_delta):
            named = "thread.run.step.delta", _call_delta(message.event.call_delta)
        case _:
            return None
    name, data = named
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (message.number, name.encode(), orjson.dumps(data))


def error_frame(error: DomainError) -> bytes:
    """An error after which nothing comes.

    OpenAI's own is flat, and its SDKs pass by such a one in silence; they raise what has the
    envelope of other errors. So it is written both ways.
    """
    body: dict[str, Any] = error_body(error)
    return b"event: error\ndata: %b\n\n" % orjson.dumps({**body["error"], **body})


def _is_shown(delta: run_event_pb2.CallDelta) -> bool:
    """The arguments of a call that the server carries out are its own business."""
    return not delta.is_hosted or bool(delta.call_id)


def _message_delta(delta: run_event_pb2.MessageDelta) -> Json:
    text: Json = {"value": delta.text} if delta.text else {}
    if delta.citations:
        text["annotations"] = [
            {"index": index, **citation_object(citation)}
            for index, citation in enumerate(delta.citations)
        ]
    content = [{"index": 0, "type": "text", "text": text}]
    return {
        "id": delta.message_id,
        "object": "thread.message.delta",
        "delta": {"content": content},
    }


def _call_delta(delta: run_event_pb2.CallDelta) -> Json:
    call: Json = {"index": delta.index}
    if delta.call_id:
        call["id"] = delta.call_id
    if delta.is_hosted:
        call |= {"type": "file_search", "file_search": {}}
    else:
        call |= {"type": "function", "function": _function_delta(delta)}
    details = {"type": "tool_calls", "tool_calls": [call]}
    return {
        "id": delta.step_id,
        "object": "thread.run.step.delta",
        "delta": {"step_details": details},
    }


def _function_delta(delta: run_event_pb2.CallDelta) -> Json:
    if delta.name:
        return {"name": delta.name, "arguments": delta.arguments_json, "output": None}
    return {"arguments": delta.arguments_json}
