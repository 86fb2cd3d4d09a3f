"""Settings, progress and results of the agent loop, and its interfaces: `Context`, which supplies
the items to show the model, and `HostedTool`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from control_svc.agent.drafts import Draft
from control_svc.inference.generation_options import NO_OPTIONS, GenerationOptions
from control_svc.inference.turns import ChoiceMode, TurnRequest, TurnTool, TurnUsage
from control_svc.items.model import Content, Item
from control_svc.jobs.model import JobPriority
from control_svc.tools.model import FormatKind, ResponseFormat, Tool, ToolChoice
from svc_kit.errors import ContextLengthExceeded

NO_USAGE: Final = TurnUsage(0, 0, 0, 0)
ANY_CHOICE: Final = ToolChoice()
PLAIN_TEXT: Final = ResponseFormat()
PROMPT_LIMIT: Final = "max_prompt_tokens"
"""The `field` of the ContextLengthExceeded for a prompt beyond `LoopLimits.prompt_tokens`."""


@dataclass(frozen=True, kw_only=True)
class LoopLimits:
    """Limits that end the loop; None means no limit."""

    completion_tokens: int | None = None
    """Total of all turns."""
    prompt_tokens: int | None = None
    """Total of all turns."""
    hosted_calls: int | None = None
    """After this many, hosted tools are no longer offered to the model."""


NO_LIMITS: Final = LoopLimits()


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """What the requests of all turns to the model have in common."""

    project: str
    label: str
    """The id of the run or response: the origin of its items, and for logs."""
    model: str
    instructions: str = ""
    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = ANY_CHOICE
    """Applies to the first turn. Later turns treat "required" as "auto"."""
    parallel_calls: bool | None = None
    format: ResponseFormat = PLAIN_TEXT
    options: GenerationOptions = NO_OPTIONS
    effort: str = ""
    """Reasoning effort, in OpenAI's terms. Empty: the model's chat template decides."""
    seed: int
    limits: LoopLimits = NO_LIMITS
    priority: JobPriority = JobPriority.INTERACTIVE
    keep_for: str = ""
    """See `TurnRequest`."""
    item_names: Mapping[str, str] = field(default_factory=dict)
    """Names of items in errors, by id, where they are not their ids."""

    @property
    def enforces_grammars(self) -> bool:
        """Whether grammars of custom tools are enforced. Otherwise the model only reads them."""
        has_format = self.format.kind is not FormatKind.TEXT
        return has_format or self.choice.mode is ChoiceMode.REQUIRED


@dataclass(frozen=True, kw_only=True)
class Work:
    """The completed turns of a run or response."""

    num_turns: int = 0
    usage: TurnUsage = NO_USAGE
    summaries: TurnUsage = NO_USAGE
    """Usage of automatic compaction. Part of the reported usage, but not of any limit."""
    num_hosted_calls: int = 0
    awaits_client: bool = False
    """Whether the last turn called client tools as well, so that no turn follows."""

    @property
    def total_usage(self) -> TurnUsage:
        return add_usage(self.usage, self.summaries)

    def add_turn(self, turn: "TurnResult", *, awaits_client: bool = False) -> "Work":
        """Count a turn that has ended."""
        return replace(
            self,
            num_turns=self.num_turns + 1,
            usage=add_usage(self.usage, turn.usage),
            num_hosted_calls=self.num_hosted_calls + turn.num_hosted_calls,
            awaits_client=awaits_client,
        )


NO_WORK: Final = Work()


@dataclass(kw_only=True)
class Progress:
    """Committed progress of the loop, from which it resumes. The loop updates it."""

    work: Work = NO_WORK
    token_ids: list[int] = field(default_factory=list)
    """Sampled tokens of the open turn."""
    held_logprobs: Sequence[bytes] = ()
    """Those that are held back behind the tokens, serialized."""
    drafts: list[Draft] = field(default_factory=list)
    """Items of the open turn so far."""
    open_calls: list[Item] = field(default_factory=list)
    """Hosted calls whose execution may have started, and whose results are unknown."""
    approved_calls: list[Item] = field(default_factory=list)
    """Hosted calls that were approved and have not started."""
    num_passages: int = 0
    """Lower bound for the number of the next passage. It keeps numbers unique after a summary
    replaced earlier searches.
    """

    @property
    def is_in_turn(self) -> bool:
        return bool(self.token_ids or self.drafts)

    def add_turn(self, turn: "TurnResult", *, awaits_client: bool) -> None:
        """Count a completed and stored turn."""
        self.work = self.work.add_turn(turn, awaits_client=awaits_client)
        self.token_ids, self.held_logprobs, self.drafts = [], (), []


class Outcome(StrEnum):
    """How the loop ended."""

    ANSWERED = "answered"
    ACTION_REQUIRED = "action_required"
    """The model called client tools, or a call needs approval."""
    CANCELLED = "cancelled"
    MAX_COMPLETION_TOKENS = "max_completion_tokens"
    MAX_PROMPT_TOKENS = "max_prompt_tokens"
    MAX_TURNS = "max_turns"


@dataclass(frozen=True, kw_only=True)
class TurnResult:
    """A turn that completed or was interrupted."""

    number: int
    """Index of the turn, from 0."""
    items: tuple[Item, ...]
    """Output of the model. Hosted calls that are still to be executed are in progress. The last
    item of an interrupted turn is incomplete.
    """
    usage: TurnUsage
    num_hosted_calls: int = 0


@dataclass(frozen=True, kw_only=True)
class LoopResult:
    """How the loop ended, with its last turn, whose items and usage are not stored yet.

    `turn` is None if there is nothing to store. Its hosted calls in progress were not executed.
    """

    outcome: Outcome
    turn: TurnResult | None = None


class Context(Protocol):
    """Supplies the items that the model is shown."""

    async def items(self) -> list[Item]:
        """All items in order: history, input, and the object's own items, including hosted calls
        in progress.
        """

    async def before_turn(self, request: TurnRequest, items: Sequence[Item]) -> list[Item]:
        """The items for a new turn, compacted if the caller enabled that."""

    async def shortened(
        self, request: TurnRequest, items: Sequence[Item], error: ContextLengthExceeded
    ) -> list[Item] | None:
        """Fewer items, to fit the context length; None if no item may be omitted.

        The choice is stored, so that later prompts have the same beginning.
        """


def add_usage(a: TurnUsage, b: TurnUsage) -> TurnUsage:
    """The sum of two usages."""
    return TurnUsage(*map(sum, zip(a, b, strict=True)))


class HostedCall(NamedTuple):
    """A call of a hosted tool as the model wrote it."""

    call_id: str
    name: str
    arguments: str
    """JSON text, not yet validated."""


class HostedTool(Protocol):
    """One or more functions that the server executes."""

    @property
    def functions(self) -> Sequence[TurnTool]:
        """The functions that the model is shown; their names are unique in the request."""

    @property
    def kind(self) -> str:
        """The kind, by which a tool choice may name the tool: "file_search" or "mcp"."""

    @property
    def item_prefix(self) -> str:
        """Prefix of the ids of the calls' items."""

    @property
    def is_repeatable(self) -> bool:
        """Whether a call whose result is unknown may be executed again."""

    def intent(self, call: HostedCall) -> Content:
        """The content of a call before its execution. Invalid arguments are not an error here: the
        content records them, and `run` returns the problem. An approval request is never run: the
        loop ends with it.
        """

    def handles(self, content: Content) -> bool:
        """Whether `content` is an intent of this tool that is to be run."""

    async def run(self, project: str, intent: Item) -> Content:
        """Execute the call and return the content with its result. A failed call is a result, which
        the model reads.

        Raises retryable errors: Unavailable, ResourceExhausted, Aborted.
        """

    def abandon(self, intent: Item) -> Content:
        """The content of an interrupted call that is not executed again."""


@dataclass(frozen=True, kw_only=True)
class LoopWork:
    """What the loop needs for one attempt."""

    settings: LoopSettings
    context: Context
    hosted: Sequence[HostedTool]
    progress: Progress
