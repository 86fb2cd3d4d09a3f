"""Scores chunks by vector similarity and by words, each in [0, 1].

Indexes only propose candidates. Scores are computed here, so that they are equal on all databases
and comparable between stores.
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


def vector_scores(query: Vector, vectors: Vectors) -> Vector:
    """The cosine similarities of unit vectors with the query, where negative ones are 0.

    Rounded, because the last bits of a product depend on the row of the matrix, and equal chunks
    must have equal scores.
    """
    cosines: Vector = vectors @ query
    return cosines.clip(0.0, 1.0).round(_DECIMALS)


def word_scores(query: Sequence[str], chunks: Sequence[Set[str]]) -> Vector:
    """Score each chunk by the share of the query's words that it contains.

    Words are weighted by their inverse document frequency among the chunks, as in BM25.
    """
    frequencies = Counter(word for chunk in chunks for word in query if word in chunk)
    weights = {word: _idf(frequencies[word], len(chunks)) for word in query}
    total = sum(weights.values()) or 1.0
    scores = [sum(weights[word] for word in query if word in chunk) / total for chunk in chunks]
    return np.array(scores, np.float32)


def combine_scores(vector: Vector, words: Vector, ranking: Ranking) -> Vector:
    """The weighted mean of both scores of each chunk."""
    share = ranking.vector_weight / (ranking.vector_weight + ranking.text_weight)
    scores: Vector = share * vector + (1 - share) * words
    return scores


def _idf(frequency: int, num_chunks: int) -> float:
    return math.log(1 + (num_chunks - frequency + 0.5) / (frequency + 0.5))


MAX_WORD_CHARACTERS: Final = 64
"""Longer words, which are keys or data, are truncated."""
MAX_QUERY_WORDS: Final = 32
_SCRIPTS_WITHOUT_SPACES: Final = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD: Final = re.compile(rf"[{_SCRIPTS_WITHOUT_SPACES}]|[^\W{_SCRIPTS_WITHOUT_SPACES}]+")


def search_terms(text: str) -> list[str]:
    """Split a text into case-folded words. Each Chinese or Japanese character is a word.

    Words consist of letters, digits and underscores, so they need no escaping in queries.
    """
    return [word[:MAX_WORD_CHARACTERS] for word in _WORD.findall(text.casefold())]


def query_terms(text: str) -> tuple[str, ...]:
    """The first `MAX_QUERY_WORDS` distinct words of a query."""
    return tuple(dict.fromkeys(search_terms(text)))[:MAX_QUERY_WORDS]
