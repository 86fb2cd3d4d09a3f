"""The engine's interface to structured output: guides, which return the mask of the next token.

A mask depends on the tokens so far, not on logits, so it is computed on another thread while the
model decodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

# Up to 33 tokens of one sequence in a batch give the logits that one after the other gives, bit for
# bit; from 64 on another kernel computes them.
MAX_FORCED = 31
"""The most forced tokens computed with the sampled one before them: 32 together."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """A grammar that a limited child process has built once. `field` is what errors call it."""

    grammar: str
    field: str


class GuideError(Exception):
    """A sequence cannot follow its grammar any further; the message has the reason."""


class TokenMask(NamedTuple):
    """The tokens that may follow: a truth value for each id, and the ids where they are few."""

    allowed: npt.NDArray[np.bool_]
    few: npt.NDArray[np.int32] | None


class Guide(Protocol):
    """One sequence's place in its grammar. Used on the step thread only."""

    def wait(self, timeout_s: float) -> bool:
        """Whether the grammar is built, waiting at most so long. Raises `GuideError`."""

    @property
    def is_over(self) -> bool:
        """Whether nothing but the end of text may follow. Raises `GuideError`."""

    def prepare(self) -> None:
        """Begin to compute the mask of the next token, elsewhere."""

    def mask(self) -> TokenMask:
        """The mask of the next token. Raises `GuideError`."""

    def accept(self, tokens: Sequence[int]) -> None:
        """Advance by tokens. Raises `GuideError` if one of them is not allowed."""

    def forced_tokens(self, limit: int) -> Sequence[int]:
        """At most `limit` tokens that must follow, already taken; none where there is a choice.
        Raises `GuideError`."""

    def close(self) -> None:
        """The sequence is over."""
