"""The words of a text, as they are indexed and asked for on every database.

Databases cut texts in ways of their own: one takes `config/file.txt` for a path and finds no
`config` in it. So words are made here, and databases only look them up.
"""

import re
from typing import Final

MAX_WORD_CHARACTERS: Final = 64
"""Of longer ones this much counts: they are keys and data, not words."""
MAX_QUERY_WORDS: Final = 32

_SCRIPTS_WITHOUT_SPACES: Final = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD: Final = re.compile(rf"[{_SCRIPTS_WITHOUT_SPACES}]|[^\W{_SCRIPTS_WITHOUT_SPACES}]+")


def words_of(text: str) -> list[str]:
    """The words in their order, without regard to case; each Chinese or Japanese character is one.

    They have letters, digits and underscores alone, so they need no quoting anywhere.
    """
    return [word[:MAX_WORD_CHARACTERS] for word in _WORD.findall(text.casefold())]


def query_words(text: str) -> tuple[str, ...]:
    """The different words of a question; of a long one the first."""
    return tuple(dict.fromkeys(words_of(text)))[:MAX_QUERY_WORDS]
