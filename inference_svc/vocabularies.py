"""The vocabulary of a model from either side: a GGUF file by llama.cpp, or a folder in Hugging
Face's format by `tokenizers`; and the sandbox jobs on them.

Long texts are tokenized in a child process: llama.cpp's regular expressions are recursive and can
exhaust the stack. Vocabularies are tried there, too: llama.cpp aborts on some invalid ones, and a
`tokenizer.json` may need any time and memory.
"""

from array import array
from functools import lru_cache
from pathlib import Path
from typing import Any

from inference_svc.hf_tokenizer.hf_vocabulary import HfVocabulary
from inference_svc.llama.vocabulary import Vocabulary
from model_files.gguf import ModelFileInvalid
from svc_kit.errors import DomainError
from svc_kit.sandbox.jobs import JobRefused

_MAX_CACHED_VOCABULARIES = 4
_PART_CHARACTERS = 2**17
_CODE_POINTS = (*range(0x100), *range(0x100, 0x800, 0x40), *range(0x800, 0xD800, 0x800), 0xE000)
_ALL_BYTES = "".join(
    map(chr, (*_CODE_POINTS, 0xF000, 0x10000, 0x40000, 0x80000, 0xC0000, 0x100000))
)
"""A text with every byte of UTF-8."""


ModelVocabulary = Vocabulary | HfVocabulary


def open_vocabulary(path: Path) -> ModelVocabulary:
    """Open the vocabulary of a GGUF file or of a folder of Hugging Face files. Raises
    `ModelFileInvalid`."""
    return HfVocabulary.load(path) if path.is_dir() else Vocabulary.load(path)


def check(payload: dict[str, Any]) -> int:
    """Open a vocabulary, tokenize a text with it, and back, and read each token.

    `payload` has "model" (an absolute path). Returns the number of tokens of the text. Raises
    `JobRefused`: the vocabulary cannot be opened or used.
    """
    vocabulary = _cached(payload["model"])
    for _ in vocabulary.iter_pieces():
        pass
    try:
        vocabulary.tokenize(_ALL_BYTES, add_special=False, parse_special=False)
        tokens = vocabulary.tokenize(_ALL_BYTES, add_special=True, parse_special=True)
        vocabulary.detokenize(tokens, field="the tokens of a text")
    except DomainError as problem:
        raise JobRefused(str(problem)) from None
    return len(tokens)


def tokenize(payload: dict[str, Any]) -> dict[str, Any]:
    """Tokenize texts.

    `payload` has "model" (an absolute path) and "texts", a list of [text, add_special,
    parse_special]. Returns "tokens", those of all texts as 32-bit integers, since JSON of them is
    slow to read, and "lengths", their number for each text.

    Raises:
        JobRefused: The vocabulary cannot be opened, or a text is not valid Unicode.
    """
    vocabulary = _cached(payload["model"])
    tokens, lengths = array("i"), []
    try:
        for text, add_special, parse_special in payload["texts"]:
            begin = len(tokens)
            for part in vocabulary.parts_of(text, _PART_CHARACTERS, add_special=add_special):
                is_first = len(tokens) == begin
                tokens.extend(
                    vocabulary.tokenize(
                        part, add_special=add_special and is_first, parse_special=parse_special
                    )
                )
            lengths.append(len(tokens) - begin)
    except DomainError as problem:
        raise JobRefused(str(problem)) from None
    return {"tokens": tokens.tobytes(), "lengths": lengths}


@lru_cache(maxsize=_MAX_CACHED_VOCABULARIES)
def _cached(path: str) -> ModelVocabulary:
    try:
        return open_vocabulary(Path(path))
    except ModelFileInvalid as problem:
        name = "" if problem.path == Path(path) else f"{problem.path.name}: "
        raise JobRefused(f"{name}{problem.problem}") from None
