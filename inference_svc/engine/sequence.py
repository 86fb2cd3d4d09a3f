"""A sequence in the phases queued, prefill and decode, its output, and plans of decode calls."""

import math
from array import array
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from inference_svc.engine.backend import Sampler
from inference_svc.engine.batch import Row
from inference_svc.engine.constraint import MAX_FORCED, Guide
from inference_svc.engine.events import NO_DRAFTS, DraftTokens, Finished, FinishReason, Timings
from inference_svc.engine.media import MediaSpan, row_at, whole_prefix
from inference_svc.engine.proposals import NgramProposals, Proposals
from inference_svc.engine.reasoning_tracker import ReasoningTracker
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.saved_state import SavedPrefix
from inference_svc.engine.slots import Slot

_HEAD_START_S = 1.0
"""Added to the waiting time of a prompt, so that the shortest of new prompts is first."""
_INITIAL_MODEL_COUNTS = 4.0, 5.0
"""Accepted and proposed tokens of a draft model, before any was judged."""


class TokenPieces(Protocol):
    """The bytes of tokens, and which of them end a generation."""

    def piece(self, token: int, *, special: bool) -> bytes:
        """The bytes of a token; those of control tokens are empty unless `special`."""

    def is_eog(self, token: int) -> bool:
        """Whether a token ends a generation."""


class AddedToken(NamedTuple):
    """The text that a token releases, the bytes that it adds, and whether the sequence ends."""

    text: str
    piece: bytes
    is_end: bool


class SequenceOutput:
    """From the output tokens of a sequence to its text, stop conditions and end: for the engine and
    for upstreams, without a sampler and a guide."""

    def __init__(self, request: SequenceRequest) -> None:
        self.reasoning = ReasoningTracker(request.reasoning)
        self._request = request
        self._detokenizer = request.new_detokenizer()
        self._stop_token: int | None = None

    def add(self, token: int, pieces: TokenPieces) -> AddedToken:
        """Add an output token. After the one that ends the sequence no other may be added."""
        request = self._request
        ends = token in request.stop_tokens or (not request.ignore_eos and pieces.is_eog(token))
        piece = b""
        if request.special_tokens or not ends:
            special = request.special_tokens or token in request.visible_tokens
            piece = pieces.piece(token, special=special)
        if not ends:
            self.reasoning.add(token, piece)
        text = self._detokenizer.push(piece)
        is_stopped = self._detokenizer.stop is not None
        if ends and not is_stopped:
            self._stop_token = token
        return AddedToken(text, piece, is_stopped or ends)

    def finish(
        self,
        reason: FinishReason,
        num_output: int,
        timings: Timings,
        *,
        by_ngram: DraftTokens = NO_DRAFTS,
        by_model: DraftTokens = NO_DRAFTS,
    ) -> tuple[str, Finished]:
        """End the sequence; return the text that was held back, and the event. The reason is STOP
        if that text, or one before, has a stop text."""
        text = self._detokenizer.finish(at_limit=reason is FinishReason.LENGTH)
        stop = self._detokenizer.stop
        finished = Finished(
            self._request.sequence_id,
            reason if stop is None else FinishReason.STOP,
            stop,
            self._stop_token,
            num_output,
            timings,
            *by_ngram.plus(by_model),
            self.reasoning.num_tokens,
            by_draft_model=by_model,
        )
        return text, finished


class PrefixWait(NamedTuple):
    """A wait for a prefix: its deadline, and the counts of tokens when the deadline was set."""

    deadline: float
    num_cached: int
    """Tokens of the prefix that were cached."""
    to_compute: int
    """Tokens of all running prompts that were not computed."""


class Sequence:
    """The state of a `SequenceRequest` in the engine. Times are in seconds of the engine's clock.

    `tokens` is the prompt followed by the output; the last token of a decoding sequence has been
    sampled but not computed yet.
    """

    def __init__(self, request: SequenceRequest, *, arrived_at: float) -> None:
        self.request = request
        self.tokens: array[int] = request.prompt + request.resumed
        self.num_prompt = len(request.prompt)
        self.max_length = self.num_prompt + request.max_tokens
        # The index of the token after the last chunk of vectors; 0 without any.
        self.media_end = request.media[-1].end if request.media else 0
        # Prompt tokens whose log probabilities have been sent; all if none are wanted.
        self.num_scored = self.num_prompt if request.prompt_logprobs is None else 0
        self.output = SequenceOutput(request)
        self.slot: Slot | None = None
        self.sampler: Sampler | None = None
        self.guide: Guide | None = None
        self.awaits_grammar = request.constraint is not None
        self.ngram_proposals = NgramProposals(request.prompt, request.predicted)
        self.model_proposals = Proposals(*_INITIAL_MODEL_COUNTS)
        self.paused = False
        self.arrived_at = arrived_at
        self.started_at = arrived_at
        self.has_started = False
        # The priority class with which it started (waiting raises the class), and when it did.
        self.admitted_priority = request.priority
        self.admitted_at = arrived_at
        self.first_token_at: float | None = None
        # Its wait for a prefix, and the priority inherited from sequences that wait for its own.
        self.prefix_wait: PrefixWait | None = None
        self.inherited_priority = 0
        self.inherited_ratio = 0.0
        # Steps since a prompt of its class was computed.
        self.skipped_steps = 0
        # For whom it is archived; empty for nobody, or if that owner was deleted.
        self.kept_for = request.keep_for.name if request.keep_for is not None else ""
        # Its state while it is preempted.
        self.saved_prefix: SavedPrefix | None = None

    @property
    def num_output(self) -> int:
        """Output tokens so far, including resumed ones."""
        return len(self.tokens) - self.num_prompt

    @property
    def num_computed(self) -> int:
        """Tokens whose cells are in the slot."""
        return len(self.slot.tokens) if self.slot is not None else 0

    @property
    def num_remaining(self) -> int:
        """Tokens to compute before the next one can be sampled.

        While decoding: 1, plus the tokens that the constraint forced after it.
        """
        return len(self.tokens) - self.num_computed

    @property
    def num_computable(self) -> int:
        """Tokens that a step may compute now: all but the last until the grammar is built, since
        sampling from the logits of the last one needs the grammar's mask.

        A deterministic sequence is always computed in the same chunks, so it waits for its grammar,
        and resumed tokens are computed one by one.
        """
        if not self.request.deterministic:
            return self.num_remaining - self.awaits_grammar
        if self.awaits_grammar:
            return 0
        return max(self.num_prompt - self.num_computed, 1)

    @property
    def expires_at(self) -> float:
        """When its deadline passes, or that for the queue before it starts; infinity for never."""
        request = self.request
        expires_at = math.inf if request.deadline is None else request.deadline
        if self.has_started or request.queue_deadline is None:
            return expires_at
        return min(expires_at, request.queue_deadline)

    def next_row(self, max_text: int) -> tuple[tuple[MediaSpan, ...], int]:
        """The chunks of the next row, none if it is text, and how many tokens of it a step may
        compute now.

        Texts of up to `max_text` tokens are computed with the chunks beside them, unless their
        logits are wanted or an adapter may change their vectors; also not if the sequence is
        deterministic, since a part of its tokens may be resumed.
        """
        count, computed = self.num_computable, self.num_computed
        spans: tuple[MediaSpan, ...] = ()
        if computed < self.media_end:
            request = self.request
            if not self.is_scored or request.adapters or request.deterministic:
                max_text = 0
            length = len(self.tokens)
            spans, end = row_at(request.media, computed, length=length, max_text=max_text)
            count = min(count, end - computed)
        if not spans and not self.is_scored:
            count = min(count, self._num_before_scored)
        return spans, count

    @property
    def is_scored(self) -> bool:
        """Whether log probabilities of all prompt tokens have been sent."""
        return self.num_scored == self.num_prompt

    @property
    def is_scoring(self) -> bool:
        """Whether the logits of the next token to compute are those of a prompt token whose log
        probability is not known yet."""
        return not self.is_scored and self.num_computed >= self.num_scored - 1

    @property
    def _num_before_scored(self) -> int:
        """The tokens before the next change of `is_scoring`: cells that were lost after their
        logits had been used are computed again without logits."""
        end = self.num_prompt if self.is_scoring else self.num_scored - 1
        return end - self.num_computed

    def whole_prefix(self, count: int) -> int:
        """The largest number of tokens up to `count` that does not end inside a chunk."""
        return whole_prefix(self.request.media, count)

    @property
    def is_ready(self) -> bool:
        """Whether a step may compute tokens of it: it is not paused, and does not only wait for
        its grammar."""
        is_stalled = self.awaits_grammar and self.num_computable == 0
        return not self.paused and not is_stalled

    @property
    def is_decoding(self) -> bool:
        """Whether the prompt is computed, and only sampled or forced tokens remain."""
        if self.first_token_at is None:
            return False
        num_computed = self.num_computed
        is_near = len(self.tokens) - num_computed <= 1 + MAX_FORCED
        return is_near and num_computed >= self.media_end

    @property
    def is_at_last_token(self) -> bool:
        """Whether all but the last token of the prompt is computed, so that the next row is like
        that of a decoding sequence."""
        is_new = self.first_token_at is None and not self.is_scoring
        return is_new and self.num_remaining == self.num_computable == 1

    @property
    def is_promoted(self) -> bool:
        """Whether it started in a higher priority class after a long wait."""
        return self.admitted_priority > self.request.priority

    @property
    def effective_priority(self) -> int:
        """Its priority class, or that of a sequence that waits for its prefix, if higher."""
        return max(self.admitted_priority, self.inherited_priority)

    def clear_inherited(self) -> None:
        """Reset the priority inherited from followers."""
        self.inherited_priority, self.inherited_ratio = 0, 0.0

    def response_ratio(self, now: float) -> float:
        """Seconds of waiting per token to compute. The prompt with the highest ratio is next.

        Highest response ratio next (Brinch Hansen), applied between chunks.
        """
        return (now - self.arrived_at + _HEAD_START_S) / max(self.num_remaining, 1)

    @property
    def phase(self) -> str:
        """The phase: "queued", "prefill" or "decode"."""
        if self.slot is None:
            return "queued"
        return "decode" if self.is_decoding else "prefill"


class Work(NamedTuple):
    """The row of a sequence in a plan."""

    sequence: Sequence
    row: Row


@dataclass(frozen=True, slots=True)
class Plan:
    """One decode call."""

    rows: tuple[Row, ...]
    """All rows, in slot order."""
    work: tuple[Work, ...]
    """The rows of sequences."""
    fillers: tuple[Slot, ...] = ()
    """Slots between them whose rows are computed but not used."""
    num_decoding: int = 0
    """Rows that continue a sequence by one token."""
    prompt_tokens: int = 0
    """Tokens of all other rows, including those forced by constraints."""

    @property
    def has_vectors(self) -> bool:
        """Whether its rows are vectors, of pictures or sounds and the texts beside them."""
        return bool(self.rows[0].spans)

    @property
    def has_holes(self) -> bool:
        """Whether there are slots without work between those of its sequences."""
        return self.work[-1].row.slot - self.work[0].row.slot >= len(self.work)
