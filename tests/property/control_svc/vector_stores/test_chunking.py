"""Cutting texts: nothing is lost, nothing is too long, and the same text is cut the same way."""

from hypothesis import example, given
from hypothesis import strategies as st

from control_svc.vector_stores.ingest.chunking import (
    Piece,
    chunks_of,
    halves_of,
    pieces_of,
    text_of,
    windows_of,
)
from control_svc.vector_stores.model import Chunking

TEXTS = st.text(st.sampled_from("ab .!\n\u3002\u00e9"), max_size=3000)
PIECES = st.lists(st.integers(0, 100), max_size=60).map(
    lambda sizes: [Piece(f"<{number}>", size) for number, size in enumerate(sizes)]
)
CHUNKINGS = st.integers(100, 400).flatmap(
    lambda most: st.builds(Chunking, st.just(most), st.integers(0, most // 2))
)


def tokens(pieces: object) -> int:
    """How long a run of pieces is."""
    assert isinstance(pieces, list)
    return sum(piece.num_tokens for piece in pieces)


@given(TEXTS)
def test_pieces_are_the_text(text: str) -> None:
    """All of it in its order, none empty, none over its bound."""
    pieces = pieces_of(text)

    assert "".join(pieces) == text
    assert all(0 < len(piece) <= 400 or piece.strip("\n ") == "" for piece in pieces)


@given(TEXTS.filter(lambda text: len(text) > 1))
def test_halves_are_the_piece(piece: str) -> None:
    """Neither is empty, so halving comes to an end."""
    first, second = halves_of(piece)

    assert first + second == piece
    assert first
    assert second


@given(PIECES, CHUNKINGS)
def test_passages_cover_all_pieces_within_their_bounds(
    pieces: list[Piece], chunking: Chunking
) -> None:
    """Each piece is in one, in order; a passage begins with at most the overlap of the last one."""
    chunks = [list(chunk) for chunk in chunks_of(pieces, chunking)]
    start = end = 0
    for chunk in chunks:
        found = next(n for n in range(start, end + 1) if pieces[n : n + len(chunk)] == chunk)
        assert found + len(chunk) > end, "it says nothing new"
        assert tokens(chunk) <= chunking.max_tokens
        assert tokens(pieces[found:end]) <= chunking.overlap_tokens
        start, end = found, found + len(chunk)

    assert end == len(pieces)


@given(PIECES.filter(bool), st.integers(100, 300))
@example([Piece("<0>", 1), Piece("<1>", 0), Piece("<2>", 100)], 100)
def test_windows_are_the_passage(pieces: list[Piece], most: int) -> None:
    """What the model computes of a passage is all of it, without repetition."""
    windows = windows_of(pieces, most)

    assert "".join(text_of(window) for window in windows) == text_of(pieces)
    assert all(tokens(list(window)) <= most for window in windows)
