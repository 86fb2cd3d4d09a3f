"""Requests, events and the client interface of a turn, which is one call of a model.

Messages are chat messages; `agent/prompt.py` converts items to them.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from corral.inference.v1.inference_service_pb2 import ChatDelta

from control_svc.inference.generation_options import NO_OPTIONS, GenerationOptions
from control_svc.jobs.model import JobPriority


class ChoiceMode(StrEnum):
    """Whether the model may or must call tools."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


class TurnRole(StrEnum):
    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class TextPart(NamedTuple):
    text: str


class RefusalPart(NamedTuple):
    text: str


class ImagePart(NamedTuple):
    """An image, in one of two places. It is read when the turn is sent."""

    field: str
    """The part in errors, such as "input[0].content[1]"."""
    url: str = ""
    """A data URL, or an address that the inference service fetches."""
    file_id: str = ""
    """A file of the project; empty for `url`."""
    detail: str = ""
    """"auto", "low" or "high"; empty for "auto"."""


class DocumentPart(NamedTuple):
    """A PDF, a text file or an image, in one of two places. It is read when the turn is sent."""

    field: str
    """The part in errors."""
    data: str = ""
    """A data URL, base64 alone, or an address that the inference service fetches."""
    file_id: str = ""
    """A file of the project; empty for `data`."""
    filename: str = ""
    """The model reads it. Empty for the name of the file."""


TurnPart = TextPart | RefusalPart | ImagePart | DocumentPart


class TurnCall(NamedTuple):
    """A tool call of an assistant message."""

    id: str
    name: str
    arguments: str
    """JSON text, as the model wrote it."""


@dataclass(frozen=True, slots=True)
class TurnMessage:
    role: TurnRole
    parts: tuple[TurnPart, ...] = ()
    calls: tuple[TurnCall, ...] = ()
    call_id: str = ""
    """For a tool message: the call that it answers."""
    name: str = ""
    """Name of the participant or the tool; empty for none."""
    reasoning: str = ""
    """For an assistant message: its reasoning; may be empty."""


class TurnTool(NamedTuple):
    """A function that the model may call."""

    name: str
    description: str = ""
    parameters: str = ""
    """JSON Schema of the arguments as JSON text; empty for a function without arguments."""
    strict: bool | None = None
    field: str = ""
    """The tool in errors, such as "tools[1]"; empty for one of the service's own."""
    grammar_field: str = ""
    """The field of the caller's grammar that the schema enforces; empty without one."""


@dataclass(frozen=True, slots=True)
class TurnChoice:
    """The `tool_choice` of a turn."""

    mode: ChoiceMode | None = None
    """None means automatic if there are tools."""
    allowed: tuple[str, ...] = ()
    """Names of the allowed tools; empty allows all."""
    parallel: bool | None = None
    """Whether several calls are allowed; None allows them."""


DEFAULT_CHOICE: Final = TurnChoice()


class JsonObject(NamedTuple):
    """The answer is any JSON object."""


class JsonSchema(NamedTuple):
    """The answer is JSON that matches a schema."""

    schema: str
    """JSON text."""


TurnFormat = JsonObject | JsonSchema


@dataclass(frozen=True, kw_only=True)
class TurnRequest:
    project: str
    """Project on whose behalf the call is made."""
    model: str
    """Empty for the first model of the inference service."""
    messages: tuple[TurnMessage, ...]
    tools: tuple[TurnTool, ...] = ()
    choice: TurnChoice = DEFAULT_CHOICE
    format: TurnFormat | None = None
    """None for the format in `options`, by default free text."""
    options: GenerationOptions = NO_OPTIONS
    max_tokens: int | None = None
    """Limit of the answer, including `token_ids`; None for the limit in `options`."""
    enable_thinking: bool | None = None
    """Whether the model reasons first; None leaves it to the effort."""
    effort: str = ""
    """How much it reasons, in OpenAI's terms; empty leaves it to the chat template."""
    seed: int
    """A resumed turn has the seed of its first attempt."""
    token_ids: tuple[int, ...] = ()
    """Tokens sampled by earlier attempts; empty for the first attempt."""
    held_logprobs: tuple[bytes, ...] = ()
    """Those that were held back behind these tokens (`ChatDelta.held_logprobs`), serialized."""
    priority: JobPriority = JobPriority.INTERACTIVE
    label: str = ""
    """The id of the object, for the logs of the inference service."""
    keep_for: str = ""
    """Id of the stored object that the turn belongs to. The inference service may store the prefix
    for further turns of the object. Empty to store nothing."""


class Started(NamedTuple):
    """The first event: prompt processing has started."""

    model: str
    """The name of the model that answers."""
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that were found in the prefix cache."""
    ignored: tuple[str, ...] = ()
    """Fields that are not, or not wholly, enforced, by OpenAI's names in chat requests."""


class FinishReason(StrEnum):
    """Why a turn ended."""

    STOP = "stop"
    LENGTH = "length"
    """The token limit or the context length of the model is reached."""
    TOOL_CALLS = "tool_calls"


class TurnUsage(NamedTuple):
    """Tokens of a turn over all its attempts, each counted once."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    """Completion tokens that are reasoning."""


TurnEvent = Started | ChatDelta | FinishReason | TurnUsage
"""The text of a token may arrive in a later `ChatDelta` than its id."""


class TurnClient(Protocol):
    def run(self, request: TurnRequest) -> AsyncGenerator[TurnEvent, None]:
        """Run a turn and yield Started, any number of ChatDelta, FinishReason and TurnUsage.

        Closing the generator cancels the turn. Raises errors of the request; ResourceExhausted,
        Unavailable or Aborted, which can be retried; and `EngineDied` (`jobs.model`) if an engine
        died while it computed the turn.
        """
