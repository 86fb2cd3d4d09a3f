"""Proposals by prompt lookup."""

import random
from array import array

import pytest

from inference_svc.engine.events import DraftTokens
from inference_svc.engine.proposals import NGRAM, NgramProposals, propose_tokens


def _tokens(text: str) -> "array[int]":
    return array("i", map(ord, text))


def _text(tokens: "array[int]") -> str:
    return "".join(map(chr, tokens))


def test_the_continuation_of_an_earlier_match_is_proposed() -> None:
    """The tokens after the previous occurrence of the last n tokens."""
    assert _text(propose_tokens(_tokens("a red fox, a red"), 4)) == " fox"[:4]
    assert _text(propose_tokens(_tokens("a red fox, a red"), 6)) == " fox, "


def test_a_longer_common_suffix_beats_a_more_recent_match() -> None:
    """Of matches with equal suffixes, the most recent one is used."""
    assert _text(propose_tokens(_tokens("the cat sat. a cat ran. the cat"), 4)) == " sat"
    assert _text(propose_tokens(_tokens("1 cat sat. 2 cat ran. 3 cat"), 4)) == " ran"


def test_a_repetitive_text_is_continued_beyond_its_end() -> None:
    """A short period gives a proposal of any length."""
    assert _text(propose_tokens(_tokens("abababab"), 5)) == "ababa"
    assert _text(propose_tokens(_tokens("aaaa"), 3)) == "aaa"


def test_nothing_is_proposed_without_a_match() -> None:
    """Short texts, new texts, and bytes that match only across token boundaries."""
    assert not propose_tokens(_tokens("abc"), 4)
    assert not propose_tokens(_tokens(""), 4)
    assert not propose_tokens(_tokens("abcdefgh"), 4)
    assert not propose_tokens(array("i", [0x0100, 0x0200, 0x0300, 0x01, 0x02, 0x03]), 4)


def test_matches_are_aligned_to_tokens() -> None:
    """Zero tokens match at every byte offset; only whole tokens count."""
    assert list(propose_tokens(array("i", [0] * 12), 3)) == [0, 0, 0]
    assert list(propose_tokens(array("i", [5, *[0] * NGRAM, 7, *[0] * NGRAM]), 2)) == [7, 0]


def test_a_draft_is_scored_by_the_output() -> None:
    """Only computed tokens are counted; the rest of the proposal affects the rate only."""
    proposer = NgramProposals()
    tokens = _tokens("one two three, one two")
    assert _text(proposer.propose(tokens, 6)) == " three"
    assert _text(proposer.draft(4)) == " thr"
    tokens.extend(_tokens(" thro"))

    assert proposer.score(tokens) == DraftTokens(4, 4)
    assert proposer.score(tokens) == DraftTokens(0, 0)
    assert proposer.drafted == DraftTokens(4, 4)


def test_draft_tokens_beyond_the_end_of_the_output_are_not_accepted() -> None:
    """The sequence may end within its draft."""
    proposer = NgramProposals()
    tokens = _tokens("one two three, one two")
    proposer.propose(tokens, 6)
    proposer.draft(6)
    tokens.extend(_tokens(" t"))

    assert proposer.score(tokens) == DraftTokens(6, 2)


def test_the_acceptance_rate_includes_proposals_that_were_not_computed() -> None:
    """It rises with correct tokens and falls with wrong ones, and stays below 1."""
    proposer = NgramProposals()
    tokens = _tokens("abcabc")
    before = proposer.acceptance_rate
    for _ in range(200):
        proposer.propose(tokens, 1)
        tokens.append(ord("abc"[len(tokens) % 3]))
        proposer.score(tokens)
    raised = proposer.acceptance_rate
    for i in range(20):
        proposer.propose(tokens, 1)
        tokens.append(200 + i)
        proposer.score(tokens)
        tokens.extend(_tokens("abcabc"))

    assert before < raised < 1
    assert proposer.acceptance_rate < before
    assert proposer.drafted == DraftTokens()


@pytest.mark.parametrize("num_kinds", [1, 2, 3, 40])
def test_a_long_text_is_searched_as_a_short_one(num_kinds: int) -> None:
    """The last tokens of a long text have the matches that they have in it alone."""
    kinds = random.Random(num_kinds).choices(range(num_kinds), k=200)
    short, unlike = array("i", kinds), array("i", range(1000, 21_000))

    assert propose_tokens(unlike + short, 12) == propose_tokens(short, 12)
    absent = array("i", [50, 51, 52])
    assert not propose_tokens(unlike + short + absent, 12)
    assert propose_tokens(absent + unlike + short + absent, 2) == array("i", [1000, 1001])
