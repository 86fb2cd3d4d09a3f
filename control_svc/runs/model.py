"""Runs: an assistant at work on a thread, and the states it goes through.

    queued ──► in_progress ──► completed, incomplete, failed
      ▲           │    ▲
      │           ▼    │ cancelling ──► cancelled       (from queued and in_progress)
      └── requires_action ──► expired, cancelled

Whoever changes a run holds its row, so of two ends the first one is what happened. All transitions
are pure functions from a run to the next one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from control_svc.agent.model import NO_USAGE, TurnResult, add_usage
from control_svc.assistants.message_model import NewMessage
from control_svc.assistants.model import AssistantSettings, check_assistant_tools, check_length
from control_svc.base.validation import check_metadata, check_request_id, check_text
from control_svc.inference.turns import TurnUsage
from control_svc.items.model import FunctionCall
from control_svc.tools.model import ResponseFormat, Tool, ToolChoice, ToolResources
from control_svc.tools.tool_validation import check_choice, check_effort, check_format
from svc_kit.errors import (
    DomainError,
    InternalError,
    InvalidArgument,
    OutOfRange,
    ResourceExhausted,
    RunNotCancellable,
    TooLong,
    ToolOutputsIncomplete,
    ToolOutputsNotAccepted,
)

MAX_INSTRUCTIONS_CHARACTERS: Final = 256_000
MAX_ADDITIONAL_MESSAGES: Final = 1000
MAX_TOOLS: Final = 20
LEAST_TOKENS: Final = 256
MAX_OUTPUT_CHARACTERS: Final = 512_000


class RunState(StrEnum):
    """Where a run is, in OpenAI's words."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    REQUIRES_ACTION = "requires_action"
    """It waits for the outputs of the client's functions."""
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    FAILED = "failed"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    EXPIRED = "expired"

    @property
    def is_final(self) -> bool:
        """Whether it stays so."""
        return self in _FINAL

    @property
    def is_followed(self) -> bool:
        """Whether more events follow without an action of the client."""
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
    """Why a run failed, in OpenAI's words."""

    SERVER_ERROR = "server_error"
    RATE_LIMIT_EXCEEDED = "rate_limit_exceeded"
    INVALID_PROMPT = "invalid_prompt"


class RunError(NamedTuple):
    """Why a run failed."""

    code: ErrorCode
    message: str


class IncompleteReason(StrEnum):
    """Which limit ended a run."""

    MAX_COMPLETION_TOKENS = "max_completion_tokens"
    MAX_PROMPT_TOKENS = "max_prompt_tokens"


@dataclass(frozen=True, kw_only=True)
class Truncation:
    """Which of the thread's messages the model is shown."""

    last_messages: int | None = None
    """So many, the last ones; None: all, and fewer once the model's context is full ("auto")."""


AUTO: Final = Truncation()
ANY_CHOICE: Final = ToolChoice()
NO_RESOURCES: Final = ToolResources()


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What a run does, as it was when it was created: its assistant may change meanwhile."""

    model: str
    instructions: str = ""
    tools: tuple[Tool, ...] = ()
    resources: ToolResources = NO_RESOURCES
    options: bytes = b""
    format: ResponseFormat | None = None
    reasoning_effort: str = ""
    choice: ToolChoice = ANY_CHOICE
    parallel_calls: bool = True
    truncation: Truncation = AUTO
    max_prompt_tokens: int | None = None
    max_completion_tokens: int | None = None
    seed: int
    """The seed; a resumed run continues with it."""


@dataclass(frozen=True, kw_only=True)
class NewRun:
    """The request to create a run. None and empty texts mean the assistant's settings."""

    assistant_id: str
    model: str = ""
    instructions: str | None = None
    additional_instructions: str = ""
    additional_messages: tuple[NewMessage, ...] = ()
    tools: tuple[Tool, ...] | None = None
    resources: ToolResources | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    options: bytes = b""
    format: ResponseFormat | None = None
    reasoning_effort: str = ""
    choice: ToolChoice = ANY_CHOICE
    parallel_calls: bool = True
    truncation: Truncation = AUTO
    max_prompt_tokens: int | None = None
    max_completion_tokens: int | None = None
    request_id: str = ""

    def check(self) -> None:
        """Raises MissingField, TooLong, InvalidField, InvalidJson, OutOfRange or
        UnsupportedValue."""
        check_text("assistant_id", self.assistant_id)
        if self.model:
            check_text("model", self.model)
        for name, text in (
            ("instructions", self.instructions or ""),
            ("additional_instructions", self.additional_instructions),
        ):
            check_length(name, text, MAX_INSTRUCTIONS_CHARACTERS)
        check_assistant_tools(self.tools or (), MAX_TOOLS)
        check_metadata(self.metadata)
        check_format(self.format)
        check_effort(self.reasoning_effort)
        _check_least("truncation_strategy.last_messages", self.truncation.last_messages, 1)
        _check_least("max_prompt_tokens", self.max_prompt_tokens, LEAST_TOKENS)
        _check_least("max_completion_tokens", self.max_completion_tokens, LEAST_TOKENS)
        if len(self.additional_messages) > MAX_ADDITIONAL_MESSAGES:
            raise TooLong(
                field="additional_messages",
                length=len(self.additional_messages),
                limit=MAX_ADDITIONAL_MESSAGES,
            )
        for index, message in enumerate(self.additional_messages):
            message.check(f"additional_messages[{index}].")
        check_request_id(self.request_id)

    def settings(
        self, assistant: AssistantSettings, thread: ToolResources, seed: int
    ) -> RunSettings:
        """The settings of the run: the assistant's, overridden by the request. Raises InvalidField
        for the choice of an unknown tool.
        """
        tools = assistant.tools if self.tools is None else self.tools
        check_choice(self.choice, tools)
        own = assistant.resources if self.resources is None else self.resources
        stores = dict.fromkeys((*own.vector_store_ids, *thread.vector_store_ids))
        instructions = assistant.instructions if self.instructions is None else self.instructions
        texts = (instructions, self.additional_instructions)
        return RunSettings(
            model=self.model or assistant.model,
            instructions="\n\n".join(text for text in texts if text),
            tools=tools,
            resources=ToolResources(vector_store_ids=tuple(stores)),
            # Serialised messages put one behind the other are one laid over the other.
            options=assistant.options + self.options,
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
    """What a function of the client's gave."""

    call_id: str
    output: str


def check_outputs(outputs: Sequence[ToolOutput]) -> None:
    """Raises TooLong."""
    for index, given in enumerate(outputs):
        check_length(f"tool_outputs[{index}].output", given.output, MAX_OUTPUT_CHARACTERS)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run."""

    id: str
    thread_id: str
    assistant_id: str
    settings: RunSettings
    metadata: Mapping[str, str] = field(default_factory=dict)
    state: RunState = RunState.QUEUED
    created_at: datetime
    # what has become of it
    expires_at: datetime | None
    """When it expires, if it waits for outputs then; None once it has ended."""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    error: RunError | None = None
    incomplete_reason: IncompleteReason | None = None
    calls: tuple[FunctionCall, ...] = ()
    """Those whose outputs it waits for."""
    # how far the work is
    first_position: int | None = None
    """Where in the thread's timeline begins what the model is shown, for a run that names a number
    of messages or was cut by a limit of its own, as perhaps the run before; None: at the thread's
    cut."""
    num_turns: int = 0
    num_hosted_calls: int = 0
    awaits_client: bool = False
    usage: TurnUsage = NO_USAGE

    def started(self, now: datetime) -> "Run":
        """The run once a worker has it."""
        if self.state is not RunState.QUEUED:
            return self
        return replace(self, state=RunState.IN_PROGRESS, started_at=self.started_at or now)

    def placed(self, first_position: int | None) -> "Run":
        """The run once it is known where its view of the thread begins."""
        return replace(self, first_position=first_position)

    def after(self, turn: TurnResult, *, awaits_client: bool = False) -> "Run":
        """The run with a turn that has ended, which is counted once: here."""
        return replace(
            self,
            num_turns=turn.number + 1,
            num_hosted_calls=self.num_hosted_calls + turn.num_hosted_calls,
            usage=add_usage(self.usage, turn.usage),
            awaits_client=awaits_client,
        )

    def broken_off(self, usage: TurnUsage) -> "Run":
        """The run with what is known of the tokens of a turn that failed; no turn follows it."""
        return replace(self, usage=add_usage(self.usage, usage))

    def waiting(self, calls: Sequence[FunctionCall], now: datetime, wait: timedelta) -> "Run":
        """The run once the client has to do something, for which it has `wait`."""
        self._check_working("wait")
        return replace(
            self,
            state=RunState.REQUIRES_ACTION,
            calls=tuple(calls),
            awaits_client=True,
            expires_at=now + wait,
        )

    def answered(self, outputs: Sequence[ToolOutput]) -> "Run":
        """The run with the outputs it waited for: all of them, in any order.

        Raises ToolOutputsNotAccepted or ToolOutputsIncomplete.
        """
        if self.state is not RunState.REQUIRES_ACTION:
            raise ToolOutputsNotAccepted(run=self.id, state=self.state.value)
        expected = [call.call_id for call in self.calls]
        got = [output.call_id for output in outputs]
        if sorted(expected) != sorted(got):
            raise ToolOutputsIncomplete(
                field="tool_outputs", expected=_listed(expected), got=_listed(got)
            )
        return replace(self, state=RunState.QUEUED, calls=(), awaits_client=False)

    def cancelling(self) -> "Run":
        """The run with the wish that it ends; who works on it ends it. Raises RunNotCancellable."""
        if self.state.is_final:
            raise RunNotCancellable(run=self.id, state=self.state.value)
        return replace(self, state=RunState.CANCELLING, calls=())

    def ended(self, state: RunState, now: datetime) -> "Run":
        """The run at its end. One that was to be cancelled is cancelled, whatever it came to."""
        if self.state.is_final or not state.is_final:
            raise InternalError(request_id=self.id)
        is_cancelled = self.state is RunState.CANCELLING
        return replace(
            self,
            state=RunState.CANCELLED if is_cancelled else state,
            ended_at=now,
            expires_at=None,
            calls=(),
        )

    def failed(self, error: RunError, now: datetime) -> "Run":
        """The run after a failure."""
        ended = self.ended(RunState.FAILED, now)
        return replace(ended, error=error) if ended.state is RunState.FAILED else ended

    def incomplete(self, reason: IncompleteReason, now: datetime) -> "Run":
        """The run at a limit."""
        ended = self.ended(RunState.INCOMPLETE, now)
        is_so = ended.state is RunState.INCOMPLETE
        return replace(ended, incomplete_reason=reason) if is_so else ended

    def is_overdue(self, now: datetime) -> bool:
        """Whether it has waited for outputs for too long."""
        return (
            self.state is RunState.REQUIRES_ACTION
            and self.expires_at is not None
            and self.expires_at <= now
        )

    def _check_working(self, what: str) -> None:
        if self.state is not RunState.IN_PROGRESS:
            raise InternalError(request_id=f"{self.id} cannot {what}: it is {self.state}")


def run_error_of(error: DomainError) -> RunError:
    """An error that ends a run, in OpenAI's words."""
    code = ErrorCode.SERVER_ERROR
    if isinstance(error, InvalidArgument):
        code = ErrorCode.INVALID_PROMPT
    elif isinstance(error, ResourceExhausted):
        code = ErrorCode.RATE_LIMIT_EXCEEDED
    return RunError(code, error.message)


def _check_least(name: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise OutOfRange(field=name, value=value, minimum=least)


def _listed(call_ids: Sequence[str]) -> str:
    return ", ".join(call_ids)
