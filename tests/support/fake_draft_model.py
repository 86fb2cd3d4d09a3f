"""A draft model on the fake backend, which knows what the fake model says."""

from array import array
from collections.abc import Callable, Sequence

from inference_svc.engine.batch import NativeLimits, TokenBatch
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.spec_decode.draft_model import DraftModel
from tests.support.fake_backend import FakeBackend, next_token

WRONG_TOKEN = 65
"""A token that the fake model never says."""
Guess = Callable[[Sequence[int]], int]


class FakeDraftBackend(FakeBackend):
    """Its likeliest token after the tokens of a slot is what `guess` returns for them."""

    def __init__(
        self,
        limits: NativeLimits,
        guess: Guess,
        fails: Callable[[TokenBatch], int] = lambda _: 0,
        window: int | None = None,
    ) -> None:
        super().__init__(limits, fails=fails, window=window)
        self.guess = guess

    def likeliest_tokens(self, count: int) -> list[int]:
        return [self.guess(row) for row in self._rows[:count]]


def make_draft_model(
    backend: FakeDraftBackend,
    step_times: dict[int, float] | None = None,
    vocabulary_size: int | None = None,
) -> DraftModel:
    """A draft model whose decode calls take no time, or are expected to take these times, for a
    model of the same vocabulary, or one of this size."""
    size = backend.limits.vocabulary_size if vocabulary_size is None else vocabulary_size
    return DraftModel(backend, step_times or {}, lambda: 0.0, size)


def guess_of(
    requests: Sequence[SequenceRequest],
    *,
    end_after: int = 1000,
    repeats: bool = False,
    is_wrong: Callable[[int], bool] = lambda _: False,
) -> Guess:
    """What the fake model says after the tokens of one of these requests, whose prompts differ,
    and the wrong token where `is_wrong` says so of the number of tokens. It is wrong everywhere
    else, so that a slot with tokens of another sequence drafts nothing that is accepted."""

    def guess(tokens: Sequence[int]) -> int:
        row = array("i", tokens)
        for request in requests:
            count = len(request.prompt)
            if row[:count] == request.prompt and not is_wrong(len(row)):
                return next_token(
                    row,
                    request.seed,
                    request.choice,
                    len(row) - count,
                    end_after=end_after,
                    repeats=repeats,
                )
        return WRONG_TOKEN

    return guess
