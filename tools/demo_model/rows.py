"""Reads the corpus as rows of tokens, in an order that depends on nothing but the seed.

A row is one conversation from position 0, padded; rows of one length are one file. A step trains
rows of one length only, so that the shapes, and with them the compiled code, stay few.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

BACKGROUND = 0.1  # below this weight a position is text that is read, not an answer
BACKGROUND_SHARE = 0.5

Step = tuple[int, NDArray[np.int64]]


@dataclass(frozen=True)
class Batch:
    """One process's part of a step; `chosen` counts positions in the flattened rows."""

    tokens: NDArray[np.int64]
    chosen: NDArray[np.int64]
    targets: NDArray[np.int64]
    weights: NDArray[np.float32]


class Corpus:
    """A folder that corpus.py wrote, mapped into memory."""

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
        """The steps of a run, each a row length and its rows; every row is used at most once.

        The lengths are spread evenly over the run. Rows that fill no whole step are left out.
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
        """The tokens of one row."""
        row: NDArray[np.int64] = self._tokens[length][0].astype(np.int64)
        return row

    def batch(self, step: Step, rank: int, world: int, seed: tuple[int, int]) -> Batch:
        """One process's rows of a step, with the positions whose loss counts.

        These are all the answers and a random half of the other text: scores over the vocabulary
        are a good part of the work, and the other text is there to be read.
        """
        length, rows = step
        own = rows[rank::world]
        tokens = self._tokens[length][own].astype(np.int64)
        weights = self.weights[self._codes[length][own]]
        weights[:, 0] = 0.0  # nothing comes before it
        random = np.random.default_rng((*seed, rank))
        heard = random.random(weights.shape, dtype=np.float32) < BACKGROUND_SHARE
        targets = np.flatnonzero((weights > BACKGROUND) | ((weights > 0) & heard))
        return Batch(tokens, targets - 1, tokens.ravel()[targets], weights.ravel()[targets])
