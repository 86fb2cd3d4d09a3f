"""Scores of passages: absolute, within bounds, by meaning and by words."""

import numpy as np

from control_svc.vector_stores.search.model import Ranking
from control_svc.vector_stores.search.ranking import (
    combined,
    meaning_scores,
    query_terms,
    search_terms,
    word_scores,
)


def test_meaning_is_the_cosine_without_its_dark_half() -> None:
    """What points away has nothing to do with the question, no more than nothing."""
    vectors = np.array([[1, 0], [0.6, 0.8], [-1, 0]], np.float32)
    scores = meaning_scores(np.array([1, 0], np.float32), vectors)

    assert np.allclose(scores, [1, 0.6, 0])


def test_rare_words_count_more() -> None:
    """A passage with the one word that few have beats one with the word that all have."""
    passages = [{"the", "zebra"}, {"the", "fox"}, {"the"}]
    zebra, fox, neither = word_scores(["the", "zebra"], passages)

    assert zebra == 1
    assert fox == neither < 0.2


def test_no_words_score_nothing() -> None:
    """A question of signs alone is asked by its meaning."""
    assert word_scores(query_terms("?!"), [{"a"}]).tolist() == [0]


def test_weights_share_the_score() -> None:
    """Both in full are 1, whatever the weights."""
    ones = np.ones(1, np.float32)

    assert combined(ones, ones, Ranking(vector_weight=0.2, text_weight=0.9)).tolist() == [1]
    only = combined(ones, 0 * ones, Ranking(vector_weight=0.5, text_weight=0.5))
    assert only.tolist() == [0.5]


def test_words_are_the_same_for_texts_and_questions() -> None:
    """Without case, signs are no words, each character of Chinese and Japanese is one."""
    assert search_terms("The STRASSE, Straße: foo_bar/config.txt") == [
        *("the", "strasse", "strasse", "foo_bar", "config", "txt")
    ]
    assert search_terms("東京tower") == ["東", "京", "tower"]
    assert query_terms("a A b") == ("a", "b")
    assert len(query_terms(" ".join(str(n) for n in range(99)))) == 32
