"""Incremental detokenization with stop strings."""

from inference_svc.engine.detokenizer import Detokenizer, TextChunk


def test_text_without_stop_strings_is_not_held_back() -> None:
    """No part of it can match."""
    stream = Detokenizer()

    assert stream.push(b"hello") == TextChunk("hello", None)


def test_a_character_split_over_tokens_comes_out_whole() -> None:
    """A token that ends inside a UTF-8 character sends nothing of it."""
    stream = Detokenizer()

    assert [stream.push(b"caf\xc3").text, stream.push(b"\xa9!").text] == ["caf", "\u00e9!"]


def test_an_unfinished_character_at_the_end_is_replaced() -> None:
    """The end of the text releases broken bytes as U+FFFD instead of losing them."""
    stream = Detokenizer()
    stream.push(b"\xe2\x82")

    assert stream.finish() == TextChunk("\ufffd", None)


def test_a_stop_text_over_token_boundaries_is_never_sent() -> None:
    """A possible beginning is held back until it is known to be the stop text."""
    stream = Detokenizer(["END"])

    assert stream.push(b"the E") == TextChunk("the ", None)
    assert stream.push(b"N") == TextChunk("", None)
    assert stream.push(b"D.") == TextChunk("", "END")


def test_a_partial_match_is_sent_once_it_cannot_match() -> None:
    """Held-back text is released as soon as it cannot match any more."""
    stream = Detokenizer(["END"])
    stream.push(b"EN")

    assert stream.push(b"Z") == TextChunk("ENZ", None)


def test_overlapping_stop_strings_end_the_text_at_the_first_complete_one() -> None:
    """The longest one, if several end at the same position."""
    assert Detokenizer(["bc", "abcd"]).push(b"xabcd") == TextChunk("xa", "bc")
    assert Detokenizer(["bc", "abc"]).push(b"xabcd") == TextChunk("x", "abc")


def test_the_stop_string_is_included_on_request() -> None:
    """`include_stop` includes the matched text and nothing after it."""
    assert Detokenizer(["END"], include_stop=True).push(b"xENDy") == TextChunk("xEND", "END")


def test_finish_releases_a_held_back_beginning() -> None:
    """A text that ends inside a possible stop text loses nothing."""
    stream = Detokenizer(["END"])
    stream.push(b"the EN")

    assert stream.finish() == TextChunk("EN", None)
