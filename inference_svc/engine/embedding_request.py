"""Requests, limits and the backend interface of embeddings and scores."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from inference_svc.engine.batch import NativeLimits, TokenBatch

Vector = npt.NDArray[np.float32]
_BYTES_PER_TOKEN: Final = 4


class Embeddings(NamedTuple):
    """The vectors of the inputs of a call, in order, and the number of tokens of all inputs.
    `is_estimated`: the engine has not reported them."""

    vectors: list[Vector]
    num_tokens: int
    is_estimated: bool = False


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """The inputs of one call, each a list of tokens within the model's limits; for an upstream in
    text mode `texts` instead.

    Each vector is truncated to `dimensions`, then scaled to length 1 if `normalize`. `deadline` is
    on the machine's monotonic clock; `project`s take turns; `request_id` is that of the RPC.
    """

    sequence_id: int
    model: str
    inputs: "tuple[array[int], ...]" = ()
    texts: tuple[str, ...] = ()
    project: str = ""
    dimensions: int | None = None
    normalize: bool = False
    priority: int = 2
    deadline: float | None = None
    request_id: str = ""

    @property
    def sizes(self) -> list[int]:
        """The tokens of each input; of a text about as many, a fourth of its bytes."""
        texts = (len(text.encode()) // _BYTES_PER_TOKEN + 1 for text in self.texts)
        return [*map(len, self.inputs), *texts]

    @property
    def num_tokens(self) -> int:
        """Tokens of all inputs."""
        return sum(self.sizes)


class SubmitEmbedding(NamedTuple):
    """Queue the inputs of a call."""

    request: EmbeddingRequest


@dataclass(frozen=True, slots=True)
class EmbeddingLimits:
    """Limits of an embedding context.

    A decode has up to `batch_tokens` tokens of up to `sequences` inputs; unfinished inputs have up
    to `cells` tokens in all. An input has up to `input_tokens`. With `splits`, an input may be
    computed in several decodes; its vector is the mean of the parts' vectors if `averages`, and
    otherwise that of the last part.
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
        """The limits of a token batch in which every token is an output."""
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
        """The limits of the context."""

    def embed(self, batch: TokenBatch) -> Mapping[int, Vector]:
        """Compute the pooled vector of each slot's tokens in this batch, by slot.

        Raises `DecodeError` (slots may then have a part of the batch), or a `DomainError` if there
        is no memory for a context.
        """

    def clear_slot(self, slot: int) -> None:
        """Empty a slot."""
