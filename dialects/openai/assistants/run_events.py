"""Events of runs as OpenAI's server-sent events."""

from typing import Any, Final, Literal, NotRequired, get_args

import orjson
from corral.control.v1 import run_event_pb2
from corral.control.v1 import run_service_pb2 as pb
from typing_extensions import TypedDict

from dialects.openai.assistants.objects import (
    FileCitation,
    MessageStatus,
    Thread,
    ThreadMessage,
    citation_object,
    message_object,
    thread_object,
)
from dialects.openai.assistants.run_objects import (
    Run,
    RunStatus,
    RunStep,
    StepStatus,
    run_object,
    step_object,
)
from dialects.openai.errors import error_body
from dialects.openai.shared.composed_shapes import event_shape, one_of
from svc_kit.errors import DomainError
from svc_kit.errors.status import ErrorDetails


class CitationDelta(FileCitation):
    index: int


class TextDelta(TypedDict):
    """More of a text, or citations in it."""

    value: NotRequired[str]
    annotations: NotRequired[list[CitationDelta]]


class ContentDelta(TypedDict):
    """More of a content part."""

    index: Literal[0]
    type: Literal["text"]
    text: TextDelta


class MessageContentDelta(TypedDict):
    """More of the content of a message."""

    content: list[ContentDelta]


class ThreadMessageDelta(TypedDict):
    """More of a message."""

    id: str
    object: Literal["thread.message.delta"]
    delta: MessageContentDelta


def _message_delta(delta: run_event_pb2.MessageDelta) -> ThreadMessageDelta:
    text: TextDelta = {"value": delta.text} if delta.text else {}
    if delta.citations:
        text["annotations"] = [
            {"index": index, **citation_object(citation)}
            for index, citation in enumerate(delta.citations)
        ]
    return {
        "id": delta.message_id,
        "object": "thread.message.delta",
        "delta": {"content": [{"index": 0, "type": "text", "text": text}]},
    }


class FunctionDelta(TypedDict):
    """A call of a function, or more of its arguments."""

    name: NotRequired[str]
    arguments: str
    output: NotRequired[None]


class FunctionCallDelta(TypedDict):
    """The start of a call of a function, with its id, or more of it."""

    index: int
    id: NotRequired[str]
    type: Literal["function"]
    function: FunctionDelta


class NoResults(TypedDict):
    """A search that has not ended."""


class FileSearchDelta(TypedDict):
    index: int
    id: str
    type: Literal["file_search"]
    file_search: NoResults


class ToolCallsDelta(TypedDict):
    """More of the calls of a step."""

    type: Literal["tool_calls"]
    tool_calls: list[FunctionCallDelta | FileSearchDelta]


class StepDetailsDelta(TypedDict):
    """More of the details of a step."""

    step_details: ToolCallsDelta


class RunStepDelta(TypedDict):
    """More of a step."""

    id: str
    object: Literal["thread.run.step.delta"]
    delta: StepDetailsDelta


def _call_delta(delta: run_event_pb2.CallDelta) -> RunStepDelta:
    call: FunctionCallDelta | FileSearchDelta
    if delta.is_hosted:
        call = {
            "index": delta.index,
            "id": delta.call_id,
            "type": "file_search",
            "file_search": {},
        }
    elif delta.call_id:
        call = {
            "index": delta.index,
            "id": delta.call_id,
            "type": "function",
            "function": _function_delta(delta),
        }
    else:
        call = {"index": delta.index, "type": "function", "function": _function_delta(delta)}
    return {
        "id": delta.step_id,
        "object": "thread.run.step.delta",
        "delta": {"step_details": {"type": "tool_calls", "tool_calls": [call]}},
    }


def _function_delta(delta: run_event_pb2.CallDelta) -> FunctionDelta:
    if delta.name:
        return {"name": delta.name, "arguments": delta.arguments_json, "output": None}
    return {"arguments": delta.arguments_json}


def _is_public(delta: run_event_pb2.CallDelta) -> bool:
    """Arguments of hosted calls are not streamed."""
    return not delta.is_hosted or bool(delta.call_id)


class ThreadError(ErrorDetails):
    """An error, flat as OpenAI writes it, and in the envelope that its SDKs raise."""

    error: ErrorDetails


DONE: Final = b"event: done\ndata: [DONE]\n\n"
"""The last event of a stream."""


def event_frame(message: pb.WatchRunResponse, *, with_results: bool) -> bytes | None:
    """Encode an event as SSE, with its number as id. None if OpenAI has no such event."""
    event = message.event
    data: object
    match event.WhichOneof("event"):
        case "thread_created":
            name, data = "thread.created", thread_object(event.thread_created)
        case "run_changed":
            run = event.run_changed
            name, data = f"thread.run.{run.what}", run_object(run.run)
        case "step_changed":
            step = event.step_changed
            name = f"thread.run.step.{step.what}"
            data = step_object(step.step, with_results=with_results)
        case "message_changed":
            changed = event.message_changed
            name, data = f"thread.message.{changed.what}", message_object(changed.message)
        case "message_delta":
            name, data = "thread.message.delta", _message_delta(event.message_delta)
        case "call_delta" if _is_public(event.call_delta):
            name, data = "thread.run.step.delta", _call_delta(event.call_delta)
        case _:
            return None
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (message.number, name.encode(), orjson.dumps(data))


def error_frame(error: DomainError) -> bytes:
    """Encode the last event of a failed stream as SSE."""
    details = error_body(error)["error"]
    data: ThreadError = {**details, "error": details}
    return b"event: error\ndata: %b\n\n" % orjson.dumps(data)


def _names(resource: str, statuses: Any) -> list[str]:
    return [f"{resource}.{what}" for what in ("created", *get_args(statuses))]


_DATA: Final[dict[str, Any]] = {
    "thread.created": Thread,
    **dict.fromkeys(_names("thread.run", RunStatus), Run),
    **dict.fromkeys(_names("thread.run.step", StepStatus), RunStep),
    **dict.fromkeys(_names("thread.message", MessageStatus), ThreadMessage),
    "thread.message.delta": ThreadMessageDelta,
    "thread.run.step.delta": RunStepDelta,
    "done": Literal["[DONE]"],
    "error": ThreadError,
}
"""The data of events by their name."""
ThreadEvent: Any = one_of(
    "ThreadEvent",
    [
        event_shape("Thread", name, {"event": Literal[name], "data": data})
        for name, data in _DATA.items()
    ],
    "event",
)
