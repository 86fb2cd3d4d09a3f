"""Guesses from a text's own past."""

from array import array

from inference_svc.engine.ngram import NGRAM, NgramProposer, ProposalStats, propose_tokens


def _tokens(text: str) -> "array[int]":
    return array("i", map(ord, text))


def _text(tokens: "array[int]") -> str:
    return "".join(map(chr, tokens))


def test_what_followed_before_is_guessed() -> None:
    """From the place where the last tokens stood before."""
    assert _text(propose_tokens(_tokens("a red fox, a red"), 4)) == " fox"[:4]
    assert _text(propose_tokens(_tokens("a red fox, a red"), 6)) == " fox, "


def test_longer_agreement_beats_a_nearer_place() -> None:
    """The nearest place wins only among equals."""
    assert _text(propose_tokens(_tokens("the cat sat. a cat ran. the cat"), 4)) == " sat"
    assert _text(propose_tokens(_tokens("1 cat sat. 2 cat ran. 3 cat"), 4)) == " ran"


def test_a_text_that_repeats_itself_is_continued_beyond_its_end() -> None:
    """A short period gives a guess of any length."""
    assert _text(propose_tokens(_tokens("abababab"), 5)) == "ababa"
    assert _text(propose_tokens(_tokens("aaaa"), 3)) == "aaa"


def test_nothing_is_guessed_without_a_place() -> None:
    """Short texts and new ones; bytes that only look alike across tokens are no place."""
    assert not propose_tokens(_tokens("abc"), 4)
    assert not propose_tokens(_tokens(""), 4)
    assert not propose_tokens(_tokens("abcdefgh"), 4)
    assert not propose_tokens(array("i", [0x0100, 0x0200, 0x0300, 0x01, 0x02, 0x03]), 4)


def test_places_are_found_among_tokens_of_zero() -> None:
    """Every offset of their bytes looks like a place; only whole tokens are."""
    assert list(propose_tokens(array("i", [0] * 12), 3)) == [0, 0, 0]
    assert list(propose_tokens(array("i", [5, *[0] * NGRAM, 7, *[0] * NGRAM]), 2)) == [7, 0]


def test_a_draft_is_judged_by_what_was_said() -> None:
    """Tokens that were computed and stood are counted; the guess beyond them is evidence only."""
    guesses = NgramProposer()
    tokens = _tokens("one two three, one two")
    assert _text(guesses.propose(tokens, 6)) == " three"
    assert _text(guesses.draft(4)) == " thr"
    tokens.extend(_tokens(" thro"))

    assert guesses.score(tokens) == ProposalStats(4, 4)
    assert guesses.score(tokens) == ProposalStats(0, 0)
    assert (guesses.num_drafted, guesses.num_accepted) == (4, 4)


def test_the_end_of_a_text_may_lie_in_its_draft() -> None:
    """What was not said any more stood neither."""
    guesses = NgramProposer()
    tokens = _tokens("one two three, one two")
    guesses.propose(tokens, 6)
    guesses.draft(6)
    tokens.extend(_tokens(" t"))

    assert guesses.score(tokens) == ProposalStats(6, 2)


def test_likelihood_follows_the_guesses_even_those_not_computed() -> None:
    """It rises with each that came true and falls with each that did not, and stays below 1."""
    guesses = NgramProposer()
    tokens = _tokens("abcabc")
    before = guesses.acceptance_rate
    for _ in range(200):
        guesses.propose(tokens, 1)
        tokens.append(ord("abc"[len(tokens) % 3]))
        guesses.score(tokens)
    sure = guesses.acceptance_rate
    for i in range(20):
        guesses.propose(tokens, 1)
        tokens.append(200 + i)
        guesses.score(tokens)
        tokens.extend(_tokens("abcabc"))

    assert before < sure < 1
    assert guesses.acceptance_rate < before
    assert guesses.num_drafted == 0
