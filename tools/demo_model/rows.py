"""Read the corpus as rows of tokens, in an order that depends only on the seed.

A row is one padded conversation; rows of one length are one file. The rows of a step have one
length, so that few shapes need to be compiled.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

BACKGROUND = 0.1  # tokens up to this weight are context, not answers
BACKGROUND_SHARE = 0.5

Step = tuple[int, NDArray[np.int64]]


@dataclass(frozen=True)
class Batch:
    """One process's part of a step; `chosen` are indices into the flattened rows."""

    tokens: NDArray[np.int64]
    chosen: NDArray[np.int64]
    targets: NDArray[np.int64]
    weights: NDArray[np.float32]


class Corpus:
    """A folder written by corpus.py, memory-mapped."""

    def __init__(self, folder: Path) -> None:
        about: dict[str, Any] = json.loads((folder / "corpus.json").read_text())
        self.digest = str(about["digest"])
        self.weights = np.array(about["weights"], dtype=np.float32)
        self.lengths = [
            length for length in about["row_lengths"] if (folder / f"tokens-{length}.npy").exists()
        ]
        self._tokens = {n: np.load(folder / f"tokens-{n}.npy", mmap_mode="r") for n in self.lengths}
        self._codes = {n: np.load(folder / f"weights-{n}.npy", mmap_mode="r") for n in self.lengths}

    def steps(self, tokens_per_step: int, seed: int) -> list[Step]:
        """Steps of a run as (row length, row indices); every row is used at most once.

        The lengths are spread evenly over the run. Rows that do not fill a step are dropped.
        """
        random = np.random.default_rng(seed)
        placed: list[tuple[float, int, NDArray[np.int64]]] = []
        for length in self.lengths:
            rows = random.permutation(len(self._tokens[length]))
            per_step = max(1, tokens_per_step // length)
            count = len(rows) // per_step
            for index, part in enumerate(np.split(rows[: count * per_step], max(1, count))):
                if len(part):
                    placed.append(((index + random.random()) / count, length, np.sort(part)))
        placed.sort(key=lambda each: each[:2])
        return [(length, rows) for _, length, rows in placed]

    def first_row(self, length: int) -> NDArray[np.int64]:
        """Tokens of the first row of a length."""
        row: NDArray[np.int64] = self._tokens[length][0].astype(np.int64)
        return row

    def batch(self, step: Step, rank: int, world: int, seed: tuple[int, int]) -> Batch:
        """One process's rows of a step, and the positions that have a loss.

        These are all answer tokens and a random half of the context tokens: computing the logits
        is expensive, and context tokens have little weight.
        """
        length, rows = step
        own = rows[rank::world]
        tokens = self._tokens[length][own].astype(np.int64)
        weights = self.weights[self._codes[length][own]]
        weights[:, 0] = 0.0  # no token predicts the first one
        random = np.random.default_rng((*seed, rank))
        sampled = random.random(weights.shape, dtype=np.float32) < BACKGROUND_SHARE
        targets = np.flatnonzero((weights > BACKGROUND) | ((weights > 0) & sampled))
        return Batch(tokens, targets - 1, tokens.ravel()[targets], weights.ravel()[targets])
