"""Tokens and bytes of generated texts, by tokenizers of several kinds and beside llama.cpp."""

from collections.abc import Iterator
from typing import NamedTuple
from unicodedata import normalize

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inference_svc.hf_tokenizer.hf_vocabulary import HfVocabulary
from inference_svc.llama.vocabulary import Vocabulary
from inference_svc.models.sources import BUNDLED_PATH
from tests.support.hf_folders import LOSSLESS, write_folder
from tools.demo_model.export_hf import export_tokenizer

MARKERS = ["<|im_end|>", "<|im_start|>", "<think>", "</tool_call>", "<|end|>", "<s>", "<0x41>", "▁"]
WORDS = ["the", " the", "  ", "\n\n", "'ll", "e\u0301", "\u1100\u1161\u11a8", "12", "\u00a0"]
texts = st.lists(st.text() | st.sampled_from(MARKERS) | st.sampled_from(WORDS), max_size=8).map(
    "".join
)


class Pair(NamedTuple):
    """The vocabulary of the demo model from both kinds of files."""

    gguf: Vocabulary
    folder: HfVocabulary


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("demo")
    export_tokenizer(BUNDLED_PATH, folder)
    gguf = Vocabulary.load(BUNDLED_PATH)
    yield Pair(gguf, HfVocabulary.load(folder))
    gguf.close()


@pytest.fixture(scope="module", params=LOSSLESS)
def lossless(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> HfVocabulary:
    folder = tmp_path_factory.mktemp(request.param)
    return HfVocabulary.load(write_folder(folder, LOSSLESS[request.param]()))


@given(text=texts, add_special=st.booleans(), parse_special=st.booleans())
@example(text=" .", add_special=False, parse_special=False)
def test_tokens_are_those_of_llama_cpp(
    pair: Pair, text: str, add_special: bool, parse_special: bool
) -> None:
    tokens, expected = (
        each.tokenize(text, add_special=add_special, parse_special=parse_special) for each in pair
    )

    assert tokens == expected
    assert pair.folder.detokenize(tokens) == pair.gguf.detokenize(tokens)


@given(tokens=st.lists(st.integers(0, 2047), max_size=16), special=st.booleans())
@example(tokens=[1103], special=False)  # " ?<|"
def test_texts_of_any_tokens_are_those_of_llama_cpp(
    pair: Pair, tokens: list[int], special: bool
) -> None:
    """Also where these are no whole characters."""
    texts = {each.detokenize(tokens, special=special) for each in pair}

    assert len(texts) == 1


@given(text=texts.map(lambda text: text.replace("▁", " ")))
def test_the_bytes_of_tokens_are_those_of_the_text(lossless: HfVocabulary, text: str) -> None:
    """In normalization form C, and with the first space that a tokenizer adds."""
    tokens = lossless.tokenize(text, add_special=False, parse_special=False)
    joined = b"".join(map(lossless.piece, tokens)).decode()

    assert normalize("NFC", joined) in {normalize("NFC", text), normalize("NFC", f" {text}")}
    assert normalize("NFC", lossless.detokenize(tokens)) == normalize("NFC", text)


@given(text=texts, repeats=st.integers(1, 40))
@example(text="▁", repeats=7)
def test_a_text_has_no_more_bytes_than_its_number_of_tokens_says(
    lossless: HfVocabulary, text: str, repeats: int
) -> None:
    """Longer texts are refused before they are tokenized."""
    text *= repeats
    tokens = lossless.tokenize(text, add_special=False, parse_special=False)

    assert len(text.encode()) <= len(tokens) * (lossless.longest_piece_bytes or 0)
