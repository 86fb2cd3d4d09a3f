import pytest

from inference_svc.upstream.faults import AnswerInvalid
from inference_svc.upstream.pieces import PieceIndex
from tests.support.byte_engine import END, ByteVocabulary

INDEX = PieceIndex(ByteVocabulary())


@pytest.mark.parametrize(
    ("tokens", "content", "expected"),
    [
        ([97], "a", [97]),
        ([0xBC], "ü", [0xC3, 0xBC]),
        ([0x8B], "👋", [0xF0, 0x9F, 0x91, 0x8B]),
        ([END], "", [END]),
    ],
)
def test_tokens_that_were_not_sent_are_found_by_their_bytes(
    tokens: list[int], content: str, expected: list[int]
) -> None:
    assert list(INDEX.with_missing(tokens, content.encode())) == expected


def test_the_longest_pieces_are_chosen() -> None:
    class Pairs(ByteVocabulary):
        size = 3

        def piece(self, token: int, special: bool = False) -> bytes:
            return (b"\xf0", b"\xf0\x9f\x91", b"\x8b")[token]

    assert list(PieceIndex(Pairs()).with_missing([2], "👋".encode())) == [1, 2]


def test_a_text_without_tokens_is_refused() -> None:
    with pytest.raises(AnswerInvalid, match="did not send the tokens of 99 bytes"):
        INDEX.with_missing([98], b"a" * 99 + b"b")
