"""llama.cpp's vocabularies with its own texts and token ids: Corral's tokens and detokenizer."""

import asyncio
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pytest

from inference_svc.chat.tokenization import PromptTokenizer, TextToTokenize
from inference_svc.engine.detokenizer import Detokenizer
from inference_svc.llama.vocabulary import Vocabulary
from tests.outside.llama_cpp.results import check_results
from tests.outside.llama_cpp.source import llama_cpp_source
from tests.support.sandbox_jobs import InlineJobs

SEPARATOR = "\n__ggml_vocab_test__\n"
WITH_IDS = [
    "bert-bge",
    "command-r",
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gemma-4",
    "gpt-2",
    "llama-bpe",
    "llama-spm",
    "mpt",
    "phi-3",
    "qwen2",
    "qwen35",
    "refact",
    "starcoder",
]
WITHOUT_IDS = ["aquila", "baichuan", "gpt-neox", "nomic-bert-moe"]
"""They get the texts of gpt-2."""
ADD_SPACE = {"baichuan", "llama-spm", "phi-3"}
"""Their tokens begin with a space that the text does not have."""
WHOLE = {"bert-bge", "nomic-bert-moe", "llama-spm", "phi-3", "baichuan"}
"""Texts of these are not cut."""
LOSSY = {"bert-bge", "nomic-bert-moe"}
"""They lose white space, case and some letters; the whole is what their tokens say."""


class Loaded(NamedTuple):
    """A vocabulary, its texts, llama.cpp's ids of each, if it has them, and Corral's."""

    name: str
    vocabulary: Vocabulary
    texts: list[str]
    expected: list[list[int]]
    tokens: list[list[int]]


@pytest.fixture(scope="module", params=[*WITH_IDS, *WITHOUT_IDS])
def loaded(request: pytest.FixtureRequest) -> Iterator[Loaded]:
    loaded = _load(request.param)
    yield loaded
    loaded.vocabulary.close()


def _load(name: str) -> Loaded:
    folder, has_ids = llama_cpp_source() / "models", name in WITH_IDS
    path = folder / f"ggml-vocab-{name}.gguf"
    text = _read(folder, name if has_ids else "gpt-2", "inp").removesuffix(SEPARATOR)
    texts = text.split(SEPARATOR)
    lines = _read(folder, name, "out").splitlines() if has_ids else []
    vocabulary = Vocabulary.load(path)
    tokenizer = PromptTokenizer(vocabulary, InlineJobs(), path, limit_bytes=1 << 20)
    found = asyncio.run(tokenizer.tokenize_each([*map(TextToTokenize, texts)], field="prompt"))
    tokens = [[*each] for each in found]
    return Loaded(name, vocabulary, texts, [[*map(int, line.split())] for line in lines], tokens)


def _read(folder: Path, name: str, kind: str) -> str:
    return (folder / f"ggml-vocab-{name}.gguf.{kind}").read_bytes().decode()


def test_every_vocabulary_of_the_source_is_tried() -> None:
    """And those without ids are the known ones."""
    files = (llama_cpp_source() / "models").glob("ggml-vocab-*.gguf")
    names = {path.stem.removeprefix("ggml-vocab-"): path.with_suffix(".gguf.out") for path in files}

    assert sorted(names) == sorted([*WITH_IDS, *WITHOUT_IDS])
    assert sorted(name for name, ids in names.items() if not ids.exists()) == WITHOUT_IDS


def test_results_are_published() -> None:
    """For each text of llama.cpp that has ids, Corral's tokens are these."""
    num_equal = num_texts = 0
    for name in WITH_IDS:
        loaded = _load(name)
        pairs = list(zip(loaded.tokens, loaded.expected, strict=True))
        num_equal += sum(tokens == expected for tokens, expected in pairs)
        num_texts += len(pairs)
        loaded.vocabulary.close()

    assert num_equal == num_texts
    summary = f"vocabularies: {num_equal} of {num_texts} texts of {len(WITH_IDS)} vocabularies"
    check_results("vocabularies", {"summary": summary, "columns": [], "rows": {}})


def test_tokens_give_the_text_back(loaded: Loaded) -> None:
    """After each token there is a beginning of the text, and at the end the whole."""
    space = " " * (loaded.name in ADD_SPACE)
    for text, tokens in zip(loaded.texts, loaded.tokens, strict=True):
        whole = space + text
        if loaded.name in LOSSY:
            whole = b"".join(map(loaded.vocabulary.piece, tokens)).decode()
        else:
            assert loaded.vocabulary.detokenize(tokens) == text
        detokenizer, written = Detokenizer(), ""
        for token in tokens:
            written += detokenizer.push(loaded.vocabulary.piece(token))
            assert whole.startswith(written)
        assert written + detokenizer.finish() == (whole if tokens else "")


def test_no_text_has_fewer_tokens_than_the_longest_ones_would_be(loaded: Loaded) -> None:
    """So that a text is known to be too long before it is tokenized; also repeated, of spaces, and
    of SentencePiece's mark of them. Where a tokenizer changes texts, nothing is known."""
    longest = loaded.vocabulary.longest_piece_bytes
    assert (longest is None) == (loaded.name in LOSSY)
    long = (character * 5000 for character in " \n▁")
    for text in (*loaded.texts, *(text * 50 for text in loaded.texts), *long):
        for parse_special in (False, True):
            tokens = loaded.vocabulary.tokenize(
                text, add_special=False, parse_special=parse_special
            )
            assert longest is None or len(text.encode()) <= longest * len(tokens)


def test_text_does_not_depend_on_where_its_bytes_are_split(loaded: Loaded) -> None:
    """At every split of the bytes of its tokens into two."""
    for tokens in loaded.tokens:
        data = b"".join(map(loaded.vocabulary.piece, tokens))
        for split in range(len(data) + 1):
            detokenizer = Detokenizer()
            first = detokenizer.push(data[:split])
            rest = detokenizer.push(data[split:]) + detokenizer.finish()
            assert first + rest == data.decode()


@pytest.mark.parametrize("add_special", [False, True])
def test_a_text_in_parts_has_the_same_tokens(loaded: Loaded, *, add_special: bool) -> None:
    """Wherever it may be cut; with byte pairs it is cut between words, others are left whole."""
    vocabulary, text = loaded.vocabulary, " ".join(loaded.texts)
    first, *others = vocabulary.parts_of(text, 1, add_special=add_special)

    assert "".join((first, *others)) == text
    assert bool(others) == (loaded.name not in WHOLE)
    for parse_special in (False, True):
        tokenize = partial(vocabulary.tokenize, parse_special=parse_special)
        rest = chain.from_iterable(tokenize(each, add_special=False) for each in others)
        assert [*tokenize(first, add_special=add_special), *rest] == tokenize(
            text, add_special=add_special
        )
