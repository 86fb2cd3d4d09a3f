"""Proposes tokens by prompt lookup: what followed the last few tokens where they occurred before;
and measures acceptance.
"""

from array import array
from typing import NamedTuple

from inference_svc.engine.slots import common_prefix

NGRAM = 3
"""Tokens that must have stood before: fewer are there by chance."""
_PLACES = 8  # so many of the nearest are compared
_LONGEST = 16  # tokens of agreement beyond which two places are equally good
_NEWEST_SHARE = 0.1
_SUREST = 0.98
_USUAL_RECORD = 1.0, 2.0  # half of what was guessed stood
_PREDICTED_RECORD = 4.0, 5.0
_NOTHING = array("i")


class ProposalStats(NamedTuple):
    """Tokens that were computed as a draft, and how many of them stood."""

    drafted: int = 0
    accepted: int = 0


class NgramProposer:
    """One sequence's guesses. A guess that was not computed is judged too, by what was said
    instead: so a text that begins to repeat itself is noticed at no cost."""

    def __init__(self, prompt: "array[int]" = _NOTHING, predicted: "array[int]" = _NOTHING) -> None:
        """`predicted` are tokens expected behind the prompt, if any."""
        # Behind the end of the prompt, so that it is found when the answer begins.
        self._known = prompt[-_LONGEST:] + predicted if predicted else _NOTHING
        self.num_drafted = 0
        self.num_accepted = 0
        self._proposal = array("i")
        self._at = 0
        self._num_computed = 0
        # Of lately guessed tokens, weighted.
        self._right, self._judged = _PREDICTED_RECORD if predicted else _USUAL_RECORD

    @property
    def acceptance_rate(self) -> float:
        """How probably a guessed token behind right ones is right, below 1."""
        return min(self._right / self._judged, _SUREST)

    def propose(self, tokens: "array[int]", count: int) -> "array[int]":
        """Up to `count` tokens that may follow `tokens`; the guess before must have been judged."""
        text = self._known + tokens if self._known else tokens
        self._proposal, self._at = propose_tokens(text, count), len(tokens)
        return self._proposal

    def draft(self, count: int) -> "array[int]":
        """The first `count` tokens of the guess, which are going to be computed."""
        drafted = self._proposal[:count]
        self._num_computed = len(drafted)
        return drafted

    def score(self, tokens: "array[int]") -> ProposalStats:
        """Compare the last guess with what `tokens` have become, and forget it."""
        if not self._proposal:
            return ProposalStats()
        said = tokens[self._at :]
        right = common_prefix(self._proposal, said, limit=len(said))
        judged = ProposalStats(self._num_computed, min(right, self._num_computed))
        is_wrong = right < min(len(self._proposal), len(said))
        self._right += right - _NEWEST_SHARE * self._right
        self._judged += right + is_wrong - _NEWEST_SHARE * self._judged
        self.num_drafted += judged.drafted
        self.num_accepted += judged.accepted
        self._proposal, self._num_computed = self._proposal[:0], 0
        return judged


def propose_tokens(tokens: "array[int]", count: int) -> "array[int]":
    """`count` tokens that may follow; none where the last `NGRAM` tokens never stood before.

    Of the places where they did, the one that agrees longest with the end of `tokens` is taken, the
    nearest of equals. What follows it is repeated where it reaches the end of the text.
    """
    best, longest = 0, 0
    for place in _places(tokens):
        agreed = _agreement(tokens, place)
        if agreed > longest:
            best, longest = place, agreed
        if longest == _LONGEST:
            break
    if not longest:
        return array("i")
    following = tokens[best : best + count]
    return (following * (count // len(following) + 1))[:count]


def _places(tokens: "array[int]") -> list[int]:
    """Where the end of the text stood before, nearest first: the positions behind it."""
    size = tokens.itemsize
    text = tokens.tobytes()  # bytes are searched at a gigabyte a second, without an index
    end, ngram = len(text) - size, text[-NGRAM * size :]
    found: list[int] = []
    while len(found) < _PLACES and len(tokens) > NGRAM:
        at = text.rfind(ngram, 0, end)
        if at < 0:
            break
        end = at + len(ngram) - 1
        if at % size == 0:
            found.append(at // size + NGRAM)
    return found


def _agreement(tokens: "array[int]", place: int) -> int:
    """How many tokens before `place` are those at the end of the text, up to `_LONGEST`."""
    agreed = NGRAM
    while agreed < min(place, _LONGEST) and tokens[place - 1 - agreed] == tokens[-1 - agreed]:
        agreed += 1
    return agreed
