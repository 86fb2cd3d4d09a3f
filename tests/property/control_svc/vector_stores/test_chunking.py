"""Chunking loses no text and respects its limits."""

from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from control_svc.vector_stores.ingest.chunking import (
    Piece,
    build_chunks,
    halve,
    join_text,
    split_chunk,
    split_text,
)
from control_svc.vector_stores.model import Chunking

TEXTS = st.text(st.sampled_from("ab .!\n\u3002\u00e9"), max_size=3000)
PIECES = st.lists(st.integers(0, 100), max_size=60).map(
    lambda sizes: [Piece(f"<{number}>", size) for number, size in enumerate(sizes)]
)
CHUNKINGS = st.integers(100, 400).flatmap(
    lambda limit: st.builds(Chunking, st.just(limit), st.integers(0, limit // 2))
)


def num_tokens(pieces: Sequence[Piece]) -> int:
    return sum(piece.num_tokens for piece in pieces)


@given(TEXTS)
def test_pieces_concatenate_to_the_text(text: str) -> None:
    """No piece is empty or too long."""
    pieces = split_text(text)

    assert "".join(pieces) == text
    assert all(0 < len(piece) <= 400 or piece.strip("\n ") == "" for piece in pieces)


@given(TEXTS.filter(lambda text: len(text) > 1))
def test_halves_concatenate_to_the_piece(piece: str) -> None:
    """Neither is empty, so repeated halving terminates."""
    first, second = halve(piece)

    assert first + second == piece
    assert first
    assert second


@given(PIECES, CHUNKINGS)
def test_chunks_cover_all_pieces_within_their_limits(
    pieces: list[Piece], chunking: Chunking
) -> None:
    """Each chunk contains a new piece, and repeats at most the overlap of the previous one."""
    chunks = [list(chunk) for chunk in build_chunks(pieces, chunking)]
    start = end = 0
    for chunk in chunks:
        first = next(n for n in range(start, end + 1) if pieces[n : n + len(chunk)] == chunk)
        assert first + len(chunk) > end, "the chunk has no new piece"
        assert num_tokens(chunk) <= chunking.max_tokens
        assert num_tokens(pieces[first:end]) <= chunking.overlap_tokens
        start, end = first, first + len(chunk)

    assert end == len(pieces)


@given(PIECES.filter(bool), st.integers(100, 300))
@example([Piece("<0>", 1), Piece("<1>", 0), Piece("<2>", 100)], 100)
def test_windows_concatenate_to_the_chunk(pieces: list[Piece], limit: int) -> None:
    """Without overlap."""
    windows = split_chunk(pieces, limit)

    assert "".join(join_text(window) for window in windows) == join_text(pieces)
    assert all(num_tokens(window) <= limit for window in windows)
