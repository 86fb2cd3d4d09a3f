"""Responses: answers of a model that are kept, followed and continued. Pure rules.

    queued ──► in_progress ──► completed | incomplete | failed
      └────────────┴─────────► cancelled        by the caller, of background responses alone

A response goes on from another one (`previous_id`) or in a conversation. What was said before is
reached through that, and never copied: a response owns its own input and output alone.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

from control_svc.agent.model import NO_USAGE, add_usage
from control_svc.base.validation import check_metadata, check_request_id, check_text
from control_svc.inference.turns import TurnUsage
from control_svc.items.input_items import Include, InputItem
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
    OutOfRange,
    PreviousResponseUnfinished,
    ResponseNotCancellable,
    TooLong,
)

_INTRODUCTION: Final = "Summary of the conversation so far:\n\n"


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The decrypted content of a compaction item."""

    text: str
    replaces_all: bool
    """Whether it replaces everything before it; otherwise the items that the caller left stay."""
    kept: tuple[Item, ...] = ()
    """Items that follow the summary unchanged."""

    def shown(self, item: Item) -> list[Item]:
        """What the model sees in place of the compaction item."""
        said = Message(role=Role.USER, content=(Text(text=_INTRODUCTION + self.text),))
        return [item.with_content(said), *self.kept]


MAX_INPUT_ITEMS: Final = 4096
MAX_INSTRUCTIONS_CHARACTERS: Final = 1_048_576
SMALLEST_COMPACT_THRESHOLD: Final = 1000
_MAX_LABEL_CHARACTERS: Final = 512
_MAX_TIER_CHARACTERS: Final = 64
_MAX_CACHE_KEY_BYTES: Final = 256
SUMMARIES: Final = ("auto", "concise", "detailed")
VERBOSITIES: Final = ("low", "medium", "high")


class ResponseState(StrEnum):
    """How far a response has come; the words are OpenAI's."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    INCOMPLETE = "incomplete"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether nothing changes any more."""
        return self not in (ResponseState.QUEUED, ResponseState.IN_PROGRESS)


class Truncation(StrEnum):
    """What happens to a past that does not fit the model's context."""

    DISABLED = "disabled"
    """The response is refused."""
    AUTO = "auto"
    """The oldest items are left out."""


class IncompleteReason(StrEnum):
    """Why an answer was broken off."""

    MAX_OUTPUT_TOKENS = "max_output_tokens"


@dataclass(frozen=True)
class ResponseError:
    """Why a response failed."""

    code: str
    """OpenAI's error code."""
    message: str
    param: str = ""
    """The field of the request that it is about; empty: none."""
    reason: str = ""
    """The reason and metadata of the DomainError, which the caller gets again."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    is_refusal: bool = False
    """Whether the request was refused before the model began."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a response ended."""

    usage: TurnUsage | None = None
    """None: no model was called."""
    error: ResponseError | None = None
    incomplete_reason: IncompleteReason | None = None


@dataclass(frozen=True, kw_only=True)
class Work:
    """How much of a response is done, in turns that have ended."""

    num_turns: int = 0
    usage: TurnUsage = NO_USAGE
    summaries: TurnUsage = NO_USAGE
    """What summing up has cost: the response's usage counts it, no limit does."""
    num_hosted_calls: int = 0
    awaits_client: bool = False
    """As in `Progress`."""

    @property
    def cost(self) -> TurnUsage:
        """Everything."""
        return add_usage(self.usage, self.summaries)


@dataclass(frozen=True, kw_only=True)
class ResponseSettings:
    """What a caller may ask of a response beside its input."""

    model: str = ""
    """Empty: the inference service's first."""
    instructions: str | None = None
    tools: tuple[Tool, ...] = ()
    choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    format: ResponseFormat | None = None
    verbosity: str = ""
    effort: str = ""
    summary: str = ""
    is_reasoning_said: bool = False
    """Whether the caller spoke of reasoning at all."""
    truncation: Truncation = Truncation.DISABLED
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    compact_threshold: int | None = None
    options: bytes = b""
    """A serialised `corral.inference.v1.GenerationOptions`."""
    include: tuple[Include, ...] = ()
    background: bool = False
    store: bool = True
    metadata: Mapping[str, str] = field(default_factory=dict)
    prompt_cache_key: str = ""
    safety_identifier: str = ""
    service_tier: str = ""
    user: str = ""

    def check(self) -> None:
        """Raises MissingField, InvalidField, InvalidJson, OutOfRange, TooLong or
        UnsupportedValue."""
        self._check_texts()
        self._check_words()
        check_metadata(self.metadata)
        _check_at_least("max_output_tokens", self.max_output_tokens, 1)
        _check_at_least("max_tool_calls", self.max_tool_calls, 1)
        _check_at_least("compact_threshold", self.compact_threshold, SMALLEST_COMPACT_THRESHOLD)
        check_tools(self.tools)
        check_format(self.format, "text.format")
        if self.choice is not None:
            check_choice(self.choice, self.tools)
        check_enforceable(self.tools, self.choice, self.format)
        check_effort(self.effort, "reasoning.effort")
        if self.background and not self.store:
            raise InvalidField(field="background", problem="it needs a response that is stored")

    def _check_texts(self) -> None:
        if len(self.instructions or "") > MAX_INSTRUCTIONS_CHARACTERS:
            raise TooLong(
                field="instructions",
                length=len(self.instructions or ""),
                limit=MAX_INSTRUCTIONS_CHARACTERS,
                unit="characters",
            )
        for name, limit in (
            ("model", _MAX_LABEL_CHARACTERS),
            ("safety_identifier", _MAX_LABEL_CHARACTERS),
            ("user", _MAX_LABEL_CHARACTERS),
            ("service_tier", _MAX_TIER_CHARACTERS),
        ):
            if text := getattr(self, name):
                check_text(name, text, limit)
        size = len(self.prompt_cache_key.encode())
        if size > _MAX_CACHE_KEY_BYTES:
            raise TooLong(
                field="prompt_cache_key", length=size, limit=_MAX_CACHE_KEY_BYTES, unit="bytes"
            )

    def _check_words(self) -> None:
        for name, word, words in (
            ("reasoning.summary", self.summary, SUMMARIES),
            ("verbosity", self.verbosity, VERBOSITIES),
        ):
            if word and word not in words:
                raise InvalidField(field=name, problem=f"it is none of {', '.join(words)}")


def _check_at_least(name: str, value: int | None, minimum: int) -> None:
    if value is not None and value < minimum:
        raise OutOfRange(field=name, value=value, minimum=minimum)


@dataclass(frozen=True, kw_only=True)
class NewResponse:
    """What a response is made from."""

    settings: ResponseSettings
    input: tuple[InputItem, ...] = ()
    previous_id: str = ""
    conversation_id: str = ""
    request_id: str = ""

    def check(self) -> None:
        """Raises MissingField, InvalidField, OutOfRange or TooLong."""
        self.settings.check()
        check_request_id(self.request_id)
        if self.previous_id and self.conversation_id:
            raise InvalidField(
                field="previous_response_id", problem="it cannot stand beside a conversation"
            )
        if not (self.input or self.previous_id or self.conversation_id):
            raise MissingField(field="input")
        if len(self.input) > MAX_INPUT_ITEMS:
            raise TooLong(field="input", length=len(self.input), limit=MAX_INPUT_ITEMS)
        for index, item in enumerate(self.input):
            item.check(f"input[{index}]")
        if self.conversation_id and not self.settings.store:
            raise InvalidField(field="store", problem="a conversation keeps what is said in it")
        if self.request_id and not self.settings.store:
            raise InvalidField(field="request_id", problem="nothing is remembered without store")


@dataclass(frozen=True, kw_only=True)
class Response:
    """A response; its items are in its timeline, and the events of it in its stream."""

    id: str
    state: ResponseState
    created_at: datetime
    completed_at: datetime | None = None
    expires_at: datetime | None = None
    settings: ResponseSettings
    """As asked."""
    model: str
    """That answers."""
    options: bytes
    """`settings.options` with the model's default sampling."""
    seed: int
    """The seed, so that another process can resume."""
    previous_id: str = ""
    conversation_id: str = ""
    conversation_end: int = 0
    """The position in the conversation at which the response started."""
    context_start: str = ""
    """The item with which the model's view of the past begins. Empty: it sees all of it."""
    is_compacted: bool = False
    """Whether its own items hold everything that the model has to know of the past."""
    work: Work = Work()
    ended: Ended = Ended()
    output: tuple[Item, ...] = ()
    """Once it has ended. Not in the row: it is in the timeline."""

    def started(self) -> "Response":
        """The response once the model computes."""
        return replace(self, state=ResponseState.IN_PROGRESS)

    def completed(self, usage: TurnUsage, now: datetime) -> "Response":
        """The model has answered, or calls the caller's tools."""
        return replace(
            self, state=ResponseState.COMPLETED, completed_at=now, ended=Ended(usage=usage)
        )

    def broken_off(self, usage: TurnUsage, reason: IncompleteReason) -> "Response":
        """The answer reached a limit."""
        ended = Ended(usage=usage, incomplete_reason=reason)
        return replace(self, state=ResponseState.INCOMPLETE, ended=ended)

    def failed(self, usage: TurnUsage | None, error: ResponseError) -> "Response":
        """It ended with an error."""
        return replace(self, state=ResponseState.FAILED, ended=Ended(usage=usage, error=error))

    def cancelled(self, usage: TurnUsage | None) -> "Response":
        """It was given up."""
        return replace(self, state=ResponseState.CANCELLED, ended=Ended(usage=usage))

    def including(self, include: Collection[Include]) -> "Response":
        """The response with other `include` values."""
        wanted = tuple(sorted({*self.settings.include, *include}))
        return replace(self, settings=replace(self.settings, include=wanted))

    def check_cancellable(self) -> None:
        """Raises ResponseNotCancellable."""
        if not self.settings.background:
            raise ResponseNotCancellable(response=self.id)

    def check_can_be_followed(self) -> None:
        """Validate that it can be continued. Raises PreviousResponseUnfinished."""
        if not self.state.is_final:
            raise PreviousResponseUnfinished(response=self.id, state=self.state.value)


@dataclass(frozen=True)
class Link:
    """A response of a chain, with its own items."""

    id: str
    previous_id: str
    conversation_id: str
    conversation_end: int
    is_compacted: bool
    items: Sequence[TimelineItem]

    @property
    def archive_name(self) -> str:
        """What a chain that begins here is archived for.

        One name for all of it: a longer state then takes the place of the shorter ones, where names
        of each response's own would keep them all; and whichever response is deleted, all states
        that hold its text are found.
        """
        return self.conversation_id or self.id


class Expired(NamedTuple):
    """A response whose time has come."""

    project: str
    id: str
    is_start: bool
    """Whether a chain began with it, and no conversation before."""
