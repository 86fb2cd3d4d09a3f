"""Tokens and texts of the demo model, and arguments that would crash llama.cpp."""

import threading
from array import array
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from inference_svc.llama.vocabulary import Vocabulary
from inference_svc.models.sources import BUNDLED_PATH
from model_files.gguf import ModelFileInvalid
from svc_kit.errors import InvalidField, TokenOutOfVocabulary
from tests.support.memory import peak_bytes

END_OF_TEXT, TURN_START, TURN_END, THINK = 2039, 2040, 2041, 2046


def tokenize_plain(vocabulary: Vocabulary, text: str) -> list[int]:
    return vocabulary.tokenize(text, add_special=False, parse_special=False)


def tokenize_special(vocabulary: Vocabulary, text: str) -> list[int]:
    return vocabulary.tokenize(text, add_special=False, parse_special=True)


def test_the_vocabulary_is_read_from_the_file(vocabulary: Vocabulary) -> None:
    """Sizes and special tokens come from the model."""
    assert vocabulary.size == 2048
    assert (vocabulary.bos, vocabulary.eos, vocabulary.adds_bos) == (END_OF_TEXT, TURN_END, False)
    assert vocabulary.token_text(TURN_END) == "<|im_end|>"
    assert vocabulary.token_text(None) == ""


def test_a_model_may_have_several_end_tokens(vocabulary: Vocabulary) -> None:
    """Not only its EOS token."""
    assert vocabulary.end_tokens == {END_OF_TEXT, TURN_END}


def test_control_tokens_are_found_inside_longer_texts(vocabulary: Vocabulary) -> None:
    """As in Gemma's "<|channel>thought"; tokens of ordinary words are not returned."""
    texts = ["<|im_start|>thought", "</think>", "a <|im_end|>"]

    assert vocabulary.control_tokens_in(texts) == {TURN_START, TURN_END}
    assert vocabulary.control_tokens_in(["<|unknown|>", ""]) == frozenset()


def test_control_texts_are_those_that_parse_special_finds(vocabulary: Vocabulary) -> None:
    """Without tokens that are ordinary output, such as `<think>`."""
    assert vocabulary.control_texts == ("<|endoftext|>", "<|im_end|>", "<|im_start|>")


def test_a_long_text_of_tokens_takes_little_more_than_its_bytes(vocabulary: Vocabulary) -> None:
    tokens = array("i", [5]) * 500_000

    assert peak_bytes(partial(vocabulary.detokenize, tokens)) < 4 * len(tokens)


@pytest.mark.parametrize(
    "text",
    [
        *("", "Hello, world!", "naïve 日本語 🙂 \n\t", "a\0b", "<|im_end|> as text", " " * 300),
        "spaces stay : a , b . c ! d ? e ' f 's 'm 're 've",
    ],
)
def test_texts_survive_a_round_trip(vocabulary: Vocabulary, text: str) -> None:
    """Detokenizing undoes tokenizing, with and without control tokens."""
    assert vocabulary.detokenize(tokenize_plain(vocabulary, text)) == text
    assert vocabulary.detokenize(tokenize_special(vocabulary, text), special=True) == text


def test_control_tokens_are_parsed_on_request(vocabulary: Vocabulary) -> None:
    """The same text is a control token or plain characters."""
    assert tokenize_special(vocabulary, "<|im_end|>") == [TURN_END]
    assert TURN_END not in tokenize_plain(vocabulary, "<|im_end|>")
    assert tokenize_plain(vocabulary, "<think>") == [THINK]


def test_control_tokens_are_omitted_from_text_unless_requested(vocabulary: Vocabulary) -> None:
    """The output of a model does not show the end of its turn."""
    assert vocabulary.piece(TURN_END) == b""
    assert vocabulary.piece(TURN_END, special=True) == b"<|im_end|>"
    assert vocabulary.piece(THINK) == b"<think>"
    assert vocabulary.detokenize([TURN_START, TURN_END]) == ""


def test_pieces_concatenate_to_the_text(vocabulary: Vocabulary) -> None:
    """A character may be split between tokens."""
    tokens = tokenize_plain(vocabulary, "日本 🙂")
    pieces = [vocabulary.piece(token) for token in tokens]

    assert b"".join(pieces).decode() == "日本 🙂"
    assert any(
        piece.decode("utf-8", "ignore") != piece.decode("utf-8", "replace") for piece in pieces
    )


def test_a_lone_surrogate_is_an_invalid_field(vocabulary: Vocabulary) -> None:
    """It would terminate the process in llama.cpp."""
    with pytest.raises(InvalidField) as raised:
        vocabulary.tokenize("ok \ud800", add_special=False, parse_special=True, field="prompt")

    assert raised.value.field == "prompt"
    assert "lone surrogate at character 3" in raised.value.message


@pytest.mark.parametrize("token", [-1, 2048, 2**31 - 1])
def test_token_ids_out_of_range_are_refused(vocabulary: Vocabulary, token: int) -> None:
    """llama.cpp would read out of bounds."""
    with pytest.raises(TokenOutOfVocabulary):
        vocabulary.piece(token)
    with pytest.raises(TokenOutOfVocabulary):
        vocabulary.detokenize([1, token])


def test_several_threads_may_tokenize_at_once(vocabulary: Vocabulary) -> None:
    """Tokenizing runs outside of the event loop."""
    texts = [f"thread {number} says {'words ' * number}" for number in range(40)]
    expected = [tokenize_plain(vocabulary, text) for text in texts]

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda text: tokenize_plain(vocabulary, text), texts)) == expected


def test_close_waits_for_running_calls_and_refuses_later_ones() -> None:
    """Memory in use is not freed."""
    vocabulary = Vocabulary.load(BUNDLED_PATH)
    started = threading.Event()

    def work() -> int:
        started.set()
        return len(tokenize_plain(vocabulary, "words and more words " * 20_000))

    with ThreadPoolExecutor(1) as threads:
        result = threads.submit(work)
        started.wait()
        vocabulary.close()
        vocabulary.close()
        try:
            assert result.result() > 0
        except ValueError:
            pass  # the call began after `close`
    with pytest.raises(ValueError, match="closed"):
        tokenize_plain(vocabulary, "x")


def test_a_file_that_llama_cpp_cannot_load_is_refused(tmp_path: Path) -> None:
    """With a typed error."""
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF nonsense")

    with pytest.raises(ModelFileInvalid, match="cannot load"):
        Vocabulary.load(path)
