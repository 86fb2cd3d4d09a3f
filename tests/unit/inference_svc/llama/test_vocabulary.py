"""Tokens and texts of the demo model, and arguments that would crash llama.cpp."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from inference_svc.llama.vocabulary import Vocabulary
from inference_svc.models.sources import BUNDLED_PATH
from model_files.gguf import ModelFileInvalid
from svc_kit.errors import InvalidField, TokenOutOfVocabulary, TooLong

END_OF_TEXT, TURN_START, TURN_END, THINK = 2039, 2040, 2041, 2046


@pytest.fixture(scope="module")
def demo() -> Iterator[Vocabulary]:
    vocabulary = Vocabulary.load(BUNDLED_PATH)
    yield vocabulary
    vocabulary.close()


def tokenize_plain(vocabulary: Vocabulary, text: str) -> list[int]:
    return vocabulary.tokenize(text, add_special=False, parse_special=False)


def tokenize_special(vocabulary: Vocabulary, text: str) -> list[int]:
    return vocabulary.tokenize(text, add_special=False, parse_special=True)


def test_the_vocabulary_is_read_from_the_file(demo: Vocabulary) -> None:
    """Sizes, special tokens and metadata come from the model."""
    assert demo.size == 2048
    assert (demo.bos, demo.eos, demo.adds_bos) == (END_OF_TEXT, TURN_END, False)
    assert demo.metadata("general.name") == "demo-chat"
    assert demo.metadata("no.such.key") is None
    assert demo.token_text(TURN_END) == "<|im_end|>"
    assert demo.token_text(None) == ""


def test_a_long_metadata_value_is_not_cut(demo: Vocabulary) -> None:
    """The chat template is longer than the first buffer."""
    template = demo.metadata("tokenizer.chat_template")

    assert template is not None
    assert len(template) == 1928


def test_a_model_may_have_several_end_tokens(demo: Vocabulary) -> None:
    """Not only its EOS token."""
    assert demo.end_tokens == {END_OF_TEXT, TURN_END}


def test_control_tokens_are_found_inside_longer_texts(demo: Vocabulary) -> None:
    """As in Gemma's "<|channel>thought"; tokens of ordinary words are not returned."""
    texts = ["<|im_start|>thought", "</think>", "a <|im_end|>"]

    assert demo.control_tokens_in(texts) == {TURN_START, TURN_END}
    assert demo.control_tokens_in(["<|unknown|>", ""]) == frozenset()


def test_control_texts_are_those_that_parse_special_finds(demo: Vocabulary) -> None:
    """Without tokens that are ordinary output, such as `<think>`."""
    assert demo.control_texts == ("<|endoftext|>", "<|im_end|>", "<|im_start|>")


@pytest.mark.parametrize(
    "text", ["", "Hello, world!", "naïve 日本語 🙂 \n\t", "a\0b", "<|im_end|> as text", " " * 300]
)
def test_texts_survive_a_round_trip(demo: Vocabulary, text: str) -> None:
    """Detokenizing undoes tokenizing, with and without control tokens."""
    assert demo.detokenize(tokenize_plain(demo, text)) == text
    assert demo.detokenize(tokenize_special(demo, text), special=True) == text


def test_control_tokens_are_parsed_on_request(demo: Vocabulary) -> None:
    """The same text is a control token or plain characters."""
    assert tokenize_special(demo, "<|im_end|>") == [TURN_END]
    assert TURN_END not in tokenize_plain(demo, "<|im_end|>")
    assert tokenize_plain(demo, "<think>") == [THINK]


def test_control_tokens_are_omitted_from_text_unless_requested(demo: Vocabulary) -> None:
    """The output of a model does not show the end of its turn."""
    assert demo.piece(TURN_END) == b""
    assert demo.piece(TURN_END, special=True) == b"<|im_end|>"
    assert demo.piece(THINK) == b"<think>"
    assert demo.detokenize([TURN_START, TURN_END]) == ""


def test_pieces_concatenate_to_the_text(demo: Vocabulary) -> None:
    """A character may be split between tokens."""
    tokens = tokenize_plain(demo, "日本 🙂")
    pieces = [demo.piece(token) for token in tokens]

    assert b"".join(pieces).decode() == "日本 🙂"
    assert any(
        piece.decode("utf-8", "ignore") != piece.decode("utf-8", "replace") for piece in pieces
    )


def test_a_lone_surrogate_is_an_invalid_field(demo: Vocabulary) -> None:
    """It would terminate the process in llama.cpp."""
    with pytest.raises(InvalidField) as raised:
        demo.tokenize("ok \ud800", add_special=False, parse_special=True, field="prompt")

    assert raised.value.field == "prompt"
    assert "lone surrogate at character 3" in raised.value.message


def test_the_limit_is_in_bytes(demo: Vocabulary) -> None:
    """Three characters take nine bytes."""
    with pytest.raises(TooLong) as raised:
        demo.tokenize("日本語", add_special=False, parse_special=False, limit_bytes=8)

    error = raised.value
    assert (error.field, error.length, error.limit, error.unit) == ("prompt", 9, 8, "bytes")


@pytest.mark.parametrize("token", [-1, 2048, 2**31 - 1])
def test_token_ids_out_of_range_are_refused(demo: Vocabulary, token: int) -> None:
    """llama.cpp would read out of bounds."""
    with pytest.raises(TokenOutOfVocabulary):
        demo.piece(token)
    with pytest.raises(TokenOutOfVocabulary):
        demo.detokenize([1, token])


def test_several_threads_may_tokenize_at_once(demo: Vocabulary) -> None:
    """Tokenizing runs outside of the event loop."""
    texts = [f"thread {number} says {'words ' * number}" for number in range(40)]
    expected = [tokenize_plain(demo, text) for text in texts]

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda text: tokenize_plain(demo, text), texts)) == expected


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
