"""Runs, their steps and their events as OpenAI's objects."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
from corral.control.v1 import item_pb2, run_event_pb2, run_pb2, tool_pb2
from corral.control.v1 import run_service_pb2 as pb

from dialects.openai.assistants.objects import citation_object, message_object, thread_object
from dialects.openai.assistants.tools import format_object, tool_objects
from dialects.openai.errors import ASSISTANT_PARAMS, error_body
from dialects.openai.shared.objects import (
    Json,
    enum_name,
    ignored_object,
    incomplete_details,
    optional_float,
    optional_seconds,
    state_name,
)
from svc_kit.errors import DomainError

_FINAL_STATUSES: Final = frozenset(("cancelled", "failed", "completed", "incomplete", "expired"))
_FILE_SEARCH: Final = "file_search"


def run_object(run: run_pb2.Run) -> Json:
    """A run."""
    status, sampling = state_name(run), run.options.sampling
    return {
        "id": run.id,
        "object": "thread.run",
        "created_at": run.create_time.seconds,
        "thread_id": run.thread_id,
        "assistant_id": run.assistant_id,
        "status": status,
        "required_action": _required_action(run.required_calls),
        "last_error": _error(run),
        "expires_at": optional_seconds(run, "expire_time"),
        "started_at": optional_seconds(run, "start_time"),
        **_end_times(run, status, ("cancelled", "failed", "completed")),
        "incomplete_details": incomplete_details(run),
        "model": run.model,
        "instructions": run.instructions,
        "tools": tool_objects(run.tools),
        "metadata": dict(run.metadata),
        "usage": _usage(run.usage) if status in _FINAL_STATUSES else None,
        "temperature": optional_float(sampling, "temperature"),
        "top_p": optional_float(sampling, "top_p"),
        "max_prompt_tokens": _number(run, "max_prompt_tokens"),
        "max_completion_tokens": _number(run, "max_completion_tokens"),
        "truncation_strategy": _truncation(run.truncation),
        "tool_choice": _choice(run.tool_choice),
        "parallel_tool_calls": run.parallel_tool_calls,
        "response_format": format_object(run),
        "reasoning_effort": run.reasoning_effort or None,
        **ignored_object(run.ignored_parameters, ASSISTANT_PARAMS),
    }


def step_object(step: run_pb2.RunStep, *, with_results: bool = False) -> Json:
    """A step. `with_results` includes the content of search results."""
    status = state_name(step)
    return {
        "id": step.id,
        "object": "thread.run.step",
        "created_at": step.create_time.seconds,
        "run_id": step.run_id,
        "assistant_id": step.assistant_id,
        "thread_id": step.thread_id,
        "type": "message_creation" if step.message_id else "tool_calls",
        "status": status,
        **_end_times(step, status, ("cancelled", "completed", "expired", "failed")),
        "last_error": _error(step),
        "step_details": _step_details(step, with_results=with_results),
        "usage": None if status == "in_progress" else _usage(step.usage),
        "metadata": {},
    }


def poll_after_ms(run: run_pb2.Run, now_s: float) -> int:
    """The suggested polling interval: 5 % of the run's age, between 100 and 1000 ms."""
    age_ms = max(0.0, now_s - run.create_time.seconds) * 1000
    return int(min(1000.0, max(100.0, age_ms / 20)))


def _required_action(calls: Sequence[item_pb2.FunctionCallItem]) -> Json | None:
    if not calls:
        return None
    tool_calls = [
        {
            "id": call.call_id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments_json},
        }
        for call in calls
    ]
    return {"type": "submit_tool_outputs", "submit_tool_outputs": {"tool_calls": tool_calls}}


def _error(owner: run_pb2.Run | run_pb2.RunStep) -> Json | None:
    if not owner.HasField("error"):
        return None
    return {"code": owner.error.code, "message": owner.error.message}


def _end_times(owner: run_pb2.Run | run_pb2.RunStep, status: str, statuses: Sequence[str]) -> Json:
    """The end time in the field of the final status, as in `failed_at`; None in the others."""
    end_time = optional_seconds(owner, "end_time")
    return {f"{each}_at": end_time if status == each else None for each in statuses}


def _usage(usage: run_pb2.RunUsage) -> Json:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_token_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _truncation(truncation: run_pb2.RunTruncation) -> Json:
    count = _number(truncation, "last_messages")
    return {"type": "auto" if count is None else "last_messages", "last_messages": count}


def _choice(choice: tool_pb2.ToolSelection) -> str | Json:
    if not choice.is_one or not choice.allowed_names:
        return enum_name(tool_pb2.ToolSelection.Mode.Name(choice.mode), "MODE_")
    name = choice.allowed_names[0]
    if name == _FILE_SEARCH:
        return {"type": name}
    return {"type": "function", "function": {"name": name}}


def _step_details(step: run_pb2.RunStep, *, with_results: bool) -> Json:
    if step.message_id:
        return {
            "type": "message_creation",
            "message_creation": {"message_id": step.message_id},
        }
    calls = [_step_call(call, with_results=with_results) for call in step.tool_calls.calls]
    return {"type": "tool_calls", "tool_calls": calls}


def _step_call(call: run_pb2.StepCall, *, with_results: bool) -> Json:
    if call.WhichOneof("call") == _FILE_SEARCH:
        results = [_result(each, with_results=with_results) for each in call.file_search.results]
        return {"id": call.call_id, "type": _FILE_SEARCH, _FILE_SEARCH: {"results": results}}
    function = call.function
    return {
        "id": call.call_id,
        "type": "function",
        "function": {
            "name": function.name,
            "arguments": function.arguments_json,
            "output": function.output if function.HasField("output") else None,
        },
    }


def _result(result: item_pb2.FileSearchResult, *, with_results: bool) -> Json:
    written: Json = {
        "file_id": result.file_id,
        "file_name": result.filename,
        "score": result.score,
    }
    if with_results:
        written["content"] = [{"type": "text", "text": result.text}]
    return written


def _number(owner: Any, field: str) -> int | None:
    return getattr(owner, field) if owner.HasField(field) else None


DONE: Final = b"event: done\ndata: [DONE]\n\n"
"""The last event of a stream."""


def event_frame(message: pb.WatchRunResponse, *, with_results: bool) -> bytes | None:
    """Encode an event as SSE, with its number as id. None if OpenAI has no such event."""
    event = message.event
    data: Mapping[str, object]
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
    """Encode the last event of a failed stream as SSE.

    OpenAI's own error event is flat, but its SDKs ignore that and raise only errors in the usual
    envelope, so the data has both forms.
    """
    body = error_body(error)
    return b"event: error\ndata: %b\n\n" % orjson.dumps({**body["error"], **body})


def _is_public(delta: run_event_pb2.CallDelta) -> bool:
    """Arguments of hosted calls are not streamed."""
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
