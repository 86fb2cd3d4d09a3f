"""Modifies the logits of a row before the filters: biases, bans, penalties, DRY. The changes are
undone after sampling.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from inference_svc.engine.sampling_params import Sampling
from inference_svc.llama.sampling.candidates import Candidates, Logits, TokenIds
from inference_svc.llama.sampling.native_filters import NativeFilters

FORBIDDEN_BIAS = -100.0


class SavedLogits(NamedTuple):
    """Original logits of changed tokens."""

    ids: TokenIds
    logits: Logits


class TokenSet:
    """The distinct tokens of a sequence, in a growing array."""

    def __init__(self) -> None:
        self._tokens: set[int] = set()
        self._ids = np.empty(64, np.int32)

    def add(self, token: int) -> None:
        if token in self._tokens:
            return
        count = len(self._tokens)
        if count == len(self._ids):
            self._ids = np.concatenate([self._ids, np.empty(count, np.int32)])
        self._ids[count] = token
        self._tokens.add(token)

    @property
    def ids(self) -> npt.NDArray[np.int32]:
        """Each token once."""
        return self._ids[: len(self._tokens)]


class LogitsProcessors:
    """The logits processors of one sequence. `penalties` are those that precede all filters;
    `suppressed` tokens are never sampled."""

    def __init__(
        self, sampling: Sampling, penalties: NativeFilters, suppressed: Iterable[int] = ()
    ) -> None:
        self._penalties = penalties
        self._history = TokenSet()
        biases: dict[int, float] = dict.fromkeys(suppressed, -math.inf)
        for token, bias in sampling.logit_bias:
            bias = bias if bias > FORBIDDEN_BIAS else -math.inf
            biases[token] = biases.get(token, 0.0) + bias
        self._biased = np.fromiter(biases.keys(), np.int32, len(biases))
        self._biases = np.fromiter(biases.values(), np.float32, len(biases))

    @property
    def is_stateful(self) -> bool:
        """Whether previous tokens affect the logits."""
        return self._penalties.is_stateful

    def accept(self, token: int) -> None:
        """Add a prompt or output token to the history."""
        self._history.add(token)
        self._penalties.accept(token)

    def close(self) -> None:
        """Free the native memory."""
        self._penalties.close()

    def apply(self, row: Logits, banned: TokenIds | None, scratch: Candidates) -> list[SavedLogits]:
        """Change a row; returns the changes for `undo`."""
        changes: list[SavedLogits] = []
        if len(self._biased):
            _set_logits(row, self._biased, row[self._biased] + self._biases, changes)
        if banned is not None:
            _set_logits(row, banned, -np.inf, changes)
        if self.is_stateful:
            self._penalize(row, scratch, changes)
        return changes

    def _penalize(self, row: Logits, scratch: Candidates, changes: list[SavedLogits]) -> None:
        ids = self._history.ids
        scratch.fill(row, ids)
        self._penalties.apply(scratch, int)
        # Penalties change logits in place: order and number of the candidates stay the same.
        _set_logits(row, ids, scratch.view()["logit"], changes)


def undo(row: Logits, changes: list[SavedLogits]) -> None:
    """Restore the original logits of a row."""
    for ids, logits in reversed(changes):
        row[ids] = logits


def _set_logits(
    row: Logits, ids: TokenIds, logits: Logits | float, changes: list[SavedLogits]
) -> None:
    changes.append(SavedLogits(ids, row[ids]))
    row[ids] = logits
