"""Responses: their states, settings and validation, without I/O.

    queued ──► in_progress ──► completed | incomplete | failed
      └────────────┴─────────► cancelled        on request, background responses only

A response continues another one (`previous_id`) or a conversation. Earlier items are referenced,
never copied: a response owns only its own input and output.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

from control_svc.agent.model import NO_WORK, Work
from control_svc.inference.generation_options import NO_OPTIONS, GenerationOptions
from control_svc.inference.turns import TurnUsage
from control_svc.items.input_items import Include, InputItem, check_items
from control_svc.items.model import Item, Message, Role, Text, TimelineItem
from control_svc.tools.model import ResponseFormat, Tool, ToolChoice
from control_svc.tools.tool_validation import (
    check_choice,
    check_effort,
    check_enforceable,
    check_format,
    check_tools,
)
from svc_kit.errors import (
    InvalidField,
    MissingField,
    PreviousResponseUnfinished,
    ResponseNotCancellable,
)

_SUMMARY_PREFIX: Final = "Summary of the conversation so far:\n\n"


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The decrypted content of a compaction item."""

    text: str
    replaces_all: bool
    """Whether it replaces all items before it. If not, the client has removed what it replaces."""
    kept: tuple[Item, ...] = ()
    """Items that follow the summary."""

    def expand(self, item: Item) -> list[Item]:
        """Return the items that replace the compaction item in prompts."""
        message = Message(role=Role.USER, content=(Text(text=_SUMMARY_PREFIX + self.text),))
        return [item.with_content(message), *self.kept]


SUMMARIES: Final = ("auto", "concise", "detailed")
VERBOSITIES: Final = ("low", "medium", "high")


class ResponseState(StrEnum):
    """OpenAI's status of a response."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    INCOMPLETE = "incomplete"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether the response has ended."""
        return self not in (ResponseState.QUEUED, ResponseState.IN_PROGRESS)


class Truncation(StrEnum):
    """How to handle a history that exceeds the context length of the model."""

    DISABLED = "disabled"
    """Reject the response."""
    AUTO = "auto"
    """Leave out the oldest items."""


class IncompleteReason(StrEnum):
    """Why an answer is incomplete."""

    MAX_OUTPUT_TOKENS = "max_output_tokens"


@dataclass(frozen=True)
class ResponseError:
    """Why a response failed."""

    code: str
    """OpenAI's error code."""
    message: str
    param: str = ""
    """Field of the request; empty for none."""
    reason: str = ""
    """Like `metadata`: of the DomainError, to raise it again for the client."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    is_refusal: bool = False
    """Whether the request was rejected before the model started."""


@dataclass(frozen=True, kw_only=True)
class ResponseResult:
    """The result of a response that has ended."""

    usage: TurnUsage | None = None
    """None if no model was called."""
    error: ResponseError | None = None
    incomplete_reason: IncompleteReason | None = None


@dataclass(frozen=True, kw_only=True)
class ResponseSettings:
    """The parameters of a response, without its input."""

    model: str = ""
    """Empty for the first model of the inference service."""
    instructions: str | None = None
    tools: tuple[Tool, ...] = ()
    choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    format: ResponseFormat | None = None
    verbosity: str = ""
    effort: str = ""
    summary: str = ""
    is_reasoning_said: bool = False
    """Whether the request has a `reasoning` field."""
    truncation: Truncation = Truncation.DISABLED
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    compact_threshold: int | None = None
    options: GenerationOptions = NO_OPTIONS
    include: tuple[Include, ...] = ()
    background: bool = False
    store: bool = True
    metadata: Mapping[str, str] = field(default_factory=dict)
    prompt_cache_key: str = ""
    safety_identifier: str = ""
    service_tier: str = ""
    user: str = ""

    def check(self) -> None:
        """Validate all settings.

        Raises MissingField, InvalidField, InvalidJson, OutOfRange, TooLong or UnsupportedValue.
        """
        self._check_choices()
        check_tools(self.tools)
        check_format(self.format, "text.format")
        if self.choice is not None:
            check_choice(self.choice, self.tools)
        check_enforceable(self.tools, self.choice, self.format)
        check_effort(self.effort, "reasoning.effort")
        if self.background and not self.store:
            raise InvalidField(field="background", problem="requires 'store': true")

    def _check_choices(self) -> None:
        for name, value, choices in (
            ("reasoning.summary", self.summary, SUMMARIES),
            ("verbosity", self.verbosity, VERBOSITIES),
        ):
            if value and value not in choices:
                raise InvalidField(field=name, problem=f"must be one of {', '.join(choices)}")


@dataclass(frozen=True, kw_only=True)
class NewResponse:
    settings: ResponseSettings
    input: tuple[InputItem, ...] = ()
    previous_id: str = ""
    conversation_id: str = ""
    request_id: str = ""

    def check(self) -> None:
        """Validate all fields.

        Raises MissingField, InvalidField, InvalidJson, OutOfRange, TooLong or UnsupportedValue.
        """
        self.settings.check()
        if self.previous_id and self.conversation_id:
            problem = "cannot be combined with a conversation"
            raise InvalidField(field="previous_response_id", problem=problem)
        if not (self.input or self.previous_id or self.conversation_id):
            raise MissingField(field="input")
        check_items(self.input, "input")
        if self.conversation_id and not self.settings.store:
            raise InvalidField(field="store", problem="must be true with a conversation")
        if self.request_id and not self.settings.store:
            raise InvalidField(field="request_id", problem="requires 'store': true")


@dataclass(frozen=True, kw_only=True)
class Response:
    """A response. Its items are in its timeline, its events in its stream."""

    id: str
    state: ResponseState
    created_at: datetime
    completed_at: datetime | None = None
    expires_at: datetime | None = None
    settings: ResponseSettings
    """As requested."""
    model: str
    """The served model."""
    options: GenerationOptions
    """`settings.options` with default sampling of the model."""
    seed: int
    """Stored so that another process can resume."""
    previous_id: str = ""
    conversation_id: str = ""
    conversation_end: int = 0
    """The position in the conversation at which the response started."""
    context_start: str = ""
    """Id of the first item in prompts, after truncation; empty for all items."""
    is_compacted: bool = False
    """Whether its own items replace the history, by a summary."""
    ignored_parameters: tuple[str, ...] = ()
    """See `Started.ignored`."""
    work: Work = NO_WORK
    result: ResponseResult = ResponseResult()
    output: tuple[Item, ...] = ()
    """Set once the response has ended. Stored in the timeline, not in the row."""

    def start(self) -> "Response":
        return replace(self, state=ResponseState.IN_PROGRESS)

    def complete(self, usage: TurnUsage, now: datetime) -> "Response":
        """Return the response after an answer or calls of client tools."""
        result = ResponseResult(usage=usage)
        return replace(self, state=ResponseState.COMPLETED, completed_at=now, result=result)

    def reach_limit(self, usage: TurnUsage, reason: IncompleteReason) -> "Response":
        result = ResponseResult(usage=usage, incomplete_reason=reason)
        return replace(self, state=ResponseState.INCOMPLETE, result=result)

    def fail(self, usage: TurnUsage | None, error: ResponseError) -> "Response":
        result = ResponseResult(usage=usage, error=error)
        return replace(self, state=ResponseState.FAILED, result=result)

    def reopen(self) -> "Response":
        """Return the failed response, queued again."""
        return replace(self, state=ResponseState.QUEUED, result=ResponseResult())

    def cancel(self, usage: TurnUsage | None) -> "Response":
        return replace(self, state=ResponseState.CANCELLED, result=ResponseResult(usage=usage))

    def add_include(self, include: Collection[Include]) -> "Response":
        """Return the response with further `include` values."""
        values = tuple(sorted({*self.settings.include, *include}))
        return replace(self, settings=replace(self.settings, include=values))

    def check_cancellable(self) -> None:
        """Raise ResponseNotCancellable unless this is a background response."""
        if not self.settings.background:
            raise ResponseNotCancellable(response=self.id)

    def check_final(self) -> None:
        """Raise PreviousResponseUnfinished unless the response has ended and can be continued."""
        if not self.state.is_final:
            raise PreviousResponseUnfinished(response=self.id, state=self.state.value)


@dataclass(frozen=True)
class ChainLink:
    """A response of a chain, with its own items."""

    id: str
    previous_id: str
    conversation_id: str
    conversation_end: int
    is_compacted: bool
    items: Sequence[TimelineItem]

    @property
    def object_id(self) -> str:
        """`TurnRequest.keep_for` of all responses of a chain whose first link this is.

        With one id per chain, a longer stored prefix replaces the shorter ones, and the deletion of
        any response finds all prefixes that contain its text.
        """
        return self.conversation_id or self.id


class ExpiredResponse(NamedTuple):
    project: str
    id: str
    is_start: bool
    """Whether a chain starts with it, without a conversation before."""
