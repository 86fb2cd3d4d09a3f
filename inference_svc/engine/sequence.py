"""One token stream through its life: queued, prefilling, decoding.

Few facts are stored, the rest is derived. `tokens` is the prompt followed by the output; the last
token of a decoding sequence has been sampled but not computed yet.
"""

from array import array
from dataclasses import dataclass
from typing import NamedTuple

from inference_svc.engine.backend import Sampler
from inference_svc.engine.batch import Row
from inference_svc.engine.constraint import MAX_FORCED, Guide
from inference_svc.engine.detokenizer import Detokenizer
from inference_svc.engine.ngram import NgramProposer
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.saved_state import SavedPrefix
from inference_svc.engine.slots import Slot

# A prompt counts as if it had waited so long when it came: of new ones the shortest is first.
_HEAD_START_S = 1.0


class PrefixWait(NamedTuple):
    """That a sequence waits for a prefix `until` then, with so many tokens of it there and so many
    tokens of all prompts still to compute when that was set."""

    until: float
    have: int
    to_compute: int


class Sequence:
    """The engine's side of one `SequenceRequest`. Times are the engine's clock, in seconds."""

    def __init__(self, request: SequenceRequest, *, arrived_at: float) -> None:
        self.request = request
        self.tokens: array[int] = request.prompt + request.resumed
        self.detokenizer = Detokenizer(request.stop, include_stop=request.include_stop)
        self.slot: Slot | None = None
        self.sampler: Sampler | None = None
        self.guide: Guide | None = None
        self.awaits_grammar = request.constraint is not None
        self.proposer = NgramProposer(request.prompt, request.predicted)
        self.paused = False
        self.arrived_at = arrived_at
        self.started_at = arrived_at
        self.has_started = False
        # Its class when it started, raised by the time it had waited.
        self.admitted_priority = request.priority
        self.admitted_at = arrived_at  # when it was given that
        self.first_token_at: float | None = None
        # Following: how long it may wait; and what its own followers lend it.
        self.prefix_wait: PrefixWait | None = None
        self.inherited_priority = 0
        self.inherited_ratio = 0.0
        # Steps since any prompt of its class was computed.
        self.skipped_steps = 0
        # The stored object that it is part of, for as long as that is there.
        self.kept_for = request.keep_for.object_id if request.keep_for is not None else ""
        # Its cells while it waits after a preemption.
        self.saved_prefix: SavedPrefix | None = None

    @property
    def num_output(self) -> int:
        """Output tokens so far, resumed ones included."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def num_computed(self) -> int:
        """Tokens whose cells are in the slot."""
        return len(self.slot.tokens) if self.slot is not None else 0

    @property
    def num_remaining(self) -> int:
        """Tokens still to compute before the next one can be sampled; while decoding 1, and what
        the constraint forced behind it."""
        return len(self.tokens) - self.num_computed

    @property
    def num_computable(self) -> int:
        """Tokens that a step may compute now: all but the last while the grammar is built, for the
        last one's logits need its mask.

        A deterministic sequence is cut the same way always: it waits for its grammar, and its
        resumed tokens are computed as they were, one by one.
        """
        if not self.request.deterministic:
            return self.num_remaining - self.awaits_grammar
        if self.awaits_grammar:
            return 0
        return max(len(self.request.prompt) - self.num_computed, 1)

    @property
    def is_stalled(self) -> bool:
        """Whether only its grammar is missing."""
        return self.num_computable == 0

    @property
    def is_decoding(self) -> bool:
        """Whether the prompt is done: only tokens that were sampled or forced here are still to
        compute."""
        return self.first_token_at is not None and self.num_remaining <= 1 + MAX_FORCED

    @property
    def is_promoted(self) -> bool:
        """Whether it started above its own class, for it had waited long."""
        return self.admitted_priority > self.request.priority

    @property
    def effective_priority(self) -> int:
        """Its priority class, or the highest of sequences that wait for its prefix."""
        return max(self.admitted_priority, self.inherited_priority)

    def clear_inherited(self) -> None:
        """Take nothing as lent by followers."""
        self.inherited_priority, self.inherited_ratio = 0, 0.0

    def response_ratio(self, now: float) -> float:
        """How long it has waited, in seconds, for each token that it has left to compute: of equals
        the highest is next (Brinch Hansen's rule, here between chunks)."""
        return (now - self.arrived_at + _HEAD_START_S) / max(self.num_remaining, 1)

    @property
    def phase(self) -> str:
        """Where it is: "queued", "prefill" or "decode"."""
        if self.slot is None:
            return "queued"
        return "decode" if self.is_decoding else "prefill"


class Work(NamedTuple):
    """The part of a plan that belongs to one sequence."""

    sequence: Sequence
    row: Row


@dataclass(frozen=True, slots=True)
class Plan:
    """One decode call: `rows` in slot order, the `work` they do, and the slots that only fill
    holes; `num_decoding` of the rows continue a text by a token, `prompt_tokens` are all others,
    those that constraints forced among them."""

    rows: tuple[Row, ...]
    work: tuple[Work, ...]
    fillers: tuple[Slot, ...] = ()
    num_decoding: int = 0
    prompt_tokens: int = 0

    @property
    def has_holes(self) -> bool:
        """Whether slots between its sequences do no work."""
        return self.work[-1].row.slot - self.work[0].row.slot >= len(self.work)
