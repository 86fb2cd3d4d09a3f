"""Conversion of runs between protos and dataclasses."""

from corral.control.v1 import item_pb2, run_pb2, run_service_pb2

from control_svc.assistants.model import NewThread
from control_svc.assistants.proto import new_messages, thread_settings
from control_svc.base.proto import optional_timestamp, timestamp
from control_svc.inference.turns import TurnUsage
from control_svc.items.model import FunctionCall
from control_svc.items.proto import search_result_to_pb
from control_svc.runs.model import NewRun, Run, RunError, Truncation
from control_svc.runs.steps import FunctionStepCall, MessageCreation, RunStep, StepCall
from control_svc.tools.proto import (
    choice_from_pb,
    choice_to_pb,
    format_from_pb,
    format_to_pb,
    options_from_pb,
    options_to_pb,
    resources_from_pb,
    tools_from_pb,
    tools_to_pb,
)
from control_svc.vector_stores.proto import new_store


def new_run(request: run_service_pb2.RunOptions, request_id: str) -> NewRun:
    """Convert the options of a new run. Raises MissingField, InvalidField or UnsupportedField."""
    has, truncation = request.HasField, request.truncation
    return NewRun(
        assistant_id=request.assistant_id,
        model=request.model,
        instructions=request.instructions if has("instructions") else None,
        additional_instructions=request.additional_instructions,
        additional_messages=new_messages(request.additional_messages, "additional_messages"),
        tools=tools_from_pb(request.tools.tools) if has("tools") else None,
        resources=resources_from_pb(request.tool_resources) if has("tool_resources") else None,
        metadata=dict(request.metadata),
        options=options_from_pb(request.options) if has("options") else b"",
        format=format_from_pb(request.response_format) if has("response_format") else None,
        reasoning_effort=request.reasoning_effort,
        choice=choice_from_pb(request.tool_choice),
        parallel_calls=request.parallel_tool_calls if has("parallel_tool_calls") else True,
        truncation=Truncation(
            last_messages=truncation.last_messages if truncation.HasField("last_messages") else None
        ),
        max_prompt_tokens=request.max_prompt_tokens if has("max_prompt_tokens") else None,
        max_completion_tokens=(
            request.max_completion_tokens if has("max_completion_tokens") else None
        ),
        request_id=request_id,
    )


def new_thread(request: run_service_pb2.CreateThreadAndRunRequest) -> NewThread:
    """Convert the thread to create with a run. Raises MissingField or InvalidField."""
    return NewThread(
        settings=thread_settings(request.thread),
        messages=new_messages(request.messages, "thread.messages"),
        new_stores=tuple(map(new_store, request.new_vector_stores)),
    )


def run_to_pb(run: Run) -> run_pb2.Run:
    """Convert a run."""
    settings, reason = run.settings, run.incomplete_reason
    return run_pb2.Run(
        id=run.id,
        thread_id=run.thread_id,
        assistant_id=run.assistant_id,
        state=f"STATE_{run.state.name}",
        create_time=timestamp(run.created_at),
        expire_time=optional_timestamp(run.expires_at),
        start_time=optional_timestamp(run.started_at),
        end_time=optional_timestamp(run.ended_at),
        error=_error_to_pb(run.error),
        incomplete_reason=f"INCOMPLETE_REASON_{'UNSPECIFIED' if reason is None else reason.name}",
        required_calls=map(_call_to_pb, run.calls),
        usage=_usage_to_pb(run.usage),
        model=settings.model,
        instructions=settings.instructions,
        tools=tools_to_pb(settings.tools),
        options=options_to_pb(settings.options),
        response_format=None if settings.format is None else format_to_pb(settings.format),
        tool_choice=choice_to_pb(settings.choice),
        parallel_tool_calls=settings.parallel_calls,
        truncation=run_pb2.RunTruncation(last_messages=settings.truncation.last_messages),
        max_prompt_tokens=settings.max_prompt_tokens,
        max_completion_tokens=settings.max_completion_tokens,
        reasoning_effort=settings.reasoning_effort,
        metadata=run.metadata,
    )


def step_to_pb(step: RunStep) -> run_pb2.RunStep:
    """Convert a step."""
    message = run_pb2.RunStep(
        id=step.id,
        run_id=step.run_id,
        thread_id=step.thread_id,
        assistant_id=step.assistant_id,
        state=f"STATE_{step.state.name}",
        create_time=timestamp(step.created_at),
        end_time=optional_timestamp(step.ended_at),
        error=_error_to_pb(step.error),
        usage=_usage_to_pb(step.usage),
    )
    if isinstance(step.details, MessageCreation):
        message.message_id = step.details.message_id
    else:
        calls = map(_step_call_to_pb, step.details.calls)
        message.tool_calls.CopyFrom(run_pb2.StepCalls(calls=calls))
    return message


def _error_to_pb(error: RunError | None) -> run_pb2.RunError | None:
    return None if error is None else run_pb2.RunError(code=error.code, message=error.message)


def _usage_to_pb(usage: TurnUsage) -> run_pb2.RunUsage:
    return run_pb2.RunUsage(**usage._asdict())


def _call_to_pb(call: FunctionCall) -> item_pb2.FunctionCallItem:
    return item_pb2.FunctionCallItem(
        call_id=call.call_id, name=call.name, arguments_json=call.arguments
    )


def _step_call_to_pb(call: StepCall) -> run_pb2.StepCall:
    if isinstance(call, FunctionStepCall):
        function = run_pb2.FunctionStepCall(
            name=call.name, arguments_json=call.arguments, output=call.output
        )
        return run_pb2.StepCall(call_id=call.call_id, function=function)
    search = run_pb2.FileSearchStepCall(results=map(search_result_to_pb, call.results or ()))
    return run_pb2.StepCall(call_id=call.call_id, file_search=search)
