"""Splits text into chunks at the ends of sentences or lines, within a token limit.

A text becomes pieces, each a sentence or some short lines, whose tokens are counted; chunks and the
windows to embed are ranges of pieces.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from control_svc.vector_stores.model import Chunking

PIECE_CHARACTERS: Final = 240
"""A piece ends with the first sentence or line that reaches it."""
_LONGEST_PIECE: Final = 400
_BREAK: Final = re.compile(r"(?<=[.!?\u3002\uff01\uff1f])\s+|\n+")
_SPACE: Final = re.compile(r"\s")


def pieces_of(text: str) -> list[str]:
    """The text in pieces, nothing left out."""
    pieces: list[str] = []
    start = 0
    for end in [*(match.end() for match in _BREAK.finditer(text)), len(text)]:
        while end - start > _LONGEST_PIECE:
            cut = _space_before(text, start + _LONGEST_PIECE, start)
            pieces.append(text[start:cut])
            start = cut
        if end - start >= PIECE_CHARACTERS:
            pieces.append(text[start:end])
            start = end
    return [*pieces, text[start:]] if start < len(text) else pieces


def halves_of(piece: str) -> tuple[str, str]:
    """A piece of two characters at least that has too many tokens, as two."""
    middle = _space_before(piece, len(piece) // 2, 0)
    return piece[:middle], piece[middle:]


def _space_before(text: str, limit: int, start: int) -> int:
    """The start of the last word before a position; the position itself if there is only one."""
    for place in range(limit - 1, start + (limit - start) // 2, -1):
        if _SPACE.match(text, place):
            return place + 1
    return limit


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a text, and how many tokens it has."""

    text: str
    num_tokens: int


def chunks_of(pieces: Sequence[Piece], chunking: Chunking) -> list[Sequence[Piece]]:
    """The passages. Each begins with what of the last one fits the overlap."""
    ends = list(accumulate((piece.num_tokens for piece in pieces), initial=0))
    chunks: list[Sequence[Piece]] = []
    start = 0
    while start < len(pieces):
        end = _reach(ends, start, chunking.max_tokens)
        chunks.append(pieces[start:end])
        if end == len(pieces):
            break
        start = max(_back(ends, end, chunking.overlap_tokens), start + 1)
        while start < end and ends[end + 1] - ends[start] > chunking.max_tokens:
            start += 1  # else the next passage would be a part of this one
    return chunks


def windows_of(chunk: Sequence[Piece], max_tokens: int) -> list[Sequence[Piece]]:
    """A passage in parts that a model takes at once."""
    return chunks_of(chunk, Chunking(max_tokens, 0))


def text_of(pieces: Sequence[Piece]) -> str:
    """The text that pieces are of."""
    return "".join(piece.text for piece in pieces)


def _reach(ends: Sequence[int], start: int, max_tokens: int) -> int:
    """The end of the longest run from a piece on; at least that one."""
    end = start + 1
    while end < len(ends) - 1 and ends[end + 1] - ends[start] <= max_tokens:
        end += 1
    return end


def _back(ends: Sequence[int], end: int, max_tokens: int) -> int:
    """The start of the longest run up to a piece; of no tokens there is none."""
    start = end
    while start > 0 and max_tokens > 0 and ends[end] - ends[start - 1] <= max_tokens:
        start -= 1
    return start
