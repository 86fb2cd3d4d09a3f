"""Computes the log probabilities of prompt tokens from the logits of the tokens before them."""

from collections.abc import Iterable, Mapping

from inference_svc.engine.backend import Backend, ScoreTask
from inference_svc.engine.events import ChosenLogprob, PromptToken, PromptTokens
from inference_svc.engine.scheduler.sequence_table import SequenceTable
from inference_svc.engine.sequence import Work


class PromptScorer:
    """Sends `PromptTokens` for the sequences that want log probabilities of their prompts.

    Each token is sent once, also if its cells are lost and computed again.
    """

    def __init__(self, backend: Backend, sequences: SequenceTable) -> None:
        self._backend = backend
        self._sequences = sequences

    def score(self, work: Iterable[Work], first_outputs: Mapping[int, int]) -> None:
        """Score the rows of a decode call. `first_outputs` has the number of the first logits of
        each row, by slot."""
        for item in work:
            if not item.sequence.is_scored:
                self._score_row(item, first_outputs[item.row.slot])

    def _score_row(self, item: Work, first_output: int) -> None:
        sequence, row = item
        request, first = sequence.request, sequence.num_scored
        end = min(row.start + len(row.tokens) + 1, len(request.prompt))
        if end <= first:
            return
        numbers = range(first, end)
        tasks = {
            i: ScoreTask(
                first_output + i - 1 - row.start, request.prompt[i], request.prompt_logprobs or 0
            )
            for i in numbers
            if row.scored and i > 0 and request.prompt[i] >= 0
        }
        logprobs = dict(zip(tasks, self._backend.score(list(tasks.values())), strict=True))
        tokens = tuple(self._token(request.prompt[i], logprobs.get(i)) for i in numbers)
        sequence.num_scored = end
        self._sequences.events.append(PromptTokens(request.sequence_id, tokens))

    def _token(self, token: int, logprob: ChosenLogprob | None) -> PromptToken:
        piece = self._backend.piece(token, special=True) if token >= 0 else b""
        return PromptToken(token, piece, logprob)
