"""Requests, events and the client interface of a turn: one call of a model.

Messages are those of chat, not items; `agent/prompt.py` converts.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from control_svc.jobs.model import JobPriority


class ChoiceMode(StrEnum):
    """Whether tools are called."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


class TurnRole(StrEnum):
    """The role of a message."""

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class TextPart(NamedTuple):
    """Text of a message."""

    text: str


class RefusalPart(NamedTuple):
    """An assistant's refusal."""

    text: str


class ImagePart(NamedTuple):
    """A picture."""

    data: bytes
    media_type: str
    detail: str = "auto"
    """"auto", "low" or "high"."""


class AudioPart(NamedTuple):
    """A sound."""

    data: bytes
    media_type: str


TurnPart = TextPart | RefusalPart | ImagePart | AudioPart


class TurnCall(NamedTuple):
    """A call that an assistant's message made."""

    id: str
    name: str
    arguments: str
    """JSON text, as the model wrote it."""


@dataclass(frozen=True, slots=True)
class TurnMessage:
    """A message of the conversation."""

    role: TurnRole
    parts: tuple[TurnPart, ...] = ()
    calls: tuple[TurnCall, ...] = ()
    call_id: str = ""
    """The call that a tool's message answers."""
    name: str = ""
    """The speaker's or the tool's. Empty: none."""
    reasoning: str = ""
    """The reasoning of an assistant; may be empty."""


class TurnTool(NamedTuple):
    """A function that the model may call."""

    name: str
    description: str = ""
    parameters: str = ""
    """The JSON Schema of its arguments, as JSON text. Empty: it has none."""
    strict: bool | None = None


@dataclass(frozen=True, slots=True)
class TurnChoice:
    """Which tools are called."""

    mode: ChoiceMode | None = None
    """None: automatic where there are tools."""
    allowed: tuple[str, ...] = ()
    """Only these. Empty: all."""
    parallel: bool | None = None
    """Whether there may be several calls. None: there may."""


DEFAULT_CHOICE: Final = TurnChoice()


class JsonObject(NamedTuple):
    """The answer is a JSON object, whichever."""


class JsonSchema(NamedTuple):
    """The answer is JSON by a schema."""

    schema: str
    """JSON text."""


TurnFormat = JsonObject | JsonSchema


@dataclass(frozen=True, kw_only=True)
class TurnRequest:
    """One call of a model."""

    project: str
    """On whose behalf it is made."""
    model: str
    """Empty: the inference service's first."""
    messages: tuple[TurnMessage, ...]
    tools: tuple[TurnTool, ...] = ()
    choice: TurnChoice = DEFAULT_CHOICE
    format: TurnFormat | None = None
    """None means the format of `options`, free text by default."""
    options: bytes = b""
    """A serialised `corral.inference.v1.GenerationOptions`. Empty: the model's defaults."""
    max_tokens: int | None = None
    """Limits the answer, including tokens before an interruption. None means that of `options`."""
    enable_thinking: bool | None = None
    """Asks for, or against, a phase of thinking. None: the model's template decides."""
    template_values: str = ""
    """Further values for the template, as the JSON text of an object. Empty: none."""
    seed: int
    """The seed; an interrupted turn continues with its own."""
    token_ids: tuple[int, ...] = ()
    """What the turn had sampled before it was interrupted. Empty: it begins."""
    priority: JobPriority = JobPriority.INTERACTIVE
    label: str = ""
    """The id of the object, for the logs of the inference service."""
    keep_for: str = ""
    """The stored object that this is a part of, whose past and future turns begin alike: what is
    computed may be archived for it. Empty: nothing of the turn is kept."""


class Started(NamedTuple):
    """The first event: the model computes."""

    model: str
    """The name of the model that answers."""
    prompt_tokens: int
    cached_tokens: int
    """Those of the prompt that need not be computed."""


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The next piece of a tool call."""

    index: int
    """The call's place in the turn."""
    id: str
    """Empty but in the first piece, as the name is."""
    name: str
    arguments: str


class LikelyToken(NamedTuple):
    """A token and its natural log probability before sampling filters."""

    token: bytes
    logprob: float


class TokenLogprob(NamedTuple):
    """A sampled token's probability, and the most probable ones, best first."""

    chosen: LikelyToken
    top: tuple[LikelyToken, ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """What the turn gained. Some tokens come before their text, which may be held back."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCallDelta, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    """Of these tokens, where asked for."""


class FinishReason(StrEnum):
    """Why a turn ended."""

    STOP = "stop"
    LENGTH = "length"
    """The limit of tokens, or the model's context."""
    TOOL_CALLS = "tool_calls"


class Finished(NamedTuple):
    """The answer is complete."""

    reason: FinishReason


class TurnUsage(NamedTuple):
    """The tokens of a turn, with those before it was interrupted, each counted once."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    """Those of the completion that were reasoning."""


class Done(NamedTuple):
    """The last event."""

    usage: TurnUsage


TurnEvent = Started | Delta | Finished | Done


class TurnClient(Protocol):
    """Calls models."""

    def run(self, request: TurnRequest) -> AsyncGenerator[TurnEvent, None]:
        """The events of a turn: Started, any number of Delta, Finished, Done.

        Closed early, also by a cancellation, it is cancelled at the inference service. Raises what
        the service answers: errors of the request, and what another try may end better:
        ResourceExhausted, Unavailable, Aborted. `EngineDied` (`domain.jobs`) where an engine ended
        while it computed the turn.
        """
