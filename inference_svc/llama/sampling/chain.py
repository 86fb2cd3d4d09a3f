"""The sampler chain of a sequence: penalties, filters and the draw, in the order of the request.

Random numbers are derived from seed, choice and output position, so results do not depend on the
batch. Log probabilities are those of the model, before biases and filters.
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
from inference_svc.llama.sampling.adaptive_samplers import AdaptiveSampler, MirostatSampler
from inference_svc.llama.sampling.candidate_selection import (
    allowed_tokens,
    largest,
    make_selection,
)
from inference_svc.llama.sampling.candidates import Candidates, Logits, TokenIds
from inference_svc.llama.sampling.logits_processors import LogitsProcessors, undo
from inference_svc.llama.sampling.native_filters import STATEFUL, ModelSizes, NativeFilters
from inference_svc.llama.sampling.rng import SamplingRng, sample_candidate, sample_from_all


def token_logprobs(
    row: Logits, token: int, num_top: int, piece: Callable[[int], bytes], buffer: Logits
) -> ChosenLogprob:
    """The log probability of `token` and of the `num_top` best tokens, best first. Overwrites
    `buffer`, which is as long as the row."""
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
    """The active stages: penalties that precede all filters, and everything after them."""

    penalties: Sequence[Stage]
    filters: Sequence[Stage]

    @classmethod
    def from_sampling(cls, sampling: Sampling) -> "_Stages":
        if sampling.mirostat is not None:
            return cls((), ())  # mirostat replaces all of them
        active = [stage for stage in sampling.stages if sampling.is_active(stage)]
        penalties = list(takewhile(STATEFUL.__contains__, active))
        return cls(penalties, active[len(penalties) :])


class SamplerChain:
    """The sampler of one sequence. Free it with `close`."""

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
        self._rng = SamplingRng(request.seed, request.choice)
        self._min_tokens = request.min_tokens
        self._banned_early = _union(end_tokens, request.stop_tokens)
        self._banned = end_tokens if request.ignore_eos else None
        self._allowed = None
        if sampling.allowed_token_ids:
            self._allowed = _union(end_tokens, sampling.allowed_token_ids)
        penalties, filters = _Stages.from_sampling(sampling)
        native_penalties = NativeFilters(penalties, sampling, sizes)
        self._processors = LogitsProcessors(sampling, native_penalties, sizes.suppressed)
        self._is_greedy = _is_greedy(sampling, filters)
        self._temperature = _plain_temperature(sampling, filters)
        self._select = None
        if filters and sizes.vocabulary_size >= sizes.large_vocabulary:
            self._select = make_selection(filters[0], sampling)
        self._first = NativeFilters(filters[:1], sampling, sizes)
        self._rest = NativeFilters(filters[1:], sampling, sizes)
        # Preselection for top-k returns a superset; for any other filter it replaces the filter.
        self._first_always = filters[:1] == [Stage.TOP_K]
        self._mirostat = self._adaptive = None
        if sampling.mirostat is not None:
            self._mirostat = MirostatSampler(
                sampling.mirostat, sampling.temperature, sizes.vocabulary_size
            )
        elif sampling.adaptive is not None:
            self._adaptive = AdaptiveSampler(sampling.adaptive)
        self._adaptive_sampler = self._mirostat or self._adaptive
        parts = (self._processors, self._first, self._rest)
        self._stateful = [part for part in parts if part.is_stateful]
        for token in request.prompt if self._stateful else ():
            if token >= 0:  # not the place of a vector
                self.accept(token)

    def close(self) -> None:
        """Free the native samplers; the chain is unusable afterwards."""
        for part in (self._processors, self._first, self._rest):
            part.close()

    @property
    def is_slow(self) -> bool:
        """Whether llama.cpp has to process the whole vocabulary, which takes long enough to use
        another thread."""
        return not self._uses_row and self._mirostat is None and self._allowed is None

    @property
    def _uses_row(self) -> bool:
        """Whether numpy processes the whole row, so that llama.cpp gets few or no candidates."""
        return self._is_greedy or self._temperature is not None or self._select is not None

    def accept(self, token: int) -> None:
        """Add a prompt or output token to the history of penalties."""
        for part in self._stateful:
            part.accept(token)

    @property
    def hidden(self) -> tuple[float, ...]:
        """State that cannot be derived from the tokens; empty for most chains."""
        return self._adaptive_sampler.hidden if self._adaptive_sampler is not None else ()

    def restore_state(self, hidden: tuple[float, ...]) -> None:
        """Restore the `hidden` state of another chain of the same request."""
        if self._adaptive_sampler is not None:
            self._adaptive_sampler.hidden = hidden

    # --- sampling ---------------------------------------------------------------------------------

    def sample(
        self, logits: Logits, draw: int, scratch: Candidates, mask: TokenMask | None = None
    ) -> int:
        """Sample the next token from a row of logits, restricted by `mask`. `draw` is the number of
        output tokens so far. The row is modified and restored."""
        banned = self._banned_early if draw < self._min_tokens else self._banned
        changes = self._processors.apply(logits, banned if mask is None else None, scratch)
        try:
            row, ids = logits, self._allowed
            if mask is not None:
                row, ids = self._apply_mask(logits, mask, banned, scratch)
            return self._sample_row(row, ids, draw, scratch)
        finally:
            undo(logits, changes)

    def _sample_row(self, row: Logits, ids: TokenIds | None, draw: int, scratch: Candidates) -> int:
        """Sample from a processed row, or from `ids` of it."""
        if self._is_greedy or (ids is not None and len(ids) == 1):
            return int(row.argmax() if ids is None else ids[row[ids].argmax()])
        seed = self._rng.seed(draw, b"draw")
        if self._mirostat is not None:
            return self._mirostat.sample(row, ids, scratch, seed)
        if ids is None and self._temperature is not None:
            return sample_from_all(row, self._temperature, seed, scratch.weights)
        self._filter(row, ids, draw, scratch)
        if self._adaptive is not None:
            return self._adaptive.sample(scratch, seed)
        return sample_candidate(scratch, seed)

    def _filter(self, row: Logits, ids: TokenIds | None, draw: int, scratch: Candidates) -> None:
        """Put the filtered candidates into `scratch`."""
        selected = None
        if ids is None and self._select is not None:
            selected = self._select(row, scratch)
        ids = ids if selected is None else selected
        if self._sampling.typical_p < 1:  # llama.cpp's typical-p computes NaN from logits of -inf
            ids = allowed_tokens(row, ids)
        scratch.fill(row, ids)

        def xtc_seed() -> int:
            return self._rng.seed(draw, b"xtc")

        if selected is None or self._first_always:
            self._first.apply(scratch, xtc_seed)
        self._rest.apply(scratch, xtc_seed)

    def _apply_mask(
        self, logits: Logits, mask: TokenMask, banned: TokenIds | None, scratch: Candidates
    ) -> tuple[Logits, TokenIds | None]:
        """Return a row and the ids of its candidates, or a masked copy of the row and None if there
        are many candidates and the next stage works on whole rows.

        If the request bans everything that its constraint allows, the ban is ignored.
        """
        allowed: npt.NDArray[np.bool_] = mask.allowed
        few: TokenIds | None = mask.few
        if banned is not None or self._allowed is not None:
            allowed = mask.allowed.copy()
            if self._allowed is not None:
                allowed[:] = False
                allowed[self._allowed] = mask.allowed[self._allowed]
            if banned is not None:
                allowed[banned] = False
            # A short list stays a list, so that filters get no logits of -inf (see `_filter`).
            few = self._allowed if few is None else few
            few = None if few is None else few[allowed[few]]
            allowed, few = (allowed, few) if allowed.any() else mask
        if few is None and self._uses_row:
            scratch.masked.fill(-np.inf)
            np.copyto(scratch.masked, logits, where=allowed)
            return scratch.masked, None
        return logits, np.flatnonzero(allowed) if few is None else few

    # --- log probabilities ------------------------------------------------------------------------

    def logprobs(self, logits: Logits, token: int, scratch: Candidates) -> ChosenLogprob | None:
        """The log probabilities of `token` and the best tokens; None if not requested."""
        if self._top_logprobs is None:
            return None
        return token_logprobs(logits, token, self._top_logprobs, self._piece, scratch.weights)


def _is_greedy(sampling: Sampling, filters: Sequence[Stage]) -> bool:
    """Whether the highest logit wins regardless of the filters."""
    return (
        sampling.mirostat is None
        and sampling.adaptive is None
        and sampling.temperature == 0
        and sampling.dynatemp_range == 0
        and Stage.TEMPERATURE in filters
        and _KEEP_ARGMAX.issuperset(filters)
    )


def _plain_temperature(sampling: Sampling, filters: Sequence[Stage]) -> float | None:
    """The temperature if no other filter is active (OpenAI's defaults), else None."""
    if sampling.mirostat is not None or sampling.adaptive is not None:
        return None
    if not filters:
        return 1.0
    is_alone = list(filters) == [Stage.TEMPERATURE] and sampling.dynatemp_range == 0
    return sampling.temperature if is_alone and sampling.temperature > 0 else None


def _union(tokens: npt.NDArray[np.int32], more: frozenset[int] | Sequence[int]) -> TokenIds:
    return np.union1d(tokens, np.fromiter(more, np.int32, len(more))).astype(np.int32)
