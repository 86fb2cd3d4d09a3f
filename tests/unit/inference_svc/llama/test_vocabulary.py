"""Tokens and texts of the demo model, and the arguments that would end the process."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from inference_svc.llama.vocabulary import Vocabulary
from inference_svc.models.sources import BUNDLED_PATH
from model_files.gguf import ModelFileInvalid
from svc_kit.errors import InvalidField, TokenOutOfVocabulary, TooLong

END_OF_TEXT, TURN_BEGINS, TURN_ENDS, THINK = 2039, 2040, 2041, 2046


@pytest.fixture(scope="module")
def demo() -> Iterator[Vocabulary]:
    vocabulary = Vocabulary.load(BUNDLED_PATH)
    yield vocabulary
    vocabulary.close()


def plain(vocabulary: Vocabulary, text: str) -> list[int]:
    return vocabulary.tokenize(text, add_special=False, parse_special=False)


def parsed(vocabulary: Vocabulary, text: str) -> list[int]:
    return vocabulary.tokenize(text, add_special=False, parse_special=True)


def test_the_vocabulary_is_the_files(demo: Vocabulary) -> None:
    """Sizes, special tokens and metadata come from the model."""
    assert demo.size == 2048
    assert (demo.bos, demo.eos, demo.adds_bos) == (END_OF_TEXT, TURN_ENDS, False)
    assert demo.metadata("general.name") == "demo-chat"
    assert demo.metadata("no.such.key") is None
    assert demo.token_text(TURN_ENDS) == "<|im_end|>"
    assert demo.token_text(None) == ""


def test_a_long_metadata_value_is_not_cut(demo: Vocabulary) -> None:
    """The chat template is longer than any first guess."""
    template = demo.metadata("tokenizer.chat_template")

    assert template is not None
    assert len(template) == 1928


def test_every_end_token_counts(demo: Vocabulary) -> None:
    """A model may end its text with more than the one token it names."""
    assert demo.end_tokens == {END_OF_TEXT, TURN_ENDS}


def test_control_tokens_are_found_inside_longer_texts(demo: Vocabulary) -> None:
    """Gemma's "<|channel>thought" is a control token and a word; tokens of words do not count."""
    (begin,), (end,) = parsed(demo, "<|im_start|>"), parsed(demo, "<|im_end|>")

    assert demo.control_tokens_in(["<|im_start|>thought", "</think>", "a <|im_end|>"]) == {
        begin,
        end,
    }
    assert demo.control_tokens_in(["<|unknown|>", ""]) == frozenset()


def test_control_texts_are_those_that_parsing_reads(demo: Vocabulary) -> None:
    """Tokens that are ordinary output (`<think>`) are not among them."""
    assert demo.control_texts == ("<|endoftext|>", "<|im_end|>", "<|im_start|>")


@pytest.mark.parametrize(
    "text", ["", "Hello, world!", "naïve 日本語 🙂 \n\t", "a\0b", "<|im_end|> as text", " " * 300]
)
def test_texts_come_back_as_they_were(demo: Vocabulary, text: str) -> None:
    """Detokenizing undoes tokenizing, with and without control tokens."""
    assert demo.detokenize(plain(demo, text)) == text
    assert demo.detokenize(parsed(demo, text), special=True) == text


def test_control_tokens_are_read_only_where_asked(demo: Vocabulary) -> None:
    """The same text is a token or plain characters."""
    assert parsed(demo, "<|im_end|>") == [TURN_ENDS]
    assert TURN_ENDS not in plain(demo, "<|im_end|>")
    assert plain(demo, "<think>") == [THINK]


def test_control_tokens_are_silent_unless_asked_for(demo: Vocabulary) -> None:
    """The output of a model does not show where its turn ends."""
    assert demo.piece(TURN_ENDS) == b""
    assert demo.piece(TURN_ENDS, special=True) == b"<|im_end|>"
    assert demo.piece(THINK) == b"<think>"
    assert demo.detokenize([TURN_BEGINS, TURN_ENDS]) == ""


def test_pieces_are_bytes_that_add_up_to_the_text(demo: Vocabulary) -> None:
    """A character may be cut between tokens."""
    tokens = plain(demo, "日本 🙂")
    pieces = [demo.piece(token) for token in tokens]

    assert b"".join(pieces).decode() == "日本 🙂"
    assert any(
        piece.decode("utf-8", "ignore") != piece.decode("utf-8", "replace") for piece in pieces
    )


def test_a_lone_surrogate_never_reaches_llama_cpp(demo: Vocabulary) -> None:
    """It would end the process; it is the caller's mistake."""
    with pytest.raises(InvalidField) as raised:
        demo.tokenize("ok \ud800", add_special=False, parse_special=True, field="prompt")

    assert raised.value.field == "prompt"
    assert "lone surrogate at character 3" in raised.value.message


def test_the_limit_is_in_bytes(demo: Vocabulary) -> None:
    """Three characters may be nine bytes."""
    with pytest.raises(TooLong) as raised:
        demo.tokenize("日本語", add_special=False, parse_special=False, limit_bytes=8)

    assert raised.value.metadata == {
        "field": "prompt",
        "length": "9",
        "limit": "8",
        "unit": "bytes",
    }


@pytest.mark.parametrize("token", [-1, 2048, 2**31 - 1])
def test_foreign_token_ids_are_refused(demo: Vocabulary, token: int) -> None:
    """llama.cpp would read beyond its table."""
    with pytest.raises(TokenOutOfVocabulary):
        demo.piece(token)
    with pytest.raises(TokenOutOfVocabulary):
        demo.detokenize([1, token])


def test_several_threads_may_use_it_at_once(demo: Vocabulary) -> None:
    """Tokenizing runs beside the event loop."""
    texts = [f"thread {number} says {'words ' * number}" for number in range(40)]
    expected = [plain(demo, text) for text in texts]

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda text: plain(demo, text), texts)) == expected


def test_closing_waits_for_calls_and_ends_further_ones() -> None:
    """Memory is never freed under a thread that uses it."""
    vocabulary = Vocabulary.load(BUNDLED_PATH)
    begun = threading.Event()

    def work() -> int:
        begun.set()
        return len(plain(vocabulary, "words and more words " * 20_000))

    with ThreadPoolExecutor(1) as threads:
        result = threads.submit(work)
        begun.wait()
        vocabulary.close()
        vocabulary.close()
        try:
            assert result.result() > 0
        except ValueError:
            pass  # it had not reached the vocabulary yet
    with pytest.raises(ValueError, match="closed"):
        plain(vocabulary, "x")


def test_a_file_that_llama_cpp_cannot_load_is_refused(tmp_path: Path) -> None:
    """The failure is ours to report, not a null pointer to follow."""
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF nonsense")

    with pytest.raises(ModelFileInvalid, match="cannot load"):
        Vocabulary.load(path)
