"""Changes logits of a row before filters: biases, bans, penalties, DRY. Changes are undone
afterwards.
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
    """Logits as they were before a change."""

    ids: TokenIds
    logits: Logits


class TokenSet:
    """The distinct tokens of a sequence, in an array that grows."""

    def __init__(self) -> None:
        self._known: set[int] = set()
        self._ids = np.empty(64, np.int32)

    def add(self, token: int) -> None:
        """Take note of a token."""
        if token in self._known:
            return
        count = len(self._known)
        if count == len(self._ids):
            self._ids = np.concatenate([self._ids, np.empty(count, np.int32)])
        self._ids[count] = token
        self._known.add(token)

    @property
    def ids(self) -> npt.NDArray[np.int32]:
        """Each token once."""
        return self._ids[: len(self._known)]


class LogitsProcessors:
    """The edits of one sequence; `penalties` are those that come before all other filters,
    `suppressed` the tokens that the model must not say."""

    def __init__(
        self, sampling: Sampling, penalties: NativeFilters, suppressed: Iterable[int] = ()
    ) -> None:
        self._penalties = penalties
        self._seen = TokenSet()
        biases: dict[int, float] = dict.fromkeys(suppressed, -math.inf)
        for token, bias in sampling.logit_bias:
            bias = bias if bias > FORBIDDEN_BIAS else -math.inf
            biases[token] = biases.get(token, 0.0) + bias
        self._biased = np.fromiter(biases.keys(), np.int32, len(biases))
        self._biases = np.fromiter(biases.values(), np.float32, len(biases))

    @property
    def learns(self) -> bool:
        """Whether the tokens so far matter."""
        return self._penalties.learns

    def learn(self, token: int) -> None:
        """Take note of a prompt or output token."""
        self._seen.add(token)
        self._penalties.learn(token)

    def close(self) -> None:
        """Free the native memory."""
        self._penalties.close()

    def apply(self, row: Logits, banned: TokenIds | None, scratch: Candidates) -> list[SavedLogits]:
        """Change a row; returns what `undo` needs."""
        changes: list[SavedLogits] = []
        if len(self._biased):
            _change(row, self._biased, row[self._biased] + self._biases, changes)
        if banned is not None:
            _change(row, banned, -np.inf, changes)
        if self.learns:
            self._penalise(row, scratch, changes)
        return changes

    def _penalise(self, row: Logits, scratch: Candidates, changes: list[SavedLogits]) -> None:
        seen = self._seen.ids
        scratch.fill(row, seen)
        self._penalties.apply(scratch, int)
        # Penalties change logits where they are: order and number of the candidates stay.
        _change(row, seen, scratch.view()["logit"], changes)


def undo(row: Logits, changes: list[SavedLogits]) -> None:
    """Put a row back."""
    for ids, logits in reversed(changes):
        row[ids] = logits


def _change(row: Logits, ids: TokenIds, logits: Logits | float, changes: list[SavedLogits]) -> None:
    changes.append(SavedLogits(ids, row[ids]))
    row[ids] = logits
