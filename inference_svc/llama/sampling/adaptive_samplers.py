"""Mirostat and adaptive-p, with llama.cpp's formulas; their state is kept here, since llama.cpp
cannot return it.
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
    """Mirostat 1 and 2 (arXiv:2007.14966): keep what surprises less than mu bits, draw, and steer
    mu towards tau."""

    def __init__(self, settings: Mirostat, temperature: float, vocabulary_size: int) -> None:
        self._settings = settings
        self._temperature = temperature
        self._vocabulary_size = vocabulary_size
        self._mu = 2 * settings.tau

    @property
    def hidden(self) -> tuple[float, ...]:
        """Mu, in bits."""
        return (self._mu,)

    @hidden.setter
    def hidden(self, hidden: tuple[float, ...]) -> None:
        (self._mu,) = hidden

    def choose(self, row: Logits, ids: TokenIds | None, scratch: Candidates, seed: int) -> int:
        """A token of a row, or of `ids` in it."""
        logits = row if ids is None else row[ids]
        place = self._choose_place(logits, scratch, seed)
        return place if ids is None else int(ids[place])

    def _choose_place(self, logits: Logits, scratch: Candidates, seed: int) -> int:
        best = logits.max()
        if np.isneginf(best):
            return 0  # the request forbids every token: nothing to learn from
        if self._temperature == 0:
            self._learn(0.0)
            return int(logits.argmax())
        logs = (logits - best) / np.float32(self._temperature)
        logs -= np.float32(
            math.log(np.exp(logs, out=scratch.weights[: len(logs)]).sum(dtype=float))
        )
        kept = self._keep(logs)
        scratch.put(kept, logs[kept])
        place = sample_candidate(scratch, seed)
        total = float(np.exp(logs[kept], dtype=np.float64).sum())
        self._learn((math.log(total) - float(logs[place])) / _LN2)
        return place

    def _keep(self, logs: Logits) -> TokenIds:
        """The places of the tokens to draw from, most probable first, by their log
        probabilities."""
        if self._settings.version == 1:
            return largest(logs, self._estimated_count(logs))
        found = np.flatnonzero(logs >= np.float32(-self._mu * _LN2))
        if not len(found):
            return largest(logs, 1)
        return found[np.argsort(-logs[found], kind="stable")]

    def _learn(self, surprise: float) -> None:
        """Take note of how many bits the drawn token surprised by."""
        self._mu -= self._settings.eta * (surprise - self._settings.tau)

    def _estimated_count(self, logs: Logits) -> int:
        """Version 1's estimate of how many tokens stay below mu, from the slope of the most
        probable ones."""
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
        # In logarithms: a large mu, or a flat row, is beyond what a float can hold.
        log_k = (math.log(excess / whole) + self._mu * _LN2) / slope
        return int(math.exp(min(max(log_k, 0.0), math.log(len(logs)))))


class AdaptiveSampler:
    """Adaptive-p: prefer tokens whose probability is near a target that makes up for the past."""

    def __init__(self, settings: Adaptive) -> None:
        self._settings = settings
        self._weight = 1 / (1 - settings.decay)
        self._sum = settings.target * self._weight

    @property
    def hidden(self) -> tuple[float, ...]:
        """The running sum of the drawn probabilities, and that of its weights."""
        return self._sum, self._weight

    @hidden.setter
    def hidden(self, hidden: tuple[float, ...]) -> None:
        self._sum, self._weight = hidden

    def choose(self, scratch: Candidates, seed: int) -> int:
        """A token of the candidates that the filters left."""
        found = scratch.view().copy()
        if np.isneginf(found["logit"].max()):
            return int(found["id"][0])  # as in mirostat
        probabilities = _softmax(found["logit"])
        aim = min(max(2 * self._settings.target - self._sum / self._weight, 0.0), 1.0)
        distance = np.abs(probabilities - aim) * _INVERSE_WIDTH
        logits = (_PEAK_LOGIT - _SHARPNESS * distance**2 / (1 + distance)).astype(np.float32)
        logits[np.isneginf(found["logit"])] = -np.inf
        scratch.put(np.arange(len(found)), logits)
        place = sample_candidate(scratch, seed)
        self._sum = float(probabilities[place]) + self._settings.decay * self._sum
        self._weight = 1 + self._settings.decay * self._weight
        return int(found["id"][place])


def _softmax(logits: Logits) -> npt.NDArray[np.float64]:
    powers: npt.NDArray[np.float64] = np.exp(logits.astype(np.float64) - float(logits.max()))
    powers /= powers.sum()
    return powers
