import json

import pytest

from inference_svc.upstream.engine_api import Generation
from inference_svc.upstream.faults import AnswerInvalid
from inference_svc.upstream.llama_server import LlamaServer
from inference_svc.upstream.pieces import PieceIndex
from tests.support.byte_engine import END, ByteVocabulary
from tests.support.sequences import make_request

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


@pytest.mark.parametrize(
    ("tokens", "content", "num_written"),
    [
        ([65], "\ufffdA", None),
        ([65], "\ufffdA", 2),
        ([0xBD], "\ufffd", 1),
    ],
)
def test_no_tokens_are_invented_for_a_byte_that_is_not_utf_8(
    tokens: list[int], content: str, num_written: int | None
) -> None:
    """llama-server writes U+FFFD for it."""
    assert list(INDEX.with_missing(tokens, content.encode(), num_written)) == tokens


def test_a_real_replacement_character_has_its_tokens() -> None:
    assert list(INDEX.with_missing([0xBD], "\ufffd".encode(), 3)) == [0xEF, 0xBF, 0xBD]


def test_llama_server_tells_how_many_tokens_it_wrote() -> None:
    """The second event ends with a byte that is not UTF-8, the third with a character of two."""
    reader = LlamaServer(INDEX).reader(Generation(make_request(), "", [1], 9))
    events = [
        {"content": "a", "tokens": [97], "tokens_predicted": 1},
        {"content": "\ufffd", "tokens": [0xBD], "tokens_predicted": 2},
        {"content": "ü", "tokens": [0xBC], "tokens_predicted": 4},
    ]
    read = [reader.read(json.dumps(event).encode()).tokens for event in events]
    assert list(map(list, read)) == [[97], [0xBD], [0xC3, 0xBC]]


def test_the_longest_pieces_are_chosen() -> None:
    class Pairs(ByteVocabulary):
        size = 3

        def piece(self, token: int, special: bool = False) -> bytes:
            return (b"\xf0", b"\xf0\x9f\x91", b"\x8b")[token]

    assert list(PieceIndex(Pairs()).with_missing([2], "👋".encode())) == [1, 2]


def test_a_text_without_tokens_is_refused() -> None:
    with pytest.raises(AnswerInvalid, match="did not send the tokens of 99 bytes"):
        INDEX.with_missing([98], b"a" * 99 + b"b")
