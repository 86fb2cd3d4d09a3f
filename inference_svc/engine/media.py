"""Runs of vectors in a prompt: the encoded chunks of pictures and sounds.

A vector has no token id. In arrays of token ids a chunk is a run of negative numbers that are
derived from its digest, so that equal runs mean equal vectors: prefixes are compared, saved and
restored as those of text.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import shake_256
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

_SIGN: Final = np.int32(-(2**31))


class MediaKind(StrEnum):
    """The kind of a chunk, for usage."""

    IMAGE = "image"
    AUDIO = "audio"


class VectorFile(NamedTuple):
    """Where the vectors of a chunk are: float32, of shape (tokens, input width of the model).

    The file exists at least until the sequence has ended.
    """

    path: Path
    offset: int
    """In bytes."""


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """A chunk in a prompt: `num_tokens` KV cells from the token with index `start` on.

    `digest` identifies the vectors: the decoded content, the projector with its limits, and the
    number of the chunk. A chunk takes `num_positions` positions; only in models with M-RoPE are
    these fewer than its tokens, which then have the places of a `grid` (width, height). A chunk
    that is not `is_causal` is computed in one micro-batch, in which each vector attends to all.
    """

    start: int
    num_tokens: int
    num_positions: int
    digest: bytes
    vectors: VectorFile
    kind: MediaKind = MediaKind.IMAGE
    grid: tuple[int, int] | None = None
    is_causal: bool = True

    @property
    def end(self) -> int:
        """The index of the first token after it."""
        return self.start + self.num_tokens


def media_tokens(digest: bytes, count: int) -> "array[int]":
    """The numbers that stand for the vectors of a chunk: `count` negative ones.

    Chunks of different content have different numbers, except with a probability of 2^-31 for each
    vector, so a whole chunk of other content never matches.
    """
    numbers = np.frombuffer(shake_256(digest).digest(4 * count), np.int32) | _SIGN
    return array("i", numbers.tobytes())


def has_media(tokens: Sequence[int]) -> bool:
    """Whether any of the tokens stands for a vector."""
    return any(token < 0 for token in tokens)


def whole_prefix(spans: Iterable[MediaSpan], count: int) -> int:
    """The largest number of tokens up to `count` that does not end inside a chunk."""
    for span in spans:
        if span.start < count < span.end:
            return span.start
    return count


def position(spans: Iterable[MediaSpan], index: int) -> int:
    """The position of the token with an index: all vectors of a chunk with M-RoPE are at the
    position of its first one."""
    place = index
    for span in spans:
        if span.end <= index:
            place -= span.num_tokens - span.num_positions
        elif span.start < index and span.num_positions < span.num_tokens:
            place -= index - span.start
    return place
