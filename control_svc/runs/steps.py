"""Run steps: a message or calls of tools, as the Assistants API shows them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Literal

from control_svc.agent.model import NO_USAGE
from control_svc.inference.turns import TurnUsage
from control_svc.items.model import FileSearchCall, SearchResult
from control_svc.runs.model import Run, RunError, ToolOutput


class StepState(StrEnum):
    """Where a step is, in OpenAI's words."""

    IN_PROGRESS = "in_progress"
    CANCELLED = "cancelled"
    FAILED = "failed"
    COMPLETED = "completed"
    EXPIRED = "expired"


@dataclass(frozen=True, kw_only=True)
class MessageCreation:
    """A message that the model wrote."""

    kind: Literal["message_creation"] = "message_creation"
    message_id: str


@dataclass(frozen=True, kw_only=True)
class FunctionStepCall:
    """A call of a function of the client's."""

    kind: Literal["function"] = "function"
    call_id: str
    name: str
    arguments: str = ""
    output: str | None = None
    """None: the client has not submitted it."""


@dataclass(frozen=True, kw_only=True)
class FileSearchStepCall:
    """A search of files."""

    kind: Literal["file_search"] = "file_search"
    call_id: str
    results: tuple[SearchResult, ...] | None = None
    """None: it is not done."""


StepCall = FunctionStepCall | FileSearchStepCall


@dataclass(frozen=True, kw_only=True)
class ToolCalls:
    """Calls that the model made in one turn."""

    kind: Literal["tool_calls"] = "tool_calls"
    calls: tuple[StepCall, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RunStep:
    """A step of a run."""

    id: str
    run_id: str
    thread_id: str
    assistant_id: str
    details: MessageCreation | ToolCalls
    state: StepState = StepState.IN_PROGRESS
    created_at: datetime
    ended_at: datetime | None = None
    error: RunError | None = None
    usage: TurnUsage = NO_USAGE
    """Of the turn that ended with this step: a turn is counted with its calls, else with its last
    message."""

    @property
    def is_searched(self) -> bool:
        """Whether all its calls are searches, and done."""
        return isinstance(self.details, ToolCalls) and all(
            isinstance(call, FileSearchStepCall) and call.results is not None
            for call in self.details.calls
        )

    def ended(self, state: StepState, now: datetime, error: RunError | None = None) -> "RunStep":
        """The step at its end; one that has ended stays as it is."""
        if self.state is not StepState.IN_PROGRESS:
            return self
        return replace(self, state=state, ended_at=now, error=error)

    def counted(self, usage: TurnUsage) -> "RunStep":
        """The step with the tokens of its turn."""
        return replace(self, usage=usage)

    def with_calls(self, calls: tuple[StepCall, ...]) -> "RunStep":
        """The step with what is known of its calls."""
        return replace(self, details=ToolCalls(calls=calls))

    def with_outputs(self, outputs: Mapping[str, str]) -> "RunStep":
        """The step with what the client's functions gave, by call."""
        if not isinstance(self.details, ToolCalls):
            return self
        return self.with_calls(
            tuple(
                replace(call, output=outputs.get(call.call_id, call.output))
                if isinstance(call, FunctionStepCall)
                else call
                for call in self.details.calls
            )
        )

    def with_search(self, search: FileSearchCall) -> "RunStep":
        """The step with what a search found."""
        if not isinstance(self.details, ToolCalls):
            return self
        found = FileSearchStepCall(call_id=search.call_id, results=search.results)
        return self.with_calls(
            tuple(found if call.call_id == found.call_id else call for call in self.details.calls)
        )


def started_step(
    step_id: str, run: Run, details: MessageCreation | ToolCalls, now: datetime
) -> RunStep:
    """A step of a run, at its beginning."""
    return RunStep(
        id=step_id,
        run_id=run.id,
        thread_id=run.thread_id,
        assistant_id=run.assistant_id,
        details=details,
        created_at=now,
    )


def by_call(outputs: Sequence[ToolOutput]) -> dict[str, str]:
    """Outputs by the calls that they answer."""
    return {output.call_id: output.output for output in outputs}
