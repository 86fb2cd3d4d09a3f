"""Runs of vectors in a prompt: the encoded chunks of pictures and sounds.

A vector has no token id. In arrays of token ids a chunk is a run of negative numbers that are
derived from its digest, so that equal runs mean equal vectors: prefixes are compared, saved and
restored as those of text.
"""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from hashlib import shake_256
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from svc_kit.errors import InvalidField

_SIGN: Final = np.int32(-(2**31))
Vectors = npt.NDArray[np.float32]


class VectorsUnreadable(Exception):
    """The file of a chunk's vectors is missing or too short."""


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
    number of the chunk. A chunk takes `num_positions` positions. Only pictures of models with
    M-RoPE have a `grid` (width, height): all their vectors are at the position of the first one,
    each at its place in the grid, and they take fewer positions than tokens. A chunk that is not
    `is_causal` is computed in one micro-batch, in which each vector attends to all.
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


def whole_prefix(spans: Iterable[MediaSpan], count: int) -> int:
    """The largest number of tokens up to `count` that does not end inside a chunk."""
    for span in spans:
        if span.start < count < span.end:
            return span.start
    return count


def row_at(
    spans: Iterable[MediaSpan], index: int, *, length: int, max_text: int = 0
) -> tuple[tuple[MediaSpan, ...], int]:
    """The chunks of the row that starts at a token, none if it is text, and the index of the token
    after the row. `length` is the number of all tokens.

    A row of vectors has causal chunks, and texts of up to `max_text` tokens beside them. A chunk
    that is not causal is a row of its own.
    """
    joined: list[MediaSpan] = []
    end, text_end = index, length
    for span in spans:
        if span.end <= index:
            continue
        if span.start <= index and not span.is_causal:
            return (span,), span.end
        if span.start - end > max_text or not span.is_causal:
            text_end = span.start
            break
        joined.append(span)
        end = span.end
    is_short = text_end - end <= max_text
    return tuple(joined), text_end if is_short or not joined else end


def read_row(spans: Iterable[MediaSpan], start: int, count: int, width: int) -> Vectors:
    """Read the vectors of chunks among `count` tokens from `start` on: shape (count, width). Those
    of text are not set.

    Raises `VectorsUnreadable`.
    """
    vectors = np.empty((count, width), np.float32)
    for span in spans:
        first, end = max(start, span.start), min(start + count, span.end)
        chunk = read_vectors(span, first - span.start, end - first, width)
        vectors[first - start : end - start] = chunk
    return vectors


def read_vectors(span: MediaSpan, first: int, count: int, width: int) -> Vectors:
    """Read `count` vectors of a chunk from its vector `first` on: shape (count, width).

    Raises `VectorsUnreadable`.
    """
    path, offset = span.vectors
    try:
        values = np.fromfile(path, np.float32, count * width, offset=offset + 4 * first * width)
    except OSError as error:
        raise VectorsUnreadable(f"{path.name}: {error.strerror}") from error
    if len(values) != count * width:
        raise VectorsUnreadable(f"{path.name} has too few vectors of width {width}")
    return values.reshape(count, width)


def refusal(
    spans: tuple[MediaSpan, ...], prompt: "array[int]", max_whole: int
) -> InvalidField | None:
    """Why the chunks of a prompt cannot be computed, if so. A non-causal chunk has at most
    `max_whole` tokens."""
    is_vector = np.frombuffer(prompt, np.int32) < 0
    expected = np.zeros(len(prompt), np.bool_)
    for span in spans:
        expected[span.start : span.end] = True
        if not span.is_causal and span.num_tokens > max_whole:
            problem = f"it has a picture of {span.num_tokens} tokens, more than {max_whole}"
            return InvalidField(field="prompt", problem=problem)
    if not np.array_equal(is_vector, expected):
        return InvalidField(field="prompt", problem="its vectors are not where its media are")
    if spans and spans[-1].end >= len(prompt):
        return InvalidField(field="prompt", problem="text must follow a picture or sound")
    return None
