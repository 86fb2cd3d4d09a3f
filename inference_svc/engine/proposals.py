"""The tokens that are proposed for a sequence, and how many of them were right.

Prompt lookup (n-gram speculation) proposes the tokens that followed an earlier occurrence of the
last n tokens. What a draft model proposes is judged in the same way.
"""

from array import array
from itertools import takewhile
from typing import Final

import numpy as np

from inference_svc.engine.events import NO_DRAFTS, DraftTokens
from inference_svc.engine.slots import common_prefix

NGRAM = 3
"""Length of the n-gram to find. Shorter ones match by chance."""
_LONG = 8192
"""Tokens from which on numpy is faster than a search of bytes."""
_MAX_MATCHES = 8  # most recent occurrences that are compared
_MAX_SUFFIX = 16  # longer common suffixes are not preferred
_INITIAL_COUNTS = 1.0, 2.0  # accepted and proposed
_INITIAL_PREDICTED_COUNTS = 4.0, 5.0
_EMPTY = array("i")
_NEWEST_SHARE: Final = 0.1  # each score reduces the older counts by this fraction
_MAX_ACCEPTANCE_RATE: Final = 0.98


class Proposals:
    """The proposals of one method for one sequence.

    Proposals that were not computed are scored too, by comparing them with the output, so that
    those that cost nothing are judged without being verified.
    """

    def __init__(self, accepted: float, proposed: float) -> None:
        """With these counts of earlier tokens, from which the acceptance rate starts."""
        self.drafted = NO_DRAFTS
        self.initial_rate = accepted / proposed
        self._proposal = array("i")
        self._position = 0
        self._num_computed = 0
        # Exponentially weighted counts of recent tokens.
        self._accepted, self._proposed = accepted, proposed

    @property
    def acceptance_rate(self) -> float:
        """The estimated probability, below 1, that a token is accepted if those before it are."""
        return min(self._accepted / self._proposed, _MAX_ACCEPTANCE_RATE)

    def offer(self, proposal: "array[int]", position: int) -> None:
        """Propose these tokens from this position on. The last proposal must have been scored."""
        self._proposal, self._position = proposal, position

    def draft(self, count: int) -> "array[int]":
        """Use the first `count` tokens of the proposal as a draft."""
        drafted = self._proposal[:count]
        self._num_computed = len(drafted)
        return drafted

    def score(self, tokens: "array[int]") -> DraftTokens:
        """Compare the last proposal with the tokens of the sequence, and clear it. Returns its
        tokens that were computed as a draft, and how many of them were accepted."""
        if not self._proposal:
            return NO_DRAFTS
        output = tokens[self._position :]
        num_equal = common_prefix(self._proposal, output, limit=len(output))
        drafted = DraftTokens(self._num_computed, min(num_equal, self._num_computed))
        is_wrong = num_equal < min(len(self._proposal), len(output))
        self._accepted += num_equal - _NEWEST_SHARE * self._accepted
        self._proposed += num_equal + is_wrong - _NEWEST_SHARE * self._proposed
        self.drafted = self.drafted.plus(drafted)
        self._proposal, self._num_computed = self._proposal[:0], 0
        return drafted


class NgramProposals(Proposals):
    """The proposals by prompt lookup for one sequence; they cost nothing."""

    def __init__(self, prompt: "array[int]" = _EMPTY, predicted: "array[int]" = _EMPTY) -> None:
        """`predicted` is the predicted output, if any."""
        super().__init__(*(_INITIAL_PREDICTED_COUNTS if predicted else _INITIAL_COUNTS))
        # Preceded by the end of the prompt, so that it matches at the beginning of the output.
        self._lookup = prompt[-_MAX_SUFFIX:] + predicted if predicted else _EMPTY

    def propose(self, tokens: "array[int]", count: int) -> "array[int]":
        """Propose up to `count` next tokens. The previous proposal must have been scored."""
        text = self._lookup + tokens if self._lookup else tokens
        proposal = propose_tokens(text, count)
        self.offer(proposal, len(tokens))
        return proposal


def propose_tokens(tokens: "array[int]", count: int) -> "array[int]":
    """Propose `count` next tokens; none if the last `NGRAM` tokens have not occurred before.

    Uses the earlier occurrence with the longest common suffix, the most recent one if equal. If
    fewer than `count` tokens follow it, they are repeated.
    """
    best, max_suffix = 0, 0
    for end in _match_ends(tokens):
        suffix = _common_suffix(tokens, end)
        if suffix > max_suffix:
            best, max_suffix = end, suffix
        if max_suffix == _MAX_SUFFIX:
            break
    if not max_suffix:
        return array("i")
    continuation = tokens[best : best + count]
    proposal = (continuation * (count // len(continuation) + 1))[:count]
    if min(proposal) >= 0:
        return proposal
    return array("i", takewhile((0).__le__, proposal))  # vectors cannot be drafted


def _match_ends(tokens: "array[int]") -> list[int]:
    """The end positions of earlier occurrences of the last n-gram, most recent first."""
    if len(tokens) >= _LONG:
        return _match_ends_of_long(tokens)
    size = tokens.itemsize
    text = tokens.tobytes()  # searched at about 1 GB/s, without an index
    end, ngram = len(text) - size, text[-NGRAM * size :]
    ends: list[int] = []
    while len(ends) < _MAX_MATCHES and len(tokens) > NGRAM:
        at = text.rfind(ngram, 0, end)
        if at < 0:
            break
        end = at + len(ngram) - 1
        if at % size == 0:
            ends.append(at // size + NGRAM)
    return ends


def _match_ends_of_long(tokens: "array[int]") -> list[int]:
    """As `_match_ends`, in 13 us for 32,000 tokens; the search of bytes takes up to 70."""
    values = np.frombuffer(tokens, np.int32)
    matches = np.ones(len(values) - NGRAM, np.bool_)
    for i, token in enumerate(tokens[-NGRAM:]):
        matches &= values[i : i - NGRAM] == token
    ends: list[int] = (matches.nonzero()[0][: -_MAX_MATCHES - 1 : -1] + NGRAM).tolist()
    return ends


def _common_suffix(tokens: "array[int]", end: int) -> int:
    """The length of the common suffix of `tokens[:end]` and `tokens`, at most `_MAX_SUFFIX`."""
    length = NGRAM
    while length < min(end, _MAX_SUFFIX) and tokens[end - 1 - length] == tokens[-1 - length]:
        length += 1
    return length
