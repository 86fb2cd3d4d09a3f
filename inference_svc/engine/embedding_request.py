"""Requests, limits and the backend interface of embeddings and scores: token lists in, a vector
each out.
"""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from inference_svc.engine.batch import NativeLimits, TokenBatch

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """The inputs of one call, each a list of tokens within the model's limits.

    `dimensions` cuts each vector, `normalize` then scales it to length 1. `deadline` is on the
    machine's monotonic clock; `project` is who shares the turns with others; `request_id` is the
    RPC's.
    """

    sequence_id: int
    model: str
    inputs: "tuple[array[int], ...]"
    project: str = ""
    dimensions: int | None = None
    normalize: bool = False
    priority: int = 2
    deadline: float | None = None
    request_id: str = ""

    @property
    def num_tokens(self) -> int:
        """Tokens of all inputs."""
        return sum(map(len, self.inputs))


class SubmitEmbedding(NamedTuple):
    """Queue the inputs of a call."""

    request: EmbeddingRequest


@dataclass(frozen=True, slots=True)
class EmbeddingLimits:
    """What an embedding context takes; all counts.

    One decode holds up to `batch_tokens` tokens of up to `sequences` inputs, and unfinished inputs
    hold up to `cells` tokens together. An input has up to `input_tokens`. Where `splits`, an input
    may be spread over several decodes; the vector of each part is then the mean over the part
    where `averages`, and the last part's counts otherwise.
    """

    batch_tokens: int
    input_tokens: int
    sequences: int
    cells: int
    vector_size: int
    vocabulary_size: int
    splits: bool = False
    averages: bool = False

    @property
    def native(self) -> NativeLimits:
        """The same as bounds of a token batch, in which every token is an output."""
        return NativeLimits(
            batch_tokens=self.batch_tokens,
            output_rows=self.batch_tokens,
            slots=self.sequences,
            slot_tokens=self.input_tokens,
            vocabulary_size=self.vocabulary_size,
        )


class EmbeddingBackend(Protocol):
    """A model with a context for embeddings. All methods are called from the one step thread."""

    @property
    def limits(self) -> EmbeddingLimits:
        """What it takes."""

    def embed(self, batch: TokenBatch) -> Mapping[int, Vector]:
        """The pooled vector of each slot's tokens in this batch.

        Raises `DecodeError` (slots may then hold a part of it), or a `DomainError` where there is
        no memory for a context.
        """

    def clear_slot(self, slot: int) -> None:
        """Empty a slot."""
