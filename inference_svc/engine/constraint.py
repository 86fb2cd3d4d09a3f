"""The engine's interface to structured output: guides compute the token mask of each position.

A mask depends on the previous tokens but not on logits, so it is computed on another thread while
the model decodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from inference_svc.output_format import OutputFormat

MAX_FORCED = 31
"""Maximum number of forced tokens in a row, after the sampled one: 32 together.

Up to 33 tokens of a sequence in one batch have bit-identical logits to those computed one by one;
from 64 on llama.cpp uses another kernel.
"""


@dataclass(frozen=True, slots=True)
class Constraint:
    """A grammar that compiled successfully in the sandbox. `field` is its name in errors.

    `form` is the same as the caller wrote it, where it is nothing but an output format: for engines
    that do not take the grammar.
    """

    grammar: str
    field: str
    form: OutputFormat | None = None


class GuideError(Exception):
    """A grammar cannot be built or followed any further; the message is the reason."""


class TokenMask(NamedTuple):
    """The allowed next tokens."""

    allowed: npt.NDArray[np.bool_]
    """Whether each token id is allowed; shape (vocabulary,)."""
    few: npt.NDArray[np.int32] | None
    """The allowed token ids; None if there are many."""


def single_token_mask(token: int, size: int) -> TokenMask:
    """The mask that allows one token of a vocabulary of this size."""
    allowed = np.zeros(size, np.bool_)
    allowed[token] = True
    return TokenMask(allowed, np.array([token], np.int32))


class Guide(Protocol):
    """The state of one sequence in its grammar. Used on the step thread only."""

    def wait(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` seconds for the grammar. Returns whether it is built.

        Raises `GuideError`.
        """

    @property
    def is_finished(self) -> bool:
        """Whether the grammar allows only the end of the text. Raises `GuideError`."""

    def prepare(self) -> None:
        """Start to compute the mask of the next token in the background."""

    def mask(self) -> TokenMask:
        """The mask of the next token. Raises `GuideError`."""

    def accept(self, tokens: Sequence[int]) -> None:
        """Advance by tokens. Raises `GuideError` if one of them is not allowed."""

    def forced_tokens(self, limit: int) -> Sequence[int]:
        """Accept and return up to `limit` next tokens that the grammar determines uniquely.

        Raises `GuideError`.
        """

    def close(self) -> None:
        """Release the guide when its sequence has ended."""
