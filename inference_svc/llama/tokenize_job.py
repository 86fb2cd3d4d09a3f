"""Tokenizes long texts in a sandboxed child process: llama.cpp's regular expressions are recursive
and can exhaust the stack.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any

from inference_svc.llama.vocabulary import Vocabulary
from model_files.gguf import ModelFileInvalid
from svc_kit.errors import DomainError
from svc_kit.sandbox.jobs import JobRefused

_MAX_CACHED_VOCABULARIES = 4


def tokenize(payload: dict[str, Any]) -> list[list[int]]:
    """Tokenize texts with the vocabulary of a model file.

    `payload` has "model" (an absolute path) and "texts", a list of [text, add_special,
    parse_special]. Returns the tokens of each text.

    Raises:
        JobRefused: The vocabulary cannot be loaded, or a text is not valid Unicode.
    """
    try:
        vocabulary = _load_vocabulary(payload["model"])
        return [
            vocabulary.tokenize(text, add_special=add_special, parse_special=parse_special)
            for text, add_special, parse_special in payload["texts"]
        ]
    except (ModelFileInvalid, DomainError) as problem:
        raise JobRefused(str(problem)) from None


@lru_cache(maxsize=_MAX_CACHED_VOCABULARIES)
def _load_vocabulary(path: str) -> Vocabulary:
    return Vocabulary.load(Path(path))
