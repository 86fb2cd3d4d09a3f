"""Splits text into chunks at the ends of sentences or lines, within a token limit.

A text is split into pieces of a sentence or a few short lines, whose tokens are counted. Chunks,
and the windows in which long chunks are embedded, are ranges of pieces.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from control_svc.vector_stores.model import Chunking

_MIN_PIECE_CHARACTERS: Final = 240
"""A piece ends with the sentence or line that reaches this length."""
_MAX_PIECE_CHARACTERS: Final = 400
_BREAK: Final = re.compile(r"(?<=[.!?\u3002\uff01\uff1f])\s+|\n+")
_SPACE: Final = re.compile(r"\s")


def split_text(text: str) -> list[str]:
    """Split a text into pieces. Their concatenation is the text."""
    pieces: list[str] = []
    start = 0
    for end in [*(match.end() for match in _BREAK.finditer(text)), len(text)]:
        while end - start > _MAX_PIECE_CHARACTERS:
            cut = _find_break(text, start + _MAX_PIECE_CHARACTERS, start)
            pieces.append(text[start:cut])
            start = cut
        if end - start >= _MIN_PIECE_CHARACTERS:
            pieces.append(text[start:end])
            start = end
    return [*pieces, text[start:]] if start < len(text) else pieces


def halve(piece: str) -> tuple[str, str]:
    """Split a piece of at least two characters near its middle."""
    middle = _find_break(piece, len(piece) // 2, 0)
    return piece[:middle], piece[middle:]


def _find_break(text: str, limit: int, start: int) -> int:
    """The start of the last word in the second half of the range, or `limit` if there is none."""
    for position in range(limit - 1, start + (limit - start) // 2, -1):
        if _SPACE.match(text, position):
            return position + 1
    return limit


@dataclass(frozen=True, slots=True)
class Piece:
    text: str
    num_tokens: int


def build_chunks(pieces: Sequence[Piece], chunking: Chunking) -> list[Sequence[Piece]]:
    """Group pieces into chunks. Each starts with the last pieces of the previous chunk that fit
    into the overlap.
    """
    ends = list(accumulate((piece.num_tokens for piece in pieces), initial=0))
    chunks: list[Sequence[Piece]] = []
    start = 0
    while start < len(pieces):
        end = _extend_forward(ends, start, chunking.max_tokens)
        chunks.append(pieces[start:end])
        if end == len(pieces):
            break
        start = max(_extend_backward(ends, end, chunking.overlap_tokens), start + 1)
        while start < end and ends[end + 1] - ends[start] > chunking.max_tokens:
            start += 1  # so that the next chunk contains a new piece
    return chunks


def split_chunk(chunk: Sequence[Piece], max_tokens: int) -> list[Sequence[Piece]]:
    """Split a chunk into windows that fit into the context of a model."""
    return build_chunks(chunk, Chunking(max_tokens, 0))


def join_text(pieces: Sequence[Piece]) -> str:
    """Concatenate the texts of pieces."""
    return "".join(piece.text for piece in pieces)


def _extend_forward(ends: Sequence[int], start: int, max_tokens: int) -> int:
    """The end of the longest range from `start` within the limit, with at least one piece."""
    end = start + 1
    while end < len(ends) - 1 and ends[end + 1] - ends[start] <= max_tokens:
        end += 1
    return end


def _extend_backward(ends: Sequence[int], end: int, max_tokens: int) -> int:
    """The start of the longest range up to `end` within the limit, which may be empty."""
    start = end
    while start > 0 and max_tokens > 0 and ends[end] - ends[start - 1] <= max_tokens:
        start -= 1
    return start
