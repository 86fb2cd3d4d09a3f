"""The gRPC servicer of runs and its proto conversion."""

from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc
from corral.control.v1 import item_pb2, run_event_pb2, run_pb2, run_service_pb2
from corral.control.v1 import run_service_pb2 as pb
from corral.control.v1 import run_service_pb2_grpc as rpc

from control_svc.agent.drafts import DraftKind
from control_svc.assistants.model import NewThread
from control_svc.assistants.proto import message_to_pb, new_messages, thread_settings, thread_to_pb
from control_svc.base.proto import optional_timestamp, page_request, timestamp
from control_svc.event_log.model import BEFORE_FIRST
from control_svc.inference.turns import TurnUsage
from control_svc.items.model import FunctionCall
from control_svc.items.proto import citation_to_pb, search_result_to_pb
from control_svc.runs.events import (
    CallDelta,
    MessageChanged,
    MessageDelta,
    ReasoningDelta,
    RunChanged,
    RunEvent,
    StepChanged,
    ThreadCreated,
)
from control_svc.runs.model import NewRun, Run, RunError, ToolOutput, Truncation
from control_svc.runs.service import Runs
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
from svc_kit.auth.principal import current_principal


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


def event_to_pb(event: RunEvent) -> run_event_pb2.RunEvent:
    """Convert an event."""
    wire = run_event_pb2
    match event:
        case ThreadCreated(thread=thread):
            return wire.RunEvent(thread_created=thread_to_pb(thread))
        case RunChanged(what=what, run=run):
            return wire.RunEvent(run_changed=wire.RunChanged(what=what, run=run_to_pb(run)))
        case StepChanged(what=what, step=step):
            return wire.RunEvent(step_changed=wire.StepChanged(what=what, step=step_to_pb(step)))
        case MessageChanged(what=what, message=message):
            changed = wire.MessageChanged(what=what, message=message_to_pb(message))
            return wire.RunEvent(message_changed=changed)
        case _:
            return _delta_to_pb(event)


def _delta_to_pb(event: MessageDelta | CallDelta | ReasoningDelta) -> run_event_pb2.RunEvent:
    wire = run_event_pb2
    match event:
        case MessageDelta():
            citations = map(citation_to_pb, event.annotations)
            delta = wire.MessageDelta(
                message_id=event.message_id, text=event.text, citations=citations
            )
            return wire.RunEvent(message_delta=delta)
        case ReasoningDelta():
            reasoning = wire.ReasoningDelta(item_id=event.item_id, text=event.text)
            return wire.RunEvent(reasoning_delta=reasoning)
        case CallDelta():
            call = wire.CallDelta(
                step_id=event.step_id,
                index=event.index,
                call_id=event.call_id,
                name=event.name,
                arguments_json=event.arguments,
                is_hosted=event.tool is DraftKind.HOSTED,
            )
            return wire.RunEvent(call_delta=call)


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


Context = grpc.aio.ServicerContext[object, object]


class RunServicer(rpc.RunServiceServicer):
    """Runs over gRPC."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    async def CreateRun(
        self, request: pb.CreateRunRequest, context: Context
    ) -> pb.CreateRunResponse:
        """Create a run."""
        new = new_run(request.run, request.request_id)
        run = await self._runs.create(current_principal().project, request.thread_id, new)
        return pb.CreateRunResponse(run=run_to_pb(run))

    async def CreateThreadAndRun(
        self, request: pb.CreateThreadAndRunRequest, context: Context
    ) -> pb.CreateThreadAndRunResponse:
        """Create a thread and a run on it."""
        new = new_run(request.run, request.request_id)
        run = await self._runs.create_with_thread(
            current_principal().project, new_thread(request), new
        )
        return pb.CreateThreadAndRunResponse(run=run_to_pb(run))

    async def GetRun(self, request: pb.GetRunRequest, context: Context) -> pb.GetRunResponse:
        """Return a run."""
        run = await self._runs.get(current_principal().project, request.thread_id, request.run_id)
        return pb.GetRunResponse(run=run_to_pb(run))

    async def ListRuns(self, request: pb.ListRunsRequest, context: Context) -> pb.ListRunsResponse:
        """List the runs of a thread."""
        page = await self._runs.page(
            current_principal().project, request.thread_id, page_request(request)
        )
        return pb.ListRunsResponse(runs=map(run_to_pb, page.items), next_page_token=page.next_token)

    async def UpdateRun(
        self, request: pb.UpdateRunRequest, context: Context
    ) -> pb.UpdateRunResponse:
        """Replace the metadata of a run."""
        run = await self._runs.update(
            current_principal().project, request.thread_id, request.run_id, dict(request.metadata)
        )
        return pb.UpdateRunResponse(run=run_to_pb(run))

    async def CancelRun(
        self, request: pb.CancelRunRequest, context: Context
    ) -> pb.CancelRunResponse:
        """Cancel a run."""
        run = await self._runs.cancel(
            current_principal().project, request.thread_id, request.run_id
        )
        return pb.CancelRunResponse(run=run_to_pb(run))

    async def SubmitToolOutputs(
        self, request: pb.SubmitToolOutputsRequest, context: Context
    ) -> pb.SubmitToolOutputsResponse:
        """Submit the outputs of a run's calls."""
        result = await self._runs.submit(
            current_principal().project,
            request.thread_id,
            request.run_id,
            [ToolOutput(output.call_id, output.output) for output in request.outputs],
            request.request_id,
        )
        return pb.SubmitToolOutputsResponse(run=run_to_pb(result.run), last_event=result.last_event)

    async def GetRunStep(
        self, request: pb.GetRunStepRequest, context: Context
    ) -> pb.GetRunStepResponse:
        """Return a step."""
        step = await self._runs.step(
            current_principal().project, request.thread_id, request.run_id, request.step_id
        )
        return pb.GetRunStepResponse(step=step_to_pb(step))

    async def ListRunSteps(
        self, request: pb.ListRunStepsRequest, context: Context
    ) -> pb.ListRunStepsResponse:
        """List the steps of a run."""
        page = await self._runs.steps(
            current_principal().project, request.thread_id, request.run_id, page_request(request)
        )
        return pb.ListRunStepsResponse(
            steps=map(step_to_pb, page.items), next_page_token=page.next_token
        )

    async def WatchRun(
        self, request: pb.WatchRunRequest, context: Context
    ) -> AsyncIterator[pb.WatchRunResponse]:
        """Stream the events of a run."""
        after = request.after if request.HasField("after") else BEFORE_FIRST
        watching = self._runs.watch(
            current_principal().project, request.thread_id, request.run_id, after
        )
        async with aclosing(watching) as events:
            async for number, event in events:
                yield pb.WatchRunResponse(number=number, event=event_to_pb(event))
