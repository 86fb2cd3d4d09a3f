"""Settings, progress and results of the agent loop, and its two interfaces: `Context`, which
returns the items to show the model, and `Recorder`, which stores what happens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from control_svc.agent.drafts import Draft, DraftEvent
from control_svc.inference.turns import Started, TurnRequest, TurnTool, TurnUsage
from control_svc.items.model import Content, Item
from control_svc.jobs.model import JobPriority
from control_svc.tools.model import ResponseFormat, Tool, ToolChoice
from svc_kit.errors import ContextLengthExceeded

NO_USAGE: Final = TurnUsage(0, 0, 0, 0)
ANY_CHOICE: Final = ToolChoice()
PLAIN_TEXT: Final = ResponseFormat()
PROMPT_LIMIT: Final = "max_prompt_tokens"
"""What a prompt beyond `LoopLimits.prompt_tokens` is refused by."""


@dataclass(frozen=True, kw_only=True)
class LoopLimits:
    """Limits that end the loop; None means no limit."""

    completion_tokens: int | None = None
    """Over all turns."""
    prompt_tokens: int | None = None
    """Over all turns."""
    hosted_calls: int | None = None
    """Behind so many the model is offered no hosted tool any more."""


NO_LIMITS: Final = LoopLimits()


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """What is asked of the model, the same in every turn."""

    project: str
    label: str
    """The id of the object."""
    model: str
    instructions: str = ""
    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = ANY_CHOICE
    """Of the first turn. Later ones are free to answer: what was asked for has been done."""
    parallel_calls: bool | None = None
    format: ResponseFormat = PLAIN_TEXT
    options: bytes = b""
    """As in `TurnRequest`."""
    effort: str = ""
    """How much to think, in OpenAI's words. Empty: the model's template decides."""
    seed: int
    limits: LoopLimits = NO_LIMITS
    priority: JobPriority = JobPriority.INTERACTIVE
    keep_for: str = ""
    """As in `TurnRequest`."""


@dataclass(kw_only=True)
class Progress:
    """Committed progress of the loop, from which it resumes; updated by it."""

    num_turns: int = 0
    """Turns that have ended."""
    usage: TurnUsage = NO_USAGE
    """Of these."""
    num_hosted_calls: int = 0
    """Of these."""
    token_ids: list[int] = field(default_factory=list)
    """Those of the open turn."""
    drafts: list[Draft] = field(default_factory=list)
    """The items of the open turn so far."""
    open_calls: list[Item] = field(default_factory=list)
    """Calls of hosted tools that were intended, and whose results are not known."""
    allowed_calls: list[Item] = field(default_factory=list)
    """Calls of hosted tools that a person has allowed, and that have not been begun."""
    awaits_client: bool = False
    """The last turn also called what is the client's: no turn follows it."""
    num_passages: int = 0
    """The number after those of the passages that the object has found: numbers go on behind a
    summary that stands for them."""

    @property
    def is_in_turn(self) -> bool:
        """Whether a turn is open."""
        return bool(self.token_ids or self.drafts)

    def take(self, turn: "TurnResult") -> None:
        """A turn has ended, and is kept."""
        self.num_turns += 1
        self.usage = added(self.usage, turn.usage)
        self.num_hosted_calls += turn.num_hosted_calls
        self.token_ids, self.drafts = [], []


class Outcome(StrEnum):
    """How the work ended."""

    ANSWERED = "answered"
    ACTION_REQUIRED = "action_required"
    """The model called what is the client's, or a person has to allow a call."""
    CANCELLED = "cancelled"
    MAX_COMPLETION_TOKENS = "max_completion_tokens"
    MAX_PROMPT_TOKENS = "max_prompt_tokens"
    MAX_TURNS = "max_turns"


@dataclass(frozen=True, kw_only=True)
class TurnResult:
    """A turn that has ended, or was broken off."""

    number: int
    """From 0."""
    items: tuple[Item, ...]
    """What the model said. Calls that a hosted tool will carry out are in progress; of a turn that
    was broken off, the last item is incomplete."""
    usage: TurnUsage
    num_hosted_calls: int = 0


@dataclass(frozen=True, kw_only=True)
class LoopResult:
    """How the work ended, with its last turn, whose items and usage are not kept yet.

    None: there is nothing to keep. Hosted calls that are in progress then were not carried out.
    """

    outcome: Outcome
    turn: TurnResult | None = None


class Context(Protocol):
    """What the model is shown."""

    async def items(self) -> list[Item]:
        """All items in order: the past, the input, and what this object has made, with the hosted
        calls that are in progress."""

    async def before_turn(self, request: TurnRequest, items: Sequence[Item]) -> list[Item]:
        """The items of a new turn, compacted if the caller wants that."""

    async def shortened(
        self, request: TurnRequest, items: Sequence[Item], error: ContextLengthExceeded
    ) -> list[Item] | None:
        """Fewer items, where there is no room for all; None: none may be left out.

        The choice is kept, so that later turns begin alike.
        """


class Recorder(Protocol):
    """Publishes and stores what happens in the loop.

    Events of `record` become visible soon; the other methods have committed when they return. The
    events of a turn suffice to rebuild its drafts. Each method may raise LeaseLost.
    """

    async def turn_started(self, turn: int, started: Started) -> None:
        """The model starts computing; repeated when a turn is resumed."""

    async def record(self, turn: int, said: Sequence[DraftEvent], token_ids: Sequence[int]) -> None:
        """The model produced output. `said` is empty while the text of the tokens is held back."""

    async def turn_ended(self, turn: TurnResult, *, awaits_client: bool) -> None:
        """A turn ended, and its hosted calls follow: keep its items, its usage, its number, and
        whether the work ends behind these calls, because there are others for the client."""

    async def call_started(self, item: Item) -> None:
        """A hosted tool begins to carry a call out."""

    async def call_ended(self, item: Item) -> None:
        """A hosted tool has carried a call out: keep the item."""


def added(one: TurnUsage, other: TurnUsage) -> TurnUsage:
    """The tokens of both."""
    return TurnUsage(*(mine + its for mine, its in zip(one, other, strict=True)))


class HostedCall(NamedTuple):
    """A call as the model made it."""

    call_id: str
    name: str
    arguments: str
    """JSON text, not validated."""


class HostedTool(Protocol):
    """One or several functions that the server carries out."""

    @property
    def functions(self) -> Sequence[TurnTool]:
        """The tools that the model is shown; names are unique in the request."""

    @property
    def kind(self) -> str:
        """The tool's kind, by which a choice may name it: "file_search", "mcp"."""

    @property
    def item_prefix(self) -> str:
        """How the ids of the calls' items begin."""

    @property
    def is_repeatable(self) -> bool:
        """Whether a call whose result is not known may be made again."""

    def intent(self, call: HostedCall) -> Content:
        """The item of a call before it is carried out. Invalid arguments are not an error here: the
        item records them, and `run` ends it. A request for approval is never run: the loop ends
        with it.
        """

    def runs(self, content: Content) -> bool:
        """Whether an item is this tool's intent, to be carried out."""

    async def run(self, project: str, intent: Item) -> Content:
        """The item with the result. A call that fails is a result, which the model reads.

        Raises what another try may end better: Unavailable, ResourceExhausted, Aborted.
        """

    def abandoned(self, intent: Item) -> Content:
        """The item of a call that may have been made, and is not made again."""
