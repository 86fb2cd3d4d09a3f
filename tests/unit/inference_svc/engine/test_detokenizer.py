"""Incremental detokenization with stop strings."""

import pytest

from inference_svc.engine.detokenizer import Detokenizer


def test_text_without_stop_strings_is_not_held_back() -> None:
    """No part of it can match."""
    stream = Detokenizer()

    assert stream.push(b"hello") == "hello"


def test_a_character_split_over_tokens_comes_out_whole() -> None:
    """A token that ends inside a UTF-8 character sends nothing of it."""
    stream = Detokenizer()

    assert [stream.push(b"caf\xc3"), stream.push(b"\xa9!")] == ["caf", "\u00e9!"]


def test_an_unfinished_character_at_the_end_is_replaced() -> None:
    """The end of the text releases broken bytes as U+FFFD instead of losing them."""
    stream = Detokenizer()
    stream.push(b"\xe2\x82")

    assert stream.finish() == "\ufffd"


def test_a_stop_text_over_token_boundaries_is_never_sent() -> None:
    """A possible beginning is held back until it is known to be the stop text."""
    stream = Detokenizer(["END"])

    pieces = [(stream.push(piece), stream.stop) for piece in (b"the E", b"N", b"D.")]

    assert pieces == [("the ", None), ("", None), ("", "END")]
    assert stream.finish() == ""


def test_a_partial_match_is_sent_once_it_cannot_match() -> None:
    """Held-back text is released as soon as it cannot match any more."""
    stream = Detokenizer(["END"])
    stream.push(b"EN")

    assert stream.push(b"Z") == "ENZ"


@pytest.mark.parametrize(
    ("stops", "include_stop", "piece", "text", "stop"),
    [
        (["bc", "abcd"], False, b"xabcd", "xa", "bc"),
        (["bc", "abc"], False, b"xabcd", "x", "abc"),
        (["END"], True, b"xENDy", "xEND", "END"),
    ],
)
def test_the_stop_string_that_ends_first_ends_the_text(
    stops: list[str], include_stop: bool, piece: bytes, text: str, stop: str
) -> None:
    """The longest one, if several end at the same position. `include_stop` includes it."""
    stream = Detokenizer(stops, include_stop=include_stop)

    assert (stream.push(piece), stream.stop) == (text, stop)


def test_finish_releases_a_held_back_beginning() -> None:
    """A text that ends inside a possible stop text loses nothing."""
    stream = Detokenizer(["END"])
    stream.push(b"the EN")

    assert (stream.finish(), stream.stop) == ("EN", None)


class InParentheses:
    """Finds content in the text between the first parentheses."""

    def __init__(self) -> None:
        self._text = ""

    @property
    def num_decided(self) -> int:
        return len(self._text)

    def feed(self, text: str) -> list[tuple[int, int]]:
        begin, self._text = len(self._text), self._text + text
        start = self._text.find("(") + 1 or len(self._text)
        stop = self._text.find(")", start)
        end = len(self._text) if stop < 0 else stop
        return [(max(begin, start), end)] if max(begin, start) < end else []

    def finish(self, *, at_limit: bool) -> list[tuple[int, int]]:
        return []


def test_stop_texts_end_the_content_and_end_texts_the_whole_text() -> None:
    """With a finder of the content: the same text elsewhere is sent."""
    for stop, ends, text in (
        ("b", (), "ab(a"),
        ("x", ("b",), "a"),
        ("b", ("a)",), "ab(a"),
        ("a", ("a)",), "ab("),
        ("c", (), "ab(ab)b"),
    ):
        stream = Detokenizer([stop], ends=ends, content=InParentheses())
        sent = ""
        for byte in b"ab(ab)b":
            sent += stream.push(bytes((byte,))) if stream.stop is None else ""

        assert sent + stream.finish() == text, (stop, ends)
