"""The samplers of a sequence: penalties, filters and the draw, in the order of the request.

Draws are keyed by seed, choice and output position, so they do not depend on the batch; log
probabilities are those of the model, before any bias or filter.
"""

import math
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from inference_svc.engine.constraint import TokenMask
from inference_svc.engine.events import ChosenLogprob, Logprob
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sampling_params import Sampling, Stage
from inference_svc.llama.sampling import candidate_selection
from inference_svc.llama.sampling.adaptive_samplers import AdaptiveSampler, MirostatSampler
from inference_svc.llama.sampling.candidate_selection import largest
from inference_svc.llama.sampling.candidates import Candidates, Logits, TokenIds
from inference_svc.llama.sampling.logits_processors import LogitsProcessors, undo
from inference_svc.llama.sampling.native_filters import LEARNING, ModelSizes, NativeFilters
from inference_svc.llama.sampling.rng import SamplingRng, sample_candidate, sample_from_all


def token_logprobs(
    row: Logits, token: int, num_top: int, piece: Callable[[int], bytes], buffer: Logits
) -> ChosenLogprob:
    """The log probability of `token`, and of the `num_top` best tokens, best first. `buffer` is as
    long as the row, and overwritten."""
    best = row.max()
    weights = np.exp(np.subtract(row, best, out=buffer), out=buffer)
    log_total = float(best) + math.log(float(weights.sum()))

    def logprob(token: int) -> Logprob:
        return Logprob(token, piece(token), float(row[token]) - log_total)

    return ChosenLogprob(logprob(token), tuple(logprob(int(top)) for top in largest(row, num_top)))


_KEEP_ARGMAX = frozenset(
    {Stage.TOP_N_SIGMA, Stage.TOP_K, Stage.TOP_P, Stage.MIN_P, Stage.TEMPERATURE}
)


class _Stages(NamedTuple):
    """The filters that do something: penalties that come before all others, and the others."""

    penalties: Sequence[Stage]
    filters: Sequence[Stage]

    @classmethod
    def of(cls, sampling: Sampling) -> "_Stages":
        if sampling.mirostat is not None:
            return cls((), ())  # it replaces them all
        active = [stage for stage in sampling.stages if sampling.is_active(stage)]
        penalties = list(takewhile(LEARNING.__contains__, active))
        return cls(penalties, active[len(penalties) :])


class SamplerChain:
    """The sampling state of one sequence. Free it with `close`."""

    def __init__(
        self,
        request: SequenceRequest,
        sizes: ModelSizes,
        end_tokens: npt.NDArray[np.int32],
        piece: Callable[[int], bytes],
    ) -> None:
        sampling = request.sampling
        self._sampling = sampling
        self._piece = piece
        self._top_logprobs = request.top_logprobs
        self._draws = SamplingRng(request.seed, request.choice)
        self._min_tokens = request.min_tokens
        self._banned_early = _union(end_tokens, request.stop_tokens)
        self._banned = end_tokens if request.ignore_eos else None
        self._allowed = _allowed(sampling, end_tokens)
        penalties, filters = _Stages.of(sampling)
        native_penalties = NativeFilters(penalties, sampling, sizes)
        self._edits = LogitsProcessors(sampling, native_penalties, sizes.suppressed)
        self._is_greedy = _is_greedy(sampling, filters)
        self._temperature = _temperature_alone(sampling, filters)
        self._select = None
        if filters and sizes.vocabulary_size >= candidate_selection.LARGE:
            self._select = candidate_selection.selection_of(filters[0], sampling)
        self._first = NativeFilters(filters[:1], sampling, sizes)
        self._rest = NativeFilters(filters[1:], sampling, sizes)
        # What selects for top-k leaves some more; a selection by any other filter is that filter.
        self._first_always = filters[:1] == [Stage.TOP_K]
        self._mirostat = self._adaptive = None
        if sampling.mirostat is not None:
            self._mirostat = MirostatSampler(
                sampling.mirostat, sampling.temperature, sizes.vocabulary_size
            )
        elif sampling.adaptive is not None:
            self._adaptive = AdaptiveSampler(sampling.adaptive)
        self._steered = self._mirostat or self._adaptive
        parts = (self._edits, self._first, self._rest)
        self._learners = [part for part in parts if part.learns]
        for token in request.prompt if self._learners else ():
            self.accept(token)

    def close(self) -> None:
        """Free the native samplers; the chain is unusable afterwards."""
        for part in (self._edits, self._first, self._rest):
            part.close()

    @property
    def is_slow(self) -> bool:
        """Whether a row takes llama.cpp a look at every token of the vocabulary, and so long that
        another thread is worth waking."""
        return not self._works_on_row and self._mirostat is None and self._allowed is None

    @property
    def _works_on_row(self) -> bool:
        """Whether numpy looks at the whole row, so that llama.cpp need not."""
        return self._is_greedy or self._temperature is not None or self._select is not None

    def accept(self, token: int) -> None:
        """Take note of a prompt or output token."""
        for learner in self._learners:
            learner.learn(token)

    @property
    def hidden(self) -> tuple[float, ...]:
        """State that cannot be derived from the tokens; empty for most chains."""
        return self._steered.hidden if self._steered is not None else ()

    def restore_state(self, hidden: tuple[float, ...]) -> None:
        """Restore the `hidden` state of another chain of the same request."""
        if self._steered is not None:
            self._steered.hidden = hidden

    # --- sampling ---------------------------------------------------------------------------------

    def choose(
        self, logits: Logits, draw: int, scratch: Candidates, mask: TokenMask | None = None
    ) -> int:
        """The next token (`draw` is the count of output tokens so far) from a row of logits, of
        which `mask` leaves some tokens. The row is changed meanwhile, and as it was afterwards."""
        banned = self._banned_early if draw < self._min_tokens else self._banned
        changes = self._edits.apply(logits, banned if mask is None else None, scratch)
        try:
            row, ids = logits, self._allowed
            if mask is not None:
                row, ids = self._masked(logits, mask, banned, scratch)
            return self._choose_from(row, ids, draw, scratch)
        finally:
            undo(logits, changes)

    def _choose_from(
        self, row: Logits, ids: TokenIds | None, draw: int, scratch: Candidates
    ) -> int:
        """A token of an edited row, or of `ids` in it."""
        if self._is_greedy or (ids is not None and len(ids) == 1):
            return int(row.argmax() if ids is None else ids[row[ids].argmax()])
        seed = self._draws.seed(draw, b"draw")
        if self._mirostat is not None:
            return self._mirostat.choose(row, ids, scratch, seed)
        if ids is None and self._temperature is not None:
            return sample_from_all(row, self._temperature, seed, scratch.weights)
        self._filter(row, ids, draw, scratch)
        if self._adaptive is not None:
            return self._adaptive.choose(scratch, seed)
        return sample_candidate(scratch, seed)

    def _filter(self, row: Logits, ids: TokenIds | None, draw: int, scratch: Candidates) -> None:
        """Leave the candidates to draw from in `scratch`."""
        selected = None
        if ids is None and self._select is not None:
            selected = self._select(row, scratch)
        ids = ids if selected is None else selected
        if self._sampling.typical_p < 1:  # which would compute NaN from forbidden tokens
            ids = candidate_selection.finite(row, ids)
        scratch.fill(row, ids)

        def xtc_seed() -> int:
            return self._draws.seed(draw, b"xtc")

        if selected is None or self._first_always:
            self._first.apply(scratch, xtc_seed)
        self._rest.apply(scratch, xtc_seed)

    def _masked(
        self,
        logits: Logits,
        mask: TokenMask,
        banned: TokenIds | None,
        scratch: Candidates,
    ) -> tuple[Logits, TokenIds | None]:
        """A row and the candidates in it; a row of its own, with no list, where they are many and
        what follows can do without.

        Where a request forbids all that its constraint allows, the constraint wins: there would be
        no token at all.
        """
        left: npt.NDArray[np.bool_] = mask.allowed
        few: TokenIds | None = mask.few
        if banned is not None or self._allowed is not None:
            left = mask.allowed.copy()
            if self._allowed is not None:
                left[:] = False
                left[self._allowed] = mask.allowed[self._allowed]
            if banned is not None:
                left[banned] = False
            # Few stay few: filters must not meet the forbidden ones (typical-p computes NaN then).
            few = self._allowed if few is None else few
            few = None if few is None else few[left[few]]
            left, few = (left, few) if left.any() else mask
        if few is None and self._works_on_row:
            scratch.masked.fill(-np.inf)
            np.copyto(scratch.masked, logits, where=left)
            return scratch.masked, None
        return logits, np.flatnonzero(left) if few is None else few

    # --- what else a token carries ----------------------------------------------------------------

    def logprobs(self, logits: Logits, token: int, scratch: Candidates) -> ChosenLogprob | None:
        """The log probability of `token` and of the best tokens, where the request asks for
        them."""
        if self._top_logprobs is None:
            return None
        return token_logprobs(logits, token, self._top_logprobs, self._piece, scratch.weights)


def _is_greedy(sampling: Sampling, filters: Sequence[Stage]) -> bool:
    """Whether the highest logit is chosen regardless of filters."""
    return (
        sampling.mirostat is None
        and sampling.adaptive is None
        and sampling.temperature == 0
        and sampling.dynatemp_range == 0
        and Stage.TEMPERATURE in filters
        and _KEEP_ARGMAX.issuperset(filters)
    )


def _temperature_alone(sampling: Sampling, filters: Sequence[Stage]) -> float | None:
    """The temperature where nothing else shapes the draw (OpenAI's defaults)."""
    if sampling.mirostat is not None or sampling.adaptive is not None:
        return None
    if not filters:
        return 1.0
    is_alone = list(filters) == [Stage.TEMPERATURE] and sampling.dynatemp_range == 0
    return sampling.temperature if is_alone and sampling.temperature > 0 else None


def _union(tokens: npt.NDArray[np.int32], more: frozenset[int] | Sequence[int]) -> TokenIds:
    return np.union1d(tokens, np.fromiter(more, np.int32, len(more))).astype(np.int32)


def _allowed(sampling: Sampling, ends: npt.NDArray[np.int32]) -> TokenIds | None:
    return _union(ends, sampling.allowed_token_ids) if sampling.allowed_token_ids else None
