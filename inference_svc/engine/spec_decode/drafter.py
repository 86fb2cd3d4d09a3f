"""Speculative decoding: draft tokens are appended to a row and verified in the same step.

Drafts do not change the output: each position is sampled with its own draw, and rejected tokens are
removed from the KV cache. They are proposed by prompt lookup or by a draft model. A step drafts if
measured times and acceptance rates predict that this saves time. All rows of such a step have the
same length, since KV streams compute rows of different lengths one after the other; a sequence
without a proposal is padded with its last token. A sequence that runs alone tries a draft now and
then, to correct wrong estimates.
"""

from array import array
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from inference_svc.engine.batch import NativeLimits, Row
from inference_svc.engine.cost_model.step_time import TRIAL_INTERVAL, StepTimeModel
from inference_svc.engine.events import NO_DRAFTS, DraftTokens
from inference_svc.engine.proposals import Proposals
from inference_svc.engine.request import MAX_DRAFT
from inference_svc.engine.sequence import Plan, Sequence, Work
from inference_svc.engine.slots import common_prefix
from inference_svc.engine.spec_decode.draft_model import DraftModel, Wanted

_LENGTHS = (1, 3, 7, 15, MAX_DRAFT)  # rows of 2, 4, 8, 16 and 32 tokens
_MAX_SLOWDOWN = 1.5  # of a step for which other sequences wait
_MAX_PROMPT_S = 0.1
"""How long a draft model may compute a prompt in a step for which no other sequence waits, if two
steps do not take longer: in less time it could not follow between two trials."""


class _Option(NamedTuple):
    """A draft length, and the time of a step with it as a multiple of one without drafts."""

    length: int
    slowdown: float


class _Candidate(NamedTuple):
    """A sequence with the most tokens that its draft may have, the number that prompt lookup
    proposes, and the acceptance rate of the draft model; None if that cannot draft for it.
    `start_s` is the time before its first draft."""

    sequence: Sequence
    limit: int
    num_ngram: int
    model_rate: float | None
    start_s: float

    def ngram_gain(self, length: int) -> float:
        """The expected number of accepted tokens of prompt lookup."""
        rate = self.sequence.ngram_proposals.acceptance_rate
        return _expected_accepted(rate, min(length, self.num_ngram))

    def model_gain(self, length: int) -> float:
        """The expected number of accepted tokens of the draft model."""
        if self.model_rate is None:
            return 0.0
        return _expected_accepted(self.model_rate, min(length, self.limit))

    def proposals(self, by_model: bool) -> Proposals:
        """Those of the draft model, or of prompt lookup."""
        return self.sequence.model_proposals if by_model else self.sequence.ngram_proposals


class _Choice(NamedTuple):
    """A draft length, 0 for no draft; the candidates for which the draft model drafts, and the
    expected tokens in the time of a step without drafts."""

    length: int
    by_model: tuple[_Candidate, ...]
    throughput: float


class Drafter:
    """Adds drafts to plans. Needs `limits` with more output rows than slots."""

    def __init__(
        self,
        limits: NativeLimits,
        step_time: StepTimeModel,
        *,
        can_trim: bool,
        model: DraftModel | None = None,
    ) -> None:
        self.by_ngram = NO_DRAFTS
        self.by_model = NO_DRAFTS
        self._model = model if can_trim else None
        self._slot_tokens = limits.slot_tokens
        self._has_streams = limits.cells is None
        self._pass_tokens = limits.pass_tokens
        self._spare_outputs = limits.output_rows - limits.slots if can_trim else 0
        self._step_time = step_time
        self._profitable = lru_cache(maxsize=limits.slots)(self._find_profitable)
        self._num_trials = 0
        self._next_trial_in = float(TRIAL_INTERVAL)

    def invalidate(self) -> None:
        """Discard cached options, because estimates of step times have changed."""
        self._profitable.cache_clear()

    def extend(self, plan: Plan, spare_cells: int | None = None, *, others_wait: bool) -> Plan:
        """Return the plan with drafts, if they are expected to save time.

        The drafts of all rows together fit into `spare_cells`, if there is such a limit.

        Plans with prompts are not extended, nor plans with holes between KV streams, since each run
        of slots would be a micro-batch of its own. If `others_wait` for the step to end, it takes
        at most `_MAX_SLOWDOWN` times as long as without drafts.
        """
        if plan.prompt_tokens or (self._has_streams and plan.has_holes):
            return plan
        sequences = [item.sequence for item in plan.work]
        room = self._slot_tokens - max(len(sequence.tokens) for sequence in sequences)
        if spare_cells is not None:
            room = min(room, spare_cells // len(plan.work))
        is_alone = plan.num_decoding == 1 and not others_wait
        trial = self._trial(room) if is_alone else []
        fitting = [each for each in self._profitable(plan.num_decoding) if each.length <= room]
        options = trial or fitting
        if not options:
            return plan
        longest = options[-1].length
        candidates = [self._candidate(each, longest, is_trial=bool(trial)) for each in sequences]
        if not any(each.num_ngram or each.model_rate for each in candidates):
            return plan  # as in most steps without a draft model
        max_slowdown = float("inf") if is_alone else _MAX_SLOWDOWN
        length, by_model, _ = self._best_choice(options, candidates, max_slowdown)
        if not length:
            return plan
        drafts = self._draft(candidates, by_model, length, is_alone=is_alone)
        if not any(drafts):
            return plan
        work = tuple(
            Work(item.sequence, _add_draft(item, draft, length))
            for item, draft in zip(plan.work, drafts, strict=True)
        )
        return replace(plan, rows=tuple(item.row for item in work), work=work, fillers=())

    def _options(self, rows: int) -> list[_Option]:
        """The options that fit into one micro-batch, shortest first.

        A second micro-batch could overwrite cells outside a sliding window, which are needed again
        when the draft is rejected.
        """
        max_length = min(self._spare_outputs // rows, self._pass_tokens // rows - 1)
        return [
            _Option(length, self._step_time.slowdown(rows, 1 + length))
            for length in _LENGTHS
            if length <= max_length
        ]

    def _find_profitable(self, rows: int) -> list[_Option]:
        """The options that save time if every draft token is accepted."""
        return [option for option in self._options(rows) if option.slowdown < 1 + option.length]

    def _trial(self, room: int) -> list[_Option]:
        """The option to try in this step, as if it took no longer; usually none.

        Tries the lengths in turn. The interval until the next trial grows with the predicted time,
        so that trials take at most 1/`TRIAL_INTERVAL` of the time.
        """
        self._next_trial_in -= 1
        if self._next_trial_in > 0:
            return []
        self._next_trial_in = TRIAL_INTERVAL
        options = [item for item in self._options(1) if item.slowdown > 1 and item.length <= room]
        if not options:
            return []
        chosen = options[self._num_trials % len(options)]
        self._num_trials += 1
        # N tokens in one step take no longer than N steps, whatever was measured.
        self._next_trial_in *= min(chosen.slowdown, 1 + chosen.length)
        return [chosen._replace(slowdown=1.0)]

    def _candidate(self, sequence: Sequence, max_length: int, *, is_trial: bool) -> _Candidate:
        """Judge the last drafts of a sequence and propose its next tokens by prompt lookup. In a
        trial a draft model is expected to be as good as at first."""
        self.record_outcome(sequence)
        request, by_model = sequence.request, sequence.model_proposals
        remaining = request.max_tokens - sequence.num_output - 1  # one is sampled without a draft
        limit = max(min(max_length, request.max_draft, remaining), 0)
        num_ngram = len(sequence.ngram_proposals.propose(sequence.tokens, limit)) if limit else 0
        if self._model is None or not limit or not self._model.can_draft(sequence, max_length):
            return _Candidate(sequence, limit, num_ngram, None, 0.0)
        rate = max(by_model.acceptance_rate, by_model.initial_rate if is_trial else 0.0)
        return _Candidate(sequence, limit, num_ngram, rate, self._model.start_s(sequence))

    def _best_choice(
        self,
        options: SequenceOf[_Option],
        candidates: SequenceOf[_Candidate],
        max_slowdown: float,
    ) -> _Choice:
        """The choice with the highest expected throughput, by prompt lookup alone or with the draft
        model where that is expected to draft more; length 0 if none is better than no draft."""
        rows = len(candidates)
        choices = [_Choice(0, (), float(rows))]
        for length, slowdown in options:
            gains = [each.ngram_gain(length) for each in candidates]
            if slowdown < max_slowdown:
                choices.append(_Choice(length, (), (rows + sum(gains)) / slowdown))
            by_model = tuple(
                each
                for each, gain in zip(candidates, gains, strict=True)
                if each.model_gain(length) > gain
            )
            with_model = slowdown + self._model_slowdown(by_model, length, rows)
            if by_model and with_model < max_slowdown:
                most = sum(
                    max(each.model_gain(length), each.ngram_gain(length)) for each in candidates
                )
                choices.append(_Choice(length, by_model, (rows + most) / with_model))
        return max(choices, key=lambda choice: choice.throughput)

    def _model_slowdown(self, by_model: tuple[_Candidate, ...], length: int, rows: int) -> float:
        """The time of drafts by the model as a multiple of that of a step without drafts."""
        step_s = self._step_time.step_s(rows)
        if self._model is None or not by_model or not step_s:
            return 0.0
        start_s = sum(each.start_s for each in by_model)
        return (length * self._model.step_s(len(by_model)) + start_s) / step_s

    def _draft(
        self,
        candidates: SequenceOf[_Candidate],
        by_model: tuple[_Candidate, ...],
        length: int,
        *,
        is_alone: bool,
    ) -> "list[array[int]]":
        """The drafts of all candidates, of `length` at most."""
        if self._model is not None and by_model:
            wanted = [Wanted(each.sequence, min(length, each.limit)) for each in by_model]
            step_s = self._step_time.step_s(len(candidates))
            patience_s = (_MAX_SLOWDOWN - 1) * step_s
            if is_alone:
                patience_s = max(_MAX_PROMPT_S, 2 * step_s)
            drafts = self._model.draft(wanted, patience_s=patience_s)
            for (sequence, _), draft in zip(wanted, drafts, strict=True):
                sequence.model_proposals.offer(draft, len(sequence.tokens))
        return [each.proposals(each in by_model).draft(length) for each in candidates]

    def record_outcome(self, sequence: Sequence) -> None:
        """Count the accepted tokens of the last draft, unless it is counted already."""
        self.by_ngram = self.by_ngram.plus(sequence.ngram_proposals.score(sequence.tokens))
        self.by_model = self.by_model.plus(sequence.model_proposals.score(sequence.tokens))

    @property
    def drafted(self) -> DraftTokens:
        """The draft tokens of both methods."""
        return self.by_ngram.plus(self.by_model)

    def clear_model(self) -> None:
        """Remove all tokens from the KV cache of the draft model."""
        if self._model is not None:
            self._model.clear()


def accept_draft(sequence: Sequence, row: Row) -> bool:
    """Add the computed draft tokens that equal the sampled ones to the slot.

    Returns whether the last sampled token is among them, so that the next one can be sampled.
    """
    slot = sequence.slot
    if slot is None:
        return False
    num_computed = len(slot.tokens)
    drafted, sampled = row.tokens[num_computed - row.start :], sequence.tokens[num_computed:]
    slot.tokens.extend(sampled[: common_prefix(drafted, sampled, limit=len(sampled))])
    return len(slot.tokens) == len(sequence.tokens)


def _expected_accepted(acceptance_rate: float, length: int) -> float:
    """The expected number of accepted tokens of a draft: a geometric series, since a token can only
    be accepted after those before it."""
    return float(acceptance_rate * (1 - acceptance_rate**length) / (1 - acceptance_rate))


def _add_draft(work: Work, draft: "array[int]", length: int) -> Row:
    sequence, row = work
    padding = array("i", [sequence.tokens[-1]]) * (length - len(draft))
    return row._replace(tokens=sequence.tokens[row.start :] + draft + padding, drafted=length)
