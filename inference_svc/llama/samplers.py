"""Sampler chains of llama.cpp whose whole state can be rebuilt from a request and its output
tokens.

llama.cpp's own random state is not used: every draw gets a sampler seeded from (seed, choice, draw
count), which costs 2 us and makes exact resumption possible. XTC, which draws too, is seeded the
same way. Penalties and DRY are rebuilt by replaying tokens. Mirostat's mu and adaptive-p's average
are kept here, because llama.cpp has no way to read them.

Two short cuts for large vocabularies give the same distribution sooner: top-k looks at a short list
that certainly holds the k best, and a draw from all tokens uses numpy's exponentials.

Nothing here calls a `llama_context`: a chain works on a row of logits that the step thread hands
over, so that rows can be sampled on several threads, each with its own `Candidates`.
"""

import ctypes
import hashlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from inference_svc.engine.events import ChosenLogprob, Logprob
from inference_svc.engine.guide import TokenMask
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sampling import Dry, Sampling, Stage

Logits = npt.NDArray[np.float32]

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
_RANDOM_SEED = 0xFFFFFFFF  # llama.cpp reads it as "make one up"
_MIROSTAT_ESTIMATE_TOKENS = 100
_LN2 = float(np.log(2.0))
_LARGE = 16384  # tokens: below, looking at all of them is as fast as guessing
_SAMPLED = 2048
_BLOCK = 512
_MAX_SHORTLISTED = 256
_TRUNCATING = frozenset(Stage) - {Stage.PENALTIES, Stage.DRY, Stage.TOP_N_SIGMA}


class Candidates:
    """One thread's scratch space: a `llama_token_data_array` over the whole vocabulary."""

    def __init__(self, vocabulary_size: int) -> None:
        self._ids = np.arange(vocabulary_size, dtype=np.int32)
        self._data = np.zeros(vocabulary_size, _CANDIDATE)
        self.array: Any = llama_cpp.llama_token_data_array()
        self.reference = ctypes.byref(self.array)

    def fill(self, logits: Logits, allowed: npt.NDArray[np.integer[Any]] | None) -> None:
        """Take over a row of logits, of all tokens or of `allowed` ones."""
        if allowed is None:
            size = len(self._ids)
            self._data["id"] = self._ids
            self._data["logit"] = logits
        else:
            size = len(allowed)
            self._data["id"][:size] = allowed
            self._data["logit"][:size] = logits[allowed]
        self.array.data = self._data.ctypes.data_as(llama_cpp.llama_token_data_p)
        self.array.size = size
        self.array.selected = -1
        self.array.sorted = False

    def view(self) -> npt.NDArray[Any]:
        """The candidates that are left (filters may have moved the native pointer)."""
        address = ctypes.addressof(self.array.data.contents)
        size = self.array.size
        buffer: Any = (ctypes.c_char * (size * _CANDIDATE.itemsize)).from_address(address)
        view: npt.NDArray[Any] = np.frombuffer(buffer, _CANDIDATE, size)
        return view

    def selected(self) -> int:
        """The token that the last sampler of a chain chose."""
        return int(self.array.data[self.array.selected].id)


class SamplerChain:
    """The sampling state of one sequence. Free it with `close`."""

    def __init__(
        self,
        request: SequenceRequest,
        vocab: Any,
        vocabulary_size: int,
        context_tokens: int,
        end_tokens: npt.NDArray[np.int32],
        piece: Callable[[int], bytes],
    ) -> None:
        sampling = request.sampling
        self._context_tokens = context_tokens
        self._sampling = sampling
        self._seed_base = f"{request.seed}|{request.choice}|".encode()
        self._top_logprobs = request.top_logprobs
        self._piece = piece
        self._min_tokens = request.min_tokens
        self._end_tokens = end_tokens
        self._banned_early = np.union1d(
            end_tokens, np.fromiter(request.stop_tokens, np.int32, len(request.stop_tokens))
        ).astype(np.int32)
        self._allowed = _allowed(sampling, end_tokens)
        self._banned = end_tokens if request.ignore_eos else None
        self._native: list[Any] = []
        self._learning: list[Any] = []
        self._stages = list(self._build(vocab, vocabulary_size))
        self._greedy = _is_plain_greedy(sampling)
        self._shortlist_of = _leading_top_k(sampling) if vocabulary_size >= _LARGE else 0
        self._temperature = _lone_temperature(sampling)
        self._vocabulary_size = vocabulary_size
        self._mu = 2 * sampling.mirostat.tau if sampling.mirostat is not None else 0.0
        self._adaptive_weight = self._adaptive_sum = 0.0
        if sampling.adaptive is not None:
            self._adaptive_weight = 1 / (1 - sampling.adaptive.decay)
            self._adaptive_sum = sampling.adaptive.target * self._adaptive_weight
        for token in request.prompt if self._learning else ():
            self._learn(token)

    # --- building ---------------------------------------------------------------------------------

    def _build(self, vocab: Any, vocabulary_size: int) -> Iterator[Any]:
        """The stages in order; None stands for XTC, which is made anew for each draw."""
        sampling = self._sampling
        if sampling.logit_bias:
            yield self._own(_logit_bias(sampling, vocabulary_size))
        if sampling.mirostat is not None:
            yield self._own(llama_cpp.llama_sampler_init_temp(sampling.temperature))
            return
        for stage in sampling.stages:
            if stage is Stage.XTC and sampling.xtc_probability > 0:
                yield None
            elif stage is Stage.PENALTIES and sampling.has_penalties:
                penalties = _penalties(sampling, vocabulary_size, self._context_tokens)
                yield self._own_learning(penalties)
            elif stage is Stage.DRY and sampling.has_dry:
                yield self._own_learning(_dry(sampling, vocab, self._context_tokens))
            elif (sampler := _filter(stage, sampling)) is not None:
                yield self._own(sampler)

    def _own(self, sampler: Any) -> Any:
        self._native.append(sampler)
        return sampler

    def _own_learning(self, sampler: Any) -> Any:
        self._learning.append(sampler)
        return self._own(sampler)

    def close(self) -> None:
        """Free the native samplers; the chain is unusable afterwards."""
        for sampler in self._native:
            llama_cpp.llama_sampler_free(sampler)
        self._native, self._learning, self._stages = [], [], []

    @property
    def hidden(self) -> tuple[float, ...]:
        """Mirostat's mu, or adaptive-p's running sums; empty without either."""
        if self._sampling.mirostat is not None:
            return (self._mu,)
        if self._sampling.adaptive is not None:
            return self._adaptive_sum, self._adaptive_weight
        return ()

    def recall(self, hidden: tuple[float, ...]) -> None:
        """Go on from what another chain of the same request had in `hidden`."""
        if self._sampling.mirostat is not None:
            (self._mu,) = hidden
        elif self._sampling.adaptive is not None:
            self._adaptive_sum, self._adaptive_weight = hidden

    # --- sampling ---------------------------------------------------------------------------------

    def accept(self, token: int) -> None:
        """Take note of an output token."""
        if self._learning:
            self._learn(token)

    def _learn(self, token: int) -> None:
        for sampler in self._learning:
            llama_cpp.llama_sampler_accept(sampler, token)

    def choose(
        self, logits: Logits, draw: int, scratch: Candidates, mask: TokenMask | None = None
    ) -> int:
        """Draw number `draw` (the count of output tokens so far) from a row of logits, of which
        `mask` leaves some tokens."""
        banned = self._banned_early if draw < self._min_tokens else self._banned
        allowed: npt.NDArray[np.integer[Any]] | None = self._allowed
        if mask is not None:
            logits, allowed = self._masked(logits, mask, banned)
        elif banned is not None:
            logits = logits.copy()
            logits[banned] = -np.inf
            if self._sampling.typical_p < 1:  # which would compute NaN from them
                allowed = _finite(logits, allowed)
        if self._greedy or (allowed is not None and len(allowed) == 1):
            return int(logits.argmax() if allowed is None else allowed[logits[allowed].argmax()])
        if allowed is None and self._temperature > 0:
            return self._draw_from_all(logits / np.float32(self._temperature), draw)
        scratch.fill(logits, self._candidates(logits) if allowed is None else allowed)
        for sampler in self._stages:
            if sampler is None:
                self._apply_xtc(draw, scratch)
            else:
                llama_cpp.llama_sampler_apply(sampler, scratch.reference)
        if self._sampling.mirostat is not None:
            return self._choose_mirostat(draw, scratch)
        if self._sampling.adaptive is not None:
            return self._choose_adaptive(draw, scratch)
        return self._choose_at_random(draw, scratch)

    def logprobs(self, logits: Logits, token: int) -> ChosenLogprob | None:
        """The log probability of `token` and of the best tokens, where the request asks for
        them."""
        if self._top_logprobs is None:
            return None
        logs = logits - logits.max()
        logs = logs - np.log(np.exp(logs, dtype=np.float64).sum())
        count = min(self._top_logprobs, len(logs))
        best: npt.NDArray[np.intp] = (
            np.argpartition(-logs, count - 1)[:count] if count else np.empty(0, np.intp)
        )
        best = best[np.argsort(-logs[best], kind="stable")]
        return ChosenLogprob(
            self._logprob(logs, token), tuple(self._logprob(logs, int(i)) for i in best)
        )

    def _logprob(self, logs: npt.NDArray[Any], token: int) -> Logprob:
        return Logprob(token, self._piece(token), float(logs[token]))

    def _seed(self, draw: int, purpose: bytes) -> int:
        digest = hashlib.blake2b(self._seed_base + b"%d|%s" % (draw, purpose), digest_size=4)
        seed = int.from_bytes(digest.digest(), "little")
        return seed if seed != _RANDOM_SEED else 0

    def _apply_xtc(self, draw: int, scratch: Candidates) -> None:
        sampling = self._sampling
        _apply_once(
            llama_cpp.llama_sampler_init_xtc(
                sampling.xtc_probability,
                sampling.xtc_threshold,
                sampling.min_keep,
                self._seed(draw, b"xtc"),
            ),
            scratch,
        )

    def _masked(
        self, logits: Logits, mask: TokenMask, banned: npt.NDArray[np.int32] | None
    ) -> tuple[Logits, npt.NDArray[np.integer[Any]] | None]:
        """A row and the candidates in it; a row of its own, with no list, where they are many and
        what follows can do without.

        Where a request forbids all that its constraint allows, the constraint wins: there would be
        no token at all.
        """
        left, few = mask
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
        if few is None and (self._greedy or self._temperature > 0 or self._shortlist_of):
            row = logits.copy()
            row[~left] = -np.inf
            return row, None
        return logits, np.flatnonzero(left) if few is None else few

    def _candidates(self, logits: Logits) -> npt.NDArray[np.integer[Any]] | None:
        """The tokens that the filters have to look at; None for all."""
        return _shortlist(logits, self._shortlist_of) if self._shortlist_of else None

    def _draw_from_all(self, logits: Logits, draw: int) -> int:
        """A draw from the whole vocabulary: the place of a random number in the running sum.

        Sums of blocks first, then inside one block: a running sum over everything takes 4x longer.
        """
        weights = np.exp(logits - logits.max())
        whole = len(weights) // _BLOCK * _BLOCK
        blocks = weights[:whole].reshape(-1, _BLOCK).sum(axis=1, dtype=np.float64)
        sums = np.cumsum(np.append(blocks, weights[whole:].sum(dtype=np.float64)))
        mark = self._seed(draw, b"draw") / 2**32 * sums[-1]
        block = int(np.searchsorted(sums, mark, side="right"))
        start = block * _BLOCK
        inside = np.cumsum(weights[start : start + _BLOCK], dtype=np.float64)
        rest = mark - (sums[block - 1] if block else 0.0)
        place = int(np.searchsorted(inside, rest, side="right"))
        # Rounding may leave the mark behind the last token that has any weight.
        return start + min(place, int(np.flatnonzero(weights[start : start + _BLOCK])[-1]))

    def _choose_at_random(self, draw: int, scratch: Candidates) -> int:
        _apply_once(llama_cpp.llama_sampler_init_dist(self._seed(draw, b"draw")), scratch)
        return scratch.selected()

    def _choose_mirostat(self, draw: int, scratch: Candidates) -> int:
        """Mirostat (arXiv:2007.14966): keep what surprises less than mu bits, draw, and steer mu
        towards tau."""
        settings = self._sampling.mirostat
        if settings is None:
            raise ValueError("no mirostat settings")
        found = np.sort(scratch.view(), order="logit")[::-1]
        if np.isneginf(found["logit"][0]):
            return int(found["id"][0])  # the request forbids every token: nothing to learn from
        probabilities = _softmax(found["logit"])
        if settings.version == 1:
            keep = self._mirostat_top_k(probabilities)
        else:
            keep = max(int((-np.log2(np.maximum(probabilities, 1e-45)) <= self._mu).sum()), 1)
        probabilities = probabilities[:keep] / probabilities[:keep].sum()
        scratch.fill(found["logit"], np.arange(keep, dtype=np.int32))
        _apply_once(llama_cpp.llama_sampler_init_dist(self._seed(draw, b"draw")), scratch)
        place = scratch.selected()
        surprise = -float(np.log(probabilities[place])) / _LN2
        self._mu -= settings.eta * (surprise - settings.tau)
        return int(found["id"][place])

    def _mirostat_top_k(self, probabilities: npt.NDArray[np.float64]) -> int:
        """Version 1's estimate of how many tokens stay below mu, from the slope of the most
        probable ones."""
        top = probabilities[:_MIROSTAT_ESTIMATE_TOKENS]
        top = top[top > 0]
        if len(top) < 2:
            return 1
        ranks = np.arange(1, len(top), dtype=np.float64)
        steps = np.log((ranks + 1) / ranks)
        slope = float((steps * np.log(top[:-1] / top[1:])).sum() / (steps * steps).sum())
        if slope <= 0:
            return len(probabilities)
        excess = slope - 1 if slope != 1 else 1e-6
        whole = -math.expm1(-excess * math.log(self._vocabulary_size))
        # In logarithms: a large mu, or a flat row, is beyond what a float can hold.
        log_k = (math.log(excess / whole) + self._mu * _LN2) / slope
        return int(math.exp(min(max(log_k, 0.0), math.log(len(probabilities)))))

    def _choose_adaptive(self, draw: int, scratch: Candidates) -> int:
        """Adaptive-p: prefer tokens whose probability is near a target that makes up for the past.

        Constants are llama.cpp's: width 0.3, peak logit 5, sharpness 10.
        """
        settings = self._sampling.adaptive
        if settings is None:
            raise ValueError("no adaptive settings")
        found = scratch.view().copy()
        if np.isneginf(found["logit"].max()):
            return int(found["id"][0])  # as in mirostat
        probabilities = _softmax(found["logit"])
        aim = float(np.clip(2 * settings.target - self._adaptive_sum / self._adaptive_weight, 0, 1))
        distance = np.abs(probabilities - aim) / 0.3
        logits = (5 - 10 * distance**2 / (1 + distance)).astype(np.float32)
        logits[np.isneginf(found["logit"])] = -np.inf
        scratch.fill(logits, np.arange(len(found), dtype=np.int32))
        _apply_once(llama_cpp.llama_sampler_init_dist(self._seed(draw, b"draw")), scratch)
        place = scratch.selected()
        self._adaptive_sum = float(probabilities[place]) + settings.decay * self._adaptive_sum
        self._adaptive_weight = 1 + settings.decay * self._adaptive_weight
        return int(found["id"][place])


def _apply_once(sampler: Any, scratch: Candidates) -> None:
    llama_cpp.llama_sampler_apply(sampler, scratch.reference)
    llama_cpp.llama_sampler_free(sampler)


def _softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    powers: npt.NDArray[np.float64] = np.exp(logits.astype(np.float64) - float(logits.max()))
    powers /= powers.sum()
    return powers


def _is_plain_greedy(sampling: Sampling) -> bool:
    """Whether the choice is the best logit whatever the filters say."""
    return (
        sampling.temperature == 0
        and sampling.dynatemp_range == 0
        and Stage.TEMPERATURE in sampling.stages
        and sampling.xtc_probability == 0
        and not sampling.has_penalties
        and not sampling.has_dry
        and not sampling.logit_bias
        and sampling.mirostat is None
        and sampling.adaptive is None
    )


def _lone_temperature(sampling: Sampling) -> float:
    """The temperature where it is the only thing that shapes the draw (OpenAI's defaults); else
    0."""
    alone = (
        sampling.top_k == 0
        and sampling.top_p == 1
        and sampling.min_p == 0
        and sampling.typical_p == 1
        and sampling.top_n_sigma < 0
        and sampling.dynatemp_range == 0
        and sampling.xtc_probability == 0
        and not sampling.has_penalties
        and not sampling.has_dry
        and not sampling.logit_bias
        and sampling.mirostat is None
        and sampling.adaptive is None
        and Stage.TEMPERATURE in sampling.stages
    )
    return sampling.temperature if alone else 0.0


def _leading_top_k(sampling: Sampling) -> int:
    """k where top-k is the first filter that does anything and keeps few; else 0."""
    changes_logits = (
        sampling.logit_bias
        or sampling.has_penalties
        or sampling.has_dry
        or sampling.top_n_sigma >= 0
        or sampling.mirostat is not None
    )
    if changes_logits or not 0 < max(sampling.top_k, sampling.min_keep) <= _MAX_SHORTLISTED:
        return 0
    first = next((stage for stage in sampling.stages if stage in _TRUNCATING), None)
    return max(sampling.top_k, sampling.min_keep) if first is Stage.TOP_K else 0


def _shortlist(logits: Logits, k: int) -> npt.NDArray[np.integer[Any]] | None:
    """Tokens among which the k best certainly are: those over a threshold guessed from a sample.

    Comparing 152 k logits takes 40 us, handing all of them to a native filter 370. None where the
    guess was too high (about once in some thousand rows): then all tokens are looked at.
    """
    sample = logits[:: max(len(logits) // _SAMPLED, 1)]
    rank = max(8 * k * len(sample) // len(logits), 4) + 1
    threshold = np.partition(sample, len(sample) - rank)[len(sample) - rank]
    found = np.flatnonzero(logits >= threshold)
    return found if len(found) >= k else None


def _finite(
    logits: Logits, among: npt.NDArray[np.integer[Any]] | None
) -> npt.NDArray[np.integer[Any]] | None:
    """The tokens that nothing forbids; `among` itself where there are none."""
    left = np.flatnonzero(logits > -np.inf)
    left = left if among is None else np.intersect1d(among, left, assume_unique=True)
    return left if len(left) else among


def _allowed(sampling: Sampling, ends: npt.NDArray[np.int32]) -> npt.NDArray[np.int32] | None:
    if not sampling.allowed_token_ids:
        return None
    return np.union1d(np.array(sampling.allowed_token_ids, np.int32), ends).astype(np.int32)


def _logit_bias(sampling: Sampling, vocabulary_size: int) -> Any:
    biases = (llama_cpp.llama_logit_bias * len(sampling.logit_bias))()
    for entry, (token, bias) in zip(biases, sampling.logit_bias, strict=True):
        entry.token, entry.bias = token, bias if bias > -100 else float("-inf")
    return llama_cpp.llama_sampler_init_logit_bias(vocabulary_size, len(biases), biases)


def _penalties(sampling: Sampling, vocabulary_size: int, context_tokens: int) -> Any:
    return llama_cpp.llama_sampler_init_penalties(
        vocabulary_size,
        _window(sampling.penalty_last_n, context_tokens),
        sampling.repetition_penalty,
        sampling.frequency_penalty,
        sampling.presence_penalty,
    )


def _dry(sampling: Sampling, vocab: Any, context_tokens: int) -> Any:
    dry = sampling.dry or Dry()
    breakers = [text.encode() for text in dry.sequence_breakers]
    return llama_cpp.llama_sampler_init_dry(
        vocab,
        dry.multiplier,
        dry.base,
        dry.allowed_length,
        _window(dry.penalty_last_n, context_tokens),
        (ctypes.c_char_p * len(breakers))(*breakers),
        len(breakers),
    )


def _window(last_n: int, context_tokens: int) -> int:
    """-1 means the whole context; llama.cpp allocates as much as it is told."""
    return last_n if last_n >= 0 else context_tokens


def _filter(stage: Stage, sampling: Sampling) -> Any:
    """The sampler of a stateless stage; None where its setting makes it do nothing."""
    keep = sampling.min_keep
    if stage is Stage.TEMPERATURE:
        return llama_cpp.llama_sampler_init_temp_ext(
            sampling.temperature, sampling.dynatemp_range, sampling.dynatemp_exponent
        )
    if stage is Stage.TOP_K and sampling.top_k > 0:
        return llama_cpp.llama_sampler_init_top_k(sampling.top_k)
    if stage is Stage.TOP_P and sampling.top_p < 1:
        return llama_cpp.llama_sampler_init_top_p(sampling.top_p, keep)
    if stage is Stage.MIN_P and sampling.min_p > 0:
        return llama_cpp.llama_sampler_init_min_p(sampling.min_p, keep)
    if stage is Stage.TYPICAL_P and sampling.typical_p < 1:
        return llama_cpp.llama_sampler_init_typical(sampling.typical_p, keep)
    if stage is Stage.TOP_N_SIGMA and sampling.top_n_sigma >= 0:
        return llama_cpp.llama_sampler_init_top_n_sigma(sampling.top_n_sigma)
    return None
