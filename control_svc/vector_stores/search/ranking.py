"""Scores chunks by vector similarity and by words: a number in [0, 1].

Indexes only propose chunks; scores are computed here, so they are equal on every database and
comparable between stores.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence, Set
from typing import Final

import numpy as np

from control_svc.inference.embeddings import Vector, Vectors
from control_svc.vector_stores.search.model import Ranking

_DECIMALS: Final = 6


def meaning_scores(query: Vector, vectors: Vectors) -> Vector:
    """The cosines of unit vectors with the query's, 0 where they point away from it.

    Rounded: the last bits of a product depend on a vector's place in the matrix, and passages that
    are alike must score alike.
    """
    cosines: Vector = vectors @ query
    return cosines.clip(0.0, 1.0).round(_DECIMALS)


def word_scores(wanted: Sequence[str], passages: Sequence[Set[str]]) -> Vector:
    """Score each chunk by the share of the query's words that it contains, weighted by their rarity
    among the chunks.
    """
    having = Counter(word for passage in passages for word in wanted if word in passage)
    weights = {word: _rarity(having[word], len(passages)) for word in wanted}
    total = sum(weights.values()) or 1.0
    found = [sum(weights[word] for word in wanted if word in p) / total for p in passages]
    return np.array(found, np.float32)


def combined(meaning: Vector, words: Vector, ranking: Ranking) -> Vector:
    """The score of each passage: the mean of both, weighted."""
    share = ranking.vector_weight / (ranking.vector_weight + ranking.text_weight)
    mixed: Vector = share * meaning + (1 - share) * words
    return mixed


def _rarity(num_having: int, num_all: int) -> float:
    return math.log(1 + (num_all - num_having + 0.5) / (num_having + 0.5))


MAX_WORD_CHARACTERS: Final = 64
"""Of longer ones this much counts: they are keys and data, not words."""
MAX_QUERY_WORDS: Final = 32
_SCRIPTS_WITHOUT_SPACES: Final = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD: Final = re.compile(rf"[{_SCRIPTS_WITHOUT_SPACES}]|[^\W{_SCRIPTS_WITHOUT_SPACES}]+")


def search_terms(text: str) -> list[str]:
    """The words in their order, without regard to case; each Chinese or Japanese character is one.

    They have letters, digits and underscores alone, so they need no quoting anywhere.
    """
    return [word[:MAX_WORD_CHARACTERS] for word in _WORD.findall(text.casefold())]


def query_terms(text: str) -> tuple[str, ...]:
    """The distinct words of a query, at most the first `MAX_QUERY_WORDS`."""
    return tuple(dict.fromkeys(search_terms(text)))[:MAX_QUERY_WORDS]
