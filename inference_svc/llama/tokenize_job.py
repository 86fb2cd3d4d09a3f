"""Tokenizes long texts in a sandboxed child process: llama.cpp's regular expressions are recursive
and can exhaust the stack. Tries vocabularies there, too: llama.cpp aborts on some invalid ones.
"""

from array import array
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from inference_svc.llama.vocabulary import Vocabulary
from model_files.gguf import ModelFileInvalid
from svc_kit.errors import DomainError
from svc_kit.sandbox.jobs import JobRefused

_MAX_CACHED_VOCABULARIES = 4
_CODE_POINTS = (*range(0x100), *range(0x100, 0x800, 0x40), *range(0x800, 0xD800, 0x800), 0xE000)
_ALL_BYTES = "".join(
    map(chr, (*_CODE_POINTS, 0xF000, 0x10000, 0x40000, 0x80000, 0xC0000, 0x100000))
)
"""A text with every byte of UTF-8."""


def check(payload: dict[str, Any]) -> int:
    """Load the vocabulary of a model file, tokenize a text with it and read each token.

    `payload` has "model" (an absolute path). Returns the number of tokens of the text. Raises
    `JobRefused`: the vocabulary cannot be loaded.
    """
    try:
        vocabulary = _load_vocabulary(payload["model"])
    except ModelFileInvalid as problem:
        raise JobRefused(problem.problem) from None
    for _ in vocabulary.iter_pieces():
        pass
    return len(vocabulary.tokenize(_ALL_BYTES, add_special=True, parse_special=True))


def tokenize(payload: dict[str, Any]) -> dict[str, Any]:
    """Tokenize texts with the vocabulary of a model file.

    `payload` has "model" (an absolute path) and "texts", a list of [text, add_special,
    parse_special]. Returns "tokens", those of all texts as 32-bit integers, since JSON of them is
    slow to read, and "lengths", their number for each text.

    Raises:
        JobRefused: The vocabulary cannot be loaded, or a text is not valid Unicode.
    """
    try:
        vocabulary = _load_vocabulary(payload["model"])
        tokens = [
            vocabulary.tokenize(text, add_special=add_special, parse_special=parse_special)
            for text, add_special, parse_special in payload["texts"]
        ]
        joined = array("i", chain.from_iterable(tokens)).tobytes()
        return {"tokens": joined, "lengths": [len(each) for each in tokens]}
    except (ModelFileInvalid, DomainError) as problem:
        raise JobRefused(str(problem)) from None


@lru_cache(maxsize=_MAX_CACHED_VOCABULARIES)
def _load_vocabulary(path: str) -> Vocabulary:
    return Vocabulary.load(Path(path))
