"""Events of the engine. Each decode call sends a list of them, in order, to the frontend."""

import enum
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from svc_kit.errors import DomainError


class StepHistogram(NamedTuple):
    """Histogram of the durations of steps with more than half of `max_rows` rows.

    `counts` has shape (buckets,) and is not cumulative; `sum_s` is in seconds.
    """

    max_rows: int
    has_prompt: bool
    counts: tuple[int, ...]
    sum_s: float


class FinishReason(enum.Enum):
    """Why a sequence ended without an error."""

    STOP = "stop"
    LENGTH = "length"


class CacheSource(enum.Enum):
    """Source of reused cells: none, an idle slot, the slot of a running sequence, a state saved in
    memory, or a snapshot or cached prefix restored from disk."""

    NONE = "none"
    SLOT = "slot"
    LIVE = "live"
    MEMORY = "memory"
    DISK = "disk"


class Logprob(NamedTuple):
    """A token with its natural logarithmic probability before any sampler."""

    token: int
    piece: bytes
    logprob: float


class ChosenLogprob(NamedTuple):
    """The sampled token or the token of a prompt, and the most probable ones, best first.

    `rank` is the rank of a prompt's token, from 1; 0 for a sampled one. `text` are the bytes that a
    sampled token adds to the text: none for a hidden control token.
    """

    chosen: Logprob
    top: tuple[Logprob, ...]
    rank: int = 0
    text: bytes = b""


class PromptToken(NamedTuple):
    """A token of a prompt; `piece` are its bytes.

    `logprob` is None for the first token, a vector, and the token after a vector.
    """

    token: int
    piece: bytes
    logprob: ChosenLogprob | None


class Divergence(NamedTuple):
    """A prompt differs from its token `token_index` on from cached tokens of its project, the first
    of which are `cached`: because of that `num_lost` of them are not reused."""

    token_index: int
    num_lost: int
    cached: Sequence[int]


class DivergenceText(NamedTuple):
    """A `Divergence` with the field of the request whose text is different, empty if it is not
    known, and what is cached and what the prompt has from there on."""

    token_index: int
    num_lost: int
    field: str
    cached: str
    prompt: str


class Started(NamedTuple):
    """A slot was allocated after `queue_s` seconds; `cached_tokens` of the prompt are reused.
    `divergence` is where the prompt differs from what is cached, None if it continues that."""

    sequence_id: int
    slot: int
    cached_tokens: int
    source: CacheSource = CacheSource.NONE
    queue_s: float = 0.0
    divergence: Divergence | None = None


class Preempted(NamedTuple):
    """A sequence was preempted, by one of higher priority or because cells ran out, and waits."""

    sequence_id: int


class Resumed(NamedTuple):
    """A preempted sequence resumed in this slot."""

    sequence_id: int
    slot: int


class Moved(NamedTuple):
    """A running sequence was moved to another slot."""

    sequence_id: int
    slot: int


class PromptTokens(NamedTuple):
    """The next tokens of a prompt in order, if their log probabilities were requested."""

    sequence_id: int
    tokens: tuple[PromptToken, ...]


class CallPart(NamedTuple):
    """A piece of the tool call at this position of the turn. `id` and `name` are set in a call's
    first piece only."""

    position: int
    id: str
    name: str
    arguments: str


class MessagePart(NamedTuple):
    """New output of a turn that the engine has parsed, in this order. `logprobs` are those of the
    content, without token ids."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[CallPart, ...] = ()
    logprobs: tuple[ChosenLogprob, ...] = ()


class Delta(NamedTuple):
    """Tokens sampled since the last delta, and the text that each of them releases.

    The text that was held back until the end of a sequence is one more text. `sampled_at` is the
    time of the last token on the engine's clock. An upstream in text mode has `parts` instead of
    texts, and instead of tokens their estimated number, `num_unnamed`.
    """

    sequence_id: int
    texts: tuple[str, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[ChosenLogprob, ...]
    sampled_at: float = 0.0
    parts: tuple[MessagePart, ...] = ()
    num_unnamed: int = 0

    @property
    def num_tokens(self) -> int:
        return len(self.tokens) + self.num_unnamed

    @property
    def text(self) -> str:
        """All texts."""
        return "".join(self.texts)

    def join(self, later: "Delta") -> "Delta":
        """Join this delta and the next one of the same sequence."""
        return Delta(
            self.sequence_id,
            self.texts + later.texts,
            self.tokens + later.tokens,
            self.logprobs + later.logprobs,
            later.sampled_at,
            self.parts + later.parts,
            self.num_unnamed + later.num_unnamed,
        )


class Timings(NamedTuple):
    """Seconds in the queue, for the prompt, and from the first to the last output token."""

    queue_s: float
    prefill_s: float
    decode_s: float


class ToldUsage(NamedTuple):
    """The tokens of a prompt as an upstream in text mode counts them. `is_estimated`: it did not
    tell them, nor the tokens of its output."""

    prompt_tokens: int
    is_estimated: bool


class DraftTokens(NamedTuple):
    """Draft tokens that were verified, and how many of them were accepted."""

    drafted: int = 0
    accepted: int = 0

    def plus(self, other: "DraftTokens") -> "DraftTokens":
        """Both together."""
        return DraftTokens(self.drafted + other.drafted, self.accepted + other.accepted)


NO_DRAFTS = DraftTokens()


class Finished(NamedTuple):
    """A sequence ended without an error.

    `stop_text` or `stop_token` is what matched; `num_accepted` of `num_drafted` draft tokens were
    accepted, `by_draft_model` those of a draft model. `usage` is what an upstream in text mode
    tells, None for all others.
    """

    sequence_id: int
    reason: FinishReason
    stop_text: str | None
    stop_token: int | None
    num_output_tokens: int
    timings: Timings
    num_drafted: int = 0
    num_accepted: int = 0
    num_reasoning_tokens: int = 0
    usage: ToldUsage | None = None
    by_draft_model: DraftTokens = NO_DRAFTS


class Failed(NamedTuple):
    """A sequence ended with an error; others continue."""

    sequence_id: int
    error: DomainError


class Cancelled(NamedTuple):
    """A sequence was cancelled: the steps in which the cancel arrived and the slot was freed."""

    sequence_id: int
    phase: str
    cancel_step: int
    freed_step: int


class Flushed(NamedTuple):
    """The cached prefixes were dropped: `num_tokens` in all."""

    job_id: int
    num_tokens: int


class AdapterLoadDone(NamedTuple):
    """The result of `LoadAdapter`; `problem` is None if the adapter is loaded."""

    digest: str
    problem: str | None = None


class AdaptersListed(NamedTuple):
    """The adapters that the engines of an upstream have loaded."""

    names: frozenset[str]


class TierLoad(NamedTuple):
    """Size and limits of a tier of the prefix cache, and counters since the engine started.

    `num_hits` and `num_misses` count requests, `num_written` and `num_evicted` prefixes.
    """

    num_entries: int = 0
    num_bytes: int = 0
    max_entries: int = 0
    max_bytes: int = 0
    num_hits: int = 0
    num_misses: int = 0
    num_written: int = 0
    num_evicted: int = 0


class ModelLoad(NamedTuple):
    """Load of a model, and counters since the engine started.

    `num_followers` wait for the prefix of another sequence; `saved` is the tier in memory.
    `prefills` are the ids of sequences without output, each with its number of computed tokens.
    Of the draft tokens, `by_draft_model` are those of a draft model.
    """

    model: str
    num_running: int = 0
    num_waiting: int = 0
    num_used_cells: int = 0
    num_idle_cells: int = 0
    num_steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    saved: TierLoad = TierLoad()
    num_followers: int = 0
    num_preempted: int = 0
    num_preemptions: int = 0
    num_moves: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    step_times: tuple[StepHistogram, ...] = ()
    prefills: tuple[tuple[int, int], ...] = ()
    by_draft_model: DraftTokens = NO_DRAFTS


class DiskCacheLoad(NamedTuple):
    """Load of the disk prefix cache, which engines share, at `measured_at` (monotonic clock)."""

    measured_at: float
    tier: TierLoad


class Embedded(NamedTuple):
    """The vector of an input of an embedding request; `is_last` if it is the last one.
    `is_estimated`: an upstream in text mode has not reported the tokens."""

    sequence_id: int
    model: str
    input_index: int
    vector: npt.NDArray[np.float32]
    num_tokens: int
    is_last: bool
    is_estimated: bool = False


Event = (
    Started
    | Preempted
    | Resumed
    | Moved
    | PromptTokens
    | Delta
    | Finished
    | Failed
    | Cancelled
    | Flushed
    | AdapterLoadDone
    | AdaptersListed
    | ModelLoad
    | DiskCacheLoad
    | Embedded
)
