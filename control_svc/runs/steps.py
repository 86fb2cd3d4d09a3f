"""Run steps: a message or tool calls, as the Assistants API shows them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Literal

from control_svc.agent.model import NO_USAGE
from control_svc.inference.turns import TurnUsage
from control_svc.items.model import FileSearchCall, SearchResult
from control_svc.runs.model import RunError


class StepState(StrEnum):
    """State of a step, in OpenAI's words."""

    IN_PROGRESS = "in_progress"
    CANCELLED = "cancelled"
    FAILED = "failed"
    COMPLETED = "completed"
    EXPIRED = "expired"


@dataclass(frozen=True, kw_only=True)
class MessageCreation:
    """The model wrote a message."""

    kind: Literal["message_creation"] = "message_creation"
    message_id: str


@dataclass(frozen=True, kw_only=True)
class FunctionStepCall:
    kind: Literal["function"] = "function"
    call_id: str
    name: str
    arguments: str = ""
    output: str | None = None
    """None until the client submits it."""


@dataclass(frozen=True, kw_only=True)
class FileSearchStepCall:
    kind: Literal["file_search"] = "file_search"
    call_id: str
    results: tuple[SearchResult, ...] | None = None
    """None until the search is done."""


StepCall = FunctionStepCall | FileSearchStepCall


@dataclass(frozen=True, kw_only=True)
class ToolCalls:
    kind: Literal["tool_calls"] = "tool_calls"
    calls: tuple[StepCall, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RunStep:
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
    """Usage of the turn that ended with this step. A turn with calls is counted in their step, else
    in the step of its last message."""

    @property
    def all_searches_done(self) -> bool:
        """Whether all calls are searches with results."""
        return isinstance(self.details, ToolCalls) and all(
            isinstance(call, FileSearchStepCall) and call.results is not None
            for call in self.details.calls
        )

    def end(self, state: StepState, now: datetime, error: RunError | None = None) -> "RunStep":
        """The step in a final state; a step that has ended is not changed."""
        if self.state is not StepState.IN_PROGRESS:
            return self
        return replace(self, state=state, ended_at=now, error=error)

    def with_calls(self, calls: tuple[StepCall, ...]) -> "RunStep":
        return replace(self, details=ToolCalls(calls=calls))

    def with_outputs(self, outputs: Mapping[str, str]) -> "RunStep":
        """The step with outputs of its function calls, by call id."""
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
        if not isinstance(self.details, ToolCalls):
            return self
        done = FileSearchStepCall(call_id=search.call_id, results=search.results)
        return self.with_calls(
            tuple(done if call.call_id == done.call_id else call for call in self.details.calls)
        )
