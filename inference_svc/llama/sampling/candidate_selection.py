"""Selects the tokens of a large vocabulary that filters have to look at.

Handing 152 k candidates to llama.cpp takes 0.4 ms and sorting them 8 ms more; comparing logits
takes a fraction.
"""

import math
from collections.abc import Callable

import numpy as np

from inference_svc.engine.sampling_params import Sampling, Stage
from inference_svc.llama.sampling.candidates import Candidates, Logits, TokenIds

LARGE = 16384  # tokens: below, looking at all of them is as fast as guessing
_SAMPLED = 2048
_MAX_SHORTLISTED = 256
_NUCLEUS_GUESSES = (32, 256, 2048)
Selection = Callable[[Logits, Candidates], TokenIds | None]
"""The tokens of a row that a filter keeps (top-k: and some more); None where that is not known."""


def selection_of(stage: Stage, sampling: Sampling) -> Selection | None:
    """How to find quickly what `stage`, the first filter of a chain, keeps; None where there is no
    quick way."""
    match stage:
        case Stage.TOP_K:
            k = max(sampling.top_k, sampling.min_keep)
            return (lambda row, _: likely(row, k)) if k <= _MAX_SHORTLISTED else None
        case Stage.MIN_P if sampling.min_p <= 1:
            return lambda row, _: _as_probable(row, sampling.min_p, sampling.min_keep)
        case Stage.TOP_P:
            return lambda row, scratch: _nucleus(
                row, sampling.top_p, sampling.min_keep, scratch.weights
            )
        case Stage.TOP_N_SIGMA:
            return lambda row, _: _within_sigmas(row, sampling.top_n_sigma)
        case _:
            return None


def likely(row: Logits, k: int) -> TokenIds | None:
    """Tokens among which the k best certainly are; None where the guess was too high (about once in
    some thousand rows): then all tokens are to be looked at."""
    found = _over_guess(row, k)
    return found if len(found) >= k else None


def largest(values: Logits, k: int) -> TokenIds:
    """The places of the k largest values, largest first."""
    k = min(k, len(values))
    if k == 0:
        return np.empty(0, np.intp)
    found = likely(values, k) if len(values) >= LARGE and k <= _MAX_SHORTLISTED else None
    if found is None:
        found = np.argpartition(values, len(values) - k)[len(values) - k :]
    return found[np.argsort(-values[found], kind="stable")[:k]]


def finite(row: Logits, among: TokenIds | None) -> TokenIds | None:
    """The tokens that nothing forbids; `among` itself where there are none."""
    left = np.flatnonzero(row > -np.inf) if among is None else among[row[among] > -np.inf]
    return left if len(left) else among


def _over_guess(row: Logits, k: int) -> TokenIds:
    """Tokens over a threshold guessed from a sample: some more than k, all but always."""
    sample = row[:: max(len(row) // _SAMPLED, 1)]
    rank = min(max(8 * k * len(sample) // len(row), 4) + 1, len(sample))
    threshold = np.partition(sample, len(sample) - rank)[len(sample) - rank]
    return np.flatnonzero(row >= threshold)


def _as_probable(row: Logits, min_p: float, min_keep: int) -> TokenIds | None:
    found = np.flatnonzero(row >= row.max() + np.float32(math.log(min_p)))
    return found if len(found) >= max(min_keep, 1) else None


def _within_sigmas(row: Logits, sigmas: float) -> TokenIds | None:
    among = row[row > -np.inf]
    if not len(among):
        return None
    return np.flatnonzero(row >= row.max() - np.float32(sigmas) * among.std())


def _nucleus(row: Logits, share: float, min_keep: int, buffer: Logits) -> TokenIds | None:
    """The smallest set of best tokens with `share` of the probability, best first."""
    best = row.max()
    if np.isneginf(best):
        return None
    weights = np.exp(np.subtract(row, best, out=buffer), out=buffer)
    wanted = share * float(weights.sum())
    for guess in _NUCLEUS_GUESSES:
        found = _over_guess(row, guess)
        if len(found) >= min_keep and weights[found].sum(dtype=np.float64) >= wanted:
            break
    else:
        return None
    found = found[np.argsort(-row[found], kind="stable")]
    sums = np.cumsum(weights[found], dtype=np.float64)
    return found[: max(int(np.searchsorted(sums, wanted)) + 1, min_keep)]
