"""Runs: executions of an assistant on a thread, and their states.

    queued ──► in_progress ──► completed, incomplete, failed    (an operator may retry a failed run)
      ▲           │    ▲
      │           ▼    │ cancelling ──► cancelled       (from queued and in_progress)
      └── requires_action ──► expired, cancelled

A run is changed with its row locked, so the first of two ends wins. All transitions are pure: they
return the changed run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from control_svc.agent.model import ANY_CHOICE, NO_USAGE, TurnResult, Work, add_usage
from control_svc.assistants.message_model import NewMessage
from control_svc.assistants.model import AssistantSettings, check_assistant_tools
from control_svc.inference.generation_options import NO_OPTIONS, GenerationOptions
from control_svc.inference.turns import TurnUsage
from control_svc.items.model import FunctionCall
from control_svc.tools.model import (
    NO_RESOURCES,
    ResponseFormat,
    Tool,
    ToolChoice,
    ToolResources,
)
from control_svc.tools.tool_validation import check_choice, check_effort, check_format
from svc_kit.errors import (
    DomainError,
    InternalError,
    InvalidArgument,
    ResourceExhausted,
    RunNotCancellable,
    ToolOutputsIncomplete,
    ToolOutputsNotAccepted,
)


class RunState(StrEnum):
    """State of a run, in OpenAI's words."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    REQUIRES_ACTION = "requires_action"
    """The run waits for the outputs of client functions."""
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    FAILED = "failed"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    EXPIRED = "expired"

    @property
    def is_final(self) -> bool:
        """Whether the run has ended."""
        return self in _FINAL

    @property
    def needs_worker(self) -> bool:
        """Whether a worker has to execute the run, or end it."""
        return not self.is_final and self is not RunState.REQUIRES_ACTION


_FINAL: Final = frozenset(
    {
        RunState.CANCELLED,
        RunState.FAILED,
        RunState.COMPLETED,
        RunState.INCOMPLETE,
        RunState.EXPIRED,
    }
)


class ErrorCode(StrEnum):
    """Code of the error of a run, in OpenAI's words."""

    SERVER_ERROR = "server_error"
    RATE_LIMIT_EXCEEDED = "rate_limit_exceeded"
    INVALID_PROMPT = "invalid_prompt"


class RunError(NamedTuple):
    """Error of a failed run."""

    code: ErrorCode
    message: str


class IncompleteReason(StrEnum):
    """Limit that ended a run."""

    MAX_COMPLETION_TOKENS = "max_completion_tokens"
    MAX_PROMPT_TOKENS = "max_prompt_tokens"


@dataclass(frozen=True)
class RunEnd:
    state: RunState
    error: RunError | None = None
    """Set if the state is failed."""
    reason: IncompleteReason | None = None
    """Set if the state is incomplete."""


COMPLETED: Final = RunEnd(RunState.COMPLETED)
CANCELLED: Final = RunEnd(RunState.CANCELLED)
EXPIRED: Final = RunEnd(RunState.EXPIRED)


@dataclass(frozen=True, kw_only=True)
class Truncation:
    last_messages: int | None = None
    """Number of last messages. None means "auto": all that fit into the context length."""


AUTO_TRUNCATION: Final = Truncation()


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Settings of a run. They are copied from its assistant, which may change later."""

    model: str
    instructions: str = ""
    tools: tuple[Tool, ...] = ()
    resources: ToolResources = NO_RESOURCES
    options: GenerationOptions = NO_OPTIONS
    format: ResponseFormat | None = None
    reasoning_effort: str = ""
    choice: ToolChoice = ANY_CHOICE
    parallel_calls: bool = True
    truncation: Truncation = AUTO_TRUNCATION
    max_prompt_tokens: int | None = None
    max_completion_tokens: int | None = None
    seed: int
    """Sampling seed, stored so that a resumed run continues with it."""


@dataclass(frozen=True, kw_only=True)
class NewRun:
    """The request to create a run. The assistant's settings replace None and empty texts."""

    assistant_id: str
    model: str = ""
    instructions: str | None = None
    additional_instructions: str = ""
    additional_messages: tuple[NewMessage, ...] = ()
    tools: tuple[Tool, ...] | None = None
    resources: ToolResources | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    options: GenerationOptions = NO_OPTIONS
    format: ResponseFormat | None = None
    reasoning_effort: str = ""
    choice: ToolChoice = ANY_CHOICE
    parallel_calls: bool = True
    truncation: Truncation = AUTO_TRUNCATION
    max_prompt_tokens: int | None = None
    max_completion_tokens: int | None = None
    request_id: str = ""

    def check(self) -> None:
        """Raises MissingField, TooLong, InvalidField, InvalidJson, OutOfRange or
        UnsupportedValue for what the limits of the proto do not say."""
        check_assistant_tools(self.tools or ())
        check_format(self.format)
        check_effort(self.reasoning_effort)
        for index, message in enumerate(self.additional_messages):
            message.check(f"additional_messages[{index}].")

    def settings(
        self, assistant: AssistantSettings, thread: ToolResources, seed: int
    ) -> RunSettings:
        """The assistant's settings, overridden by the request.

        Raises InvalidField for the choice of an unknown tool.
        """
        tools = assistant.tools if self.tools is None else self.tools
        check_choice(self.choice, tools)
        resources = assistant.resources if self.resources is None else self.resources
        stores = dict.fromkeys((*resources.vector_store_ids, *thread.vector_store_ids))
        instructions = assistant.instructions if self.instructions is None else self.instructions
        texts = (instructions, self.additional_instructions)
        return RunSettings(
            model=self.model or assistant.model,
            instructions="\n\n".join(text for text in texts if text),
            tools=tools,
            resources=ToolResources(vector_store_ids=tuple(stores)),
            options=assistant.options.merge(self.options),
            format=self.format or assistant.format,
            reasoning_effort=self.reasoning_effort or assistant.reasoning_effort,
            choice=self.choice,
            parallel_calls=self.parallel_calls,
            truncation=self.truncation,
            max_prompt_tokens=self.max_prompt_tokens,
            max_completion_tokens=self.max_completion_tokens,
            seed=seed,
        )


class ToolOutput(NamedTuple):
    call_id: str
    output: str


_WORK: Final = ("num_turns", "num_hosted_calls", "awaits_client", "usage")
"""Fields of `Work` that a run has as its own."""


@dataclass(frozen=True, kw_only=True)
class Run:
    id: str
    thread_id: str
    assistant_id: str
    settings: RunSettings
    metadata: Mapping[str, str] = field(default_factory=dict)
    state: RunState = RunState.QUEUED
    created_at: datetime
    # outcome
    expires_at: datetime | None
    """When the run expires if it waits for outputs; None once it has ended."""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    error: RunError | None = None
    incomplete_reason: IncompleteReason | None = None
    calls: tuple[FunctionCall, ...] = ()
    """Calls whose outputs the run waits for."""
    # progress
    first_position: int | None = None
    """Position in the thread's timeline of the first item in prompts, if `last_messages` or
    `max_prompt_tokens` determine it; None means the thread's cut."""
    num_turns: int = 0
    num_hosted_calls: int = 0
    awaits_client: bool = False
    usage: TurnUsage = NO_USAGE
    ignored_parameters: tuple[str, ...] = ()
    """See `Started.ignored`."""

    @property
    def work(self) -> Work:
        """Its completed turns."""
        return Work(**{name: getattr(self, name) for name in _WORK})

    def start(self, now: datetime) -> "Run":
        """The run in progress if it was queued, otherwise unchanged."""
        if self.state is not RunState.QUEUED:
            return self
        return replace(self, state=RunState.IN_PROGRESS, started_at=self.started_at or now)

    def add_turn(self, turn: TurnResult, *, awaits_client: bool = False) -> "Run":
        """The run with the number, hosted calls and usage of a turn that has ended."""
        work = self.work.add_turn(turn, awaits_client=awaits_client)
        return replace(self, **{name: getattr(work, name) for name in _WORK})

    def add_usage(self, usage: TurnUsage) -> "Run":
        """The run with the usage of a last turn that failed."""
        return replace(self, usage=add_usage(self.usage, usage))

    def require_action(
        self, calls: Sequence[FunctionCall], now: datetime, timeout: timedelta
    ) -> "Run":
        """The run waiting for the outputs of calls; it expires after `timeout`."""
        if self.state is not RunState.IN_PROGRESS:
            raise InternalError(request_id=f"{self.id} cannot wait: it is {self.state}")
        return replace(
            self,
            state=RunState.REQUIRES_ACTION,
            calls=tuple(calls),
            awaits_client=True,
            expires_at=now + timeout,
        )

    def submit_outputs(self, outputs: Sequence[ToolOutput]) -> "Run":
        """The run queued again; `outputs` must answer all its calls, in any order.

        Raises ToolOutputsNotAccepted or ToolOutputsIncomplete.
        """
        if self.state is not RunState.REQUIRES_ACTION:
            raise ToolOutputsNotAccepted(run=self.id, state=self.state.value)
        expected = [call.call_id for call in self.calls]
        submitted = [output.call_id for output in outputs]
        if sorted(expected) != sorted(submitted):
            raise ToolOutputsIncomplete(
                field="tool_outputs", expected=", ".join(expected), got=", ".join(submitted)
            )
        return replace(self, state=RunState.QUEUED, calls=(), awaits_client=False)

    def request_cancel(self) -> "Run":
        """The run in state cancelling, for its worker to end it. Raises RunNotCancellable."""
        if self.state.is_final:
            raise RunNotCancellable(run=self.id, state=self.state.value)
        return replace(self, state=RunState.CANCELLING, calls=())

    def end(self, end: RunEnd, now: datetime) -> "Run":
        """The run after its end; cancelled if it was cancelling."""
        if self.state.is_final or not end.state.is_final:
            raise InternalError(request_id=self.id)
        if self.state is RunState.CANCELLING:
            end = CANCELLED
        return replace(
            self,
            state=end.state,
            error=end.error,
            incomplete_reason=end.reason,
            ended_at=now,
            expires_at=None,
            calls=(),
        )

    def reopen(self) -> "Run":
        """The failed run, queued again. Its next turn has a new number, if it has had one."""
        num_turns = self.num_turns + (self.started_at is not None)
        return replace(self, state=RunState.QUEUED, error=None, ended_at=None, num_turns=num_turns)

    def is_overdue(self, now: datetime) -> bool:
        """Whether the run waits for outputs and its time is up."""
        return (
            self.state is RunState.REQUIRES_ACTION
            and self.expires_at is not None
            and self.expires_at <= now
        )


def to_run_error(error: DomainError) -> RunError:
    """Convert an error that ends a run."""
    code = ErrorCode.SERVER_ERROR
    if isinstance(error, InvalidArgument):
        code = ErrorCode.INVALID_PROMPT
    elif isinstance(error, ResourceExhausted):
        code = ErrorCode.RATE_LIMIT_EXCEEDED
    return RunError(code, error.message)
