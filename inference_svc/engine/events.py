"""Events of the engine: one list a decode call, in order, sent to the frontend."""

import enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from svc_kit.errors import DomainError


class StepHistogram(NamedTuple):
    """The steps of a kind: of more than half of `max_rows` rows, with or without prompt tokens.
    `counts` are of shape (buckets,), each by itself; `sum_s` is the time of all."""

    max_rows: int
    has_prompt: bool
    counts: tuple[int, ...]
    sum_s: float


class FinishReason(enum.Enum):
    """Why a sequence ended well."""

    STOP = "stop"
    LENGTH = "length"


class CacheSource(enum.Enum):
    """Where reused cells came from: nowhere, an idle slot, a running sequence's slot, a state saved
    in memory, or a snapshot restored from disk."""

    NONE = "none"
    SLOT = "slot"
    LIVE = "live"
    MEMORY = "memory"
    DISK = "disk"


class Logprob(NamedTuple):
    """A token with its natural log probability before any filter."""

    token: int
    piece: bytes
    logprob: float


class ChosenLogprob(NamedTuple):
    """The sampled token and the most probable ones, best first."""

    chosen: Logprob
    top: tuple[Logprob, ...]


class Started(NamedTuple):
    """A slot was found after `queue_s`; `cached_tokens` prompt tokens need not be computed."""

    sequence_id: int
    slot: int
    cached_tokens: int
    source: CacheSource = CacheSource.NONE
    queue_s: float = 0.0


class Preempted(NamedTuple):
    """A sequence gave its slot to a more urgent one and waits again."""

    sequence_id: int


class Resumed(NamedTuple):
    """A preempted sequence resumed in this slot."""

    sequence_id: int
    slot: int


class Moved(NamedTuple):
    """A running sequence has another slot now."""

    sequence_id: int
    slot: int


class Delta(NamedTuple):
    """Tokens sampled since the last delta, and the text that can be sent because of them.
    `sampled_at` is when the last one was sampled, on the engine's clock."""

    sequence_id: int
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[ChosenLogprob, ...]
    sampled_at: float = 0.0


class Timings(NamedTuple):
    """Seconds: waiting for a slot, computing the prompt, and from the first output token to the
    last."""

    queue_s: float
    prefill_s: float
    decode_s: float


class Finished(NamedTuple):
    """A sequence ended well; `stop_text` or `stop_token` says what matched. `num_accepted` of
    `num_drafted` tokens stood."""

    sequence_id: int
    reason: FinishReason
    stop_text: str | None
    stop_token: int | None
    num_output_tokens: int
    timings: Timings
    num_drafted: int = 0
    num_accepted: int = 0


class Failed(NamedTuple):
    """A sequence ended with an error; others continue."""

    sequence_id: int
    error: DomainError


class Cancelled(NamedTuple):
    """A cancelled sequence is gone: its step numbers when the cancel arrived and when the slot was
    free again."""

    sequence_id: int
    phase: str
    cancel_step: int
    freed_step: int


class Flushed(NamedTuple):
    """Everything that was only kept for reuse is forgotten: so many tokens."""

    model: str
    flush_id: int
    num_tokens: int


class AdapterLoaded(NamedTuple):
    """An adapter can be used."""

    model: str
    digest: str


class AdapterFailed(NamedTuple):
    """An adapter could not be loaded."""

    model: str
    digest: str
    problem: str


class TierLoad(NamedTuple):
    """One place that keeps computed prefixes: what it holds, what it may hold at most, and sums
    since the engine started: requests that began from it, requests that looked for a beginning and
    found none, prefixes that went in, and those that had to go to make room."""

    num_entries: int = 0
    num_bytes: int = 0
    max_entries: int = 0
    max_bytes: int = 0
    num_hits: int = 0
    num_misses: int = 0
    num_written: int = 0
    num_evicted: int = 0


class ModelLoad(NamedTuple):
    """How busy one model's slots are, and sums since the engine started. `num_followers` hold back
    for a leader, `num_preempted` wait to go on; `saved` are the prefixes kept in memory."""

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


class DiskCacheLoad(NamedTuple):
    """The archive of stored objects: `tier` with the folder, which engines share, as it was at
    `measured_at` (the monotonic clock, one for all processes)."""

    measured_at: float
    tier: TierLoad


class Embedded(NamedTuple):
    """The vector of one input of an embedding request; with `is_last` it has them all."""

    sequence_id: int
    model: str
    input_index: int
    vector: npt.NDArray[np.float32]
    num_tokens: int
    is_last: bool


Event = (
    Started
    | Preempted
    | Resumed
    | Moved
    | Delta
    | Finished
    | Failed
    | Cancelled
    | Flushed
    | AdapterLoaded
    | AdapterFailed
    | ModelLoad
    | DiskCacheLoad
    | Embedded
)
