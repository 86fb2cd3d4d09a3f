"""Mirostat and adaptive-p, with llama.cpp's formulas. Implemented here because llama.cpp cannot
export the state of these samplers.
"""

import math

import numpy as np
import numpy.typing as npt

from inference_svc.engine.sampling_params import Adaptive, Mirostat
from inference_svc.llama.sampling.candidate_selection import largest
from inference_svc.llama.sampling.candidates import Candidates, Logits, TokenIds
from inference_svc.llama.sampling.rng import sample_candidate

_LN2 = math.log(2.0)
_MIROSTAT_ESTIMATE_TOKENS = 100
# llama.cpp's constants of adaptive-p.
_INVERSE_WIDTH = 1 / 0.3
_PEAK_LOGIT = 5.0
_SHARPNESS = 10.0


class MirostatSampler:
    """Mirostat 1 and 2 (arXiv:2007.14966): sample from the tokens with a surprise below mu bits,
    and adjust mu so that the average surprise approaches tau."""

    def __init__(self, settings: Mirostat, temperature: float, vocabulary_size: int) -> None:
        self._settings = settings
        self._temperature = temperature
        self._vocabulary_size = vocabulary_size
        self._mu = 2 * settings.tau

    @property
    def hidden(self) -> tuple[float, ...]:
        """Mu in bits."""
        return (self._mu,)

    @hidden.setter
    def hidden(self, hidden: tuple[float, ...]) -> None:
        (self._mu,) = hidden

    def sample(self, row: Logits, ids: TokenIds | None, scratch: Candidates, seed: int) -> int:
        """Sample a token from a row, or from `ids` of it."""
        logits = row if ids is None else row[ids]
        index = self._sample_index(logits, scratch, seed)
        return index if ids is None else int(ids[index])

    def _sample_index(self, logits: Logits, scratch: Candidates, seed: int) -> int:
        best = logits.max()
        if np.isneginf(best):
            return 0  # the request forbids every token
        if self._temperature == 0:
            self._update_mu(0.0)
            return int(logits.argmax())
        logs = (logits - best) / np.float32(self._temperature)
        logs -= np.float32(
            math.log(np.exp(logs, out=scratch.weights[: len(logs)]).sum(dtype=float))
        )
        indices = self._select(logs)
        scratch.put(indices, logs[indices])
        index = sample_candidate(scratch, seed)
        total = float(np.exp(logs[indices], dtype=np.float64).sum())
        self._update_mu((math.log(total) - float(logs[index])) / _LN2)
        return index

    def _select(self, logs: Logits) -> TokenIds:
        """Indices of the tokens to sample from, given log probabilities; most probable first."""
        if self._settings.version == 1:
            return largest(logs, self._estimate_count(logs))
        indices = np.flatnonzero(logs >= np.float32(-self._mu * _LN2))
        if not len(indices):
            return largest(logs, 1)
        return indices[np.argsort(-logs[indices], kind="stable")]

    def _update_mu(self, surprise: float) -> None:
        """Adjust mu after a token with this surprise, in bits."""
        self._mu -= self._settings.eta * (surprise - self._settings.tau)

    def _estimate_count(self, logs: Logits) -> int:
        """Version 1's estimate of the number of tokens with a surprise below mu, from the Zipf
        exponent of the most probable ones."""
        top = logs[largest(logs, _MIROSTAT_ESTIMATE_TOKENS)].astype(np.float64)
        top = top[top > -np.inf]
        if len(top) < 2:
            return 1
        ranks = np.arange(1, len(top), dtype=np.float64)
        steps = np.log((ranks + 1) / ranks)
        slope = float((steps * (top[:-1] - top[1:])).sum() / (steps * steps).sum())
        if slope <= 0:
            return len(logs)
        excess = slope - 1 if slope != 1 else 1e-6
        whole = -math.expm1(-excess * math.log(self._vocabulary_size))
        # In logarithms: a large mu or a flat row overflows a float.
        log_k = (math.log(excess / whole) + self._mu * _LN2) / slope
        return int(math.exp(min(max(log_k, 0.0), math.log(len(logs)))))


class AdaptiveSampler:
    """Adaptive-p: prefers tokens near a target probability, corrected by the past average."""

    def __init__(self, settings: Adaptive) -> None:
        self._settings = settings
        self._weight = 1 / (1 - settings.decay)
        self._sum = settings.target * self._weight

    @property
    def hidden(self) -> tuple[float, ...]:
        """The decayed sum of sampled probabilities, and the sum of its weights."""
        return self._sum, self._weight

    @hidden.setter
    def hidden(self, hidden: tuple[float, ...]) -> None:
        self._sum, self._weight = hidden

    def sample(self, scratch: Candidates, seed: int) -> int:
        """Sample from the candidates that passed the filters."""
        candidates = scratch.view().copy()
        if np.isneginf(candidates["logit"].max()):
            return int(candidates["id"][0])  # the request forbids every token
        probabilities = _softmax(candidates["logit"])
        target = min(max(2 * self._settings.target - self._sum / self._weight, 0.0), 1.0)
        distance = np.abs(probabilities - target) * _INVERSE_WIDTH
        logits = (_PEAK_LOGIT - _SHARPNESS * distance**2 / (1 + distance)).astype(np.float32)
        logits[np.isneginf(candidates["logit"])] = -np.inf
        scratch.put(np.arange(len(candidates)), logits)
        index = sample_candidate(scratch, seed)
        self._sum = float(probabilities[index]) + self._settings.decay * self._sum
        self._weight = 1 + self._settings.decay * self._weight
        return int(candidates["id"][index])


def _softmax(logits: Logits) -> npt.NDArray[np.float64]:
    weights: npt.NDArray[np.float64] = np.exp(logits.astype(np.float64) - float(logits.max()))
    weights /= weights.sum()
    return weights
