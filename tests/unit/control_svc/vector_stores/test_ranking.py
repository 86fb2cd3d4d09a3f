"""Scores of chunks by vectors and by words, in [0, 1]."""

import numpy as np

from control_svc.vector_stores.search.model import Ranking
from control_svc.vector_stores.search.ranking import (
    combine_scores,
    query_terms,
    search_terms,
    vector_scores,
    word_scores,
)


def test_vector_scores_are_clipped_cosines() -> None:
    """Negative cosines are 0."""
    vectors = np.array([[1, 0], [0.6, 0.8], [-1, 0]], np.float32)
    scores = vector_scores(np.array([1, 0], np.float32), vectors)

    assert np.allclose(scores, [1, 0.6, 0])


def test_rare_words_have_a_higher_weight() -> None:
    """A word that all chunks contain has little weight."""
    chunks = [{"the", "zebra"}, {"the", "fox"}, {"the"}]
    zebra, fox, neither = word_scores(["the", "zebra"], chunks)

    assert zebra == 1
    assert fox == neither < 0.2


def test_a_query_without_words_scores_zero() -> None:
    """It consists of punctuation."""
    assert word_scores(query_terms("?!"), [{"a"}]).tolist() == [0]


def test_scores_are_combined_by_weight() -> None:
    """Weights need not add up to 1."""
    ones = np.ones(1, np.float32)

    assert combine_scores(ones, ones, Ranking(vector_weight=0.2, text_weight=0.9)).tolist() == [1]
    half = combine_scores(ones, 0 * ones, Ranking(vector_weight=0.5, text_weight=0.5))
    assert half.tolist() == [0.5]


def test_texts_and_queries_are_split_into_words() -> None:
    """Words are case-folded; each Chinese or Japanese character is a word."""
    assert search_terms("The STRASSE, Straße: foo_bar/config.txt") == [
        *("the", "strasse", "strasse", "foo_bar", "config", "txt")
    ]
    assert search_terms("東京tower") == ["東", "京", "tower"]
    assert query_terms("a A b") == ("a", "b")
    assert len(query_terms(" ".join(str(n) for n in range(99)))) == 32
