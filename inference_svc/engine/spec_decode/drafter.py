"""Speculative decoding: draft tokens are appended to a row and verified in the same step.

Drafts do not change the output: each position is sampled with its own draw, and rejected tokens are
removed from the KV cache. A step drafts if the measured step times and the acceptance rate predict
that this saves time. All rows of such a step have the same length, since KV streams compute rows of
different lengths one after the other; a sequence without a proposal is padded with its last token.
A sequence that runs alone tries a draft now and then, to correct wrong estimates.
"""

from array import array
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from inference_svc.engine.batch import NativeLimits, Row
from inference_svc.engine.cost_model.step_time import TRIAL_INTERVAL, StepTimeModel
from inference_svc.engine.request import MAX_DRAFT
from inference_svc.engine.sequence import Plan, Sequence, Work
from inference_svc.engine.slots import common_prefix

_LENGTHS = (1, 3, 7, 15, MAX_DRAFT)  # rows of 2, 4, 8, 16 and 32 tokens
_MAX_SLOWDOWN = 1.5  # of a step for which other sequences wait


class _Option(NamedTuple):
    """A draft length, and the time of a step with it as a multiple of one without drafts."""

    length: int
    slowdown: float


class Drafter:
    """Adds drafts to plans. Needs `limits` with more output rows than slots."""

    def __init__(self, limits: NativeLimits, step_time: StepTimeModel, *, can_trim: bool) -> None:
        self.num_drafted = 0
        self.num_accepted = 0
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

    def extend(self, plan: Plan, *, others_wait: bool) -> Plan:
        """Return the plan with drafts, if they are expected to save time.

        Plans with prompts are not extended, nor plans with holes between KV streams, since each run
        of slots would be a micro-batch of its own. If `others_wait` for the step to end, it takes
        at most `_MAX_SLOWDOWN` times as long as without drafts.
        """
        if plan.prompt_tokens or (self._has_streams and plan.has_holes):
            return plan
        sequences = [item.sequence for item in plan.work]
        room = self._slot_tokens - max(len(sequence.tokens) for sequence in sequences)
        options = self._allowed_options(plan.num_decoding, room, others_wait=others_wait)
        if not options:
            return plan
        proposed = [self._propose(sequence, options[-1].length) for sequence in sequences]
        length = _best_length(options, sequences, proposed) if any(proposed) else 0
        if not length:
            return plan
        work = tuple(
            Work(sequence, _add_draft(row, sequence, length)) for sequence, row in plan.work
        )
        return replace(plan, rows=tuple(item.row for item in work), work=work, fillers=())

    def _allowed_options(self, rows: int, room: int, *, others_wait: bool) -> list[_Option]:
        """The options for a step with `room` tokens in its fullest slot, or a single trial."""
        is_alone = rows == 1 and not others_wait
        max_slowdown = float("inf") if is_alone else _MAX_SLOWDOWN
        trial = self._trial(room) if is_alone else []
        return trial or [
            option
            for option in self._profitable(rows)
            if option.length <= room and option.slowdown < max_slowdown
        ]

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

    def _propose(self, sequence: Sequence, max_length: int) -> int:
        """Propose next tokens of a sequence. Returns their number."""
        self.record_outcome(sequence)
        request = sequence.request
        remaining = request.max_tokens - sequence.num_output - 1  # one is sampled without a draft
        count = min(max_length, request.max_draft, remaining)
        return len(sequence.proposer.propose(sequence.tokens, count)) if count > 0 else 0

    def record_outcome(self, sequence: Sequence) -> None:
        """Count the accepted tokens of the last draft, unless it is counted already."""
        stats = sequence.proposer.score(sequence.tokens)
        self.num_drafted += stats.drafted
        self.num_accepted += stats.accepted


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


def _best_length(
    options: SequenceOf[_Option], sequences: SequenceOf[Sequence], proposed: SequenceOf[int]
) -> int:
    """The draft length with the highest expected throughput; 0 if none is better than no draft."""
    best, max_throughput = 0, float(len(sequences))  # tokens in the time of a step without drafts
    for length, slowdown in options:
        accepted = sum(
            _expected_accepted(sequence.proposer.acceptance_rate, min(length, count))
            for sequence, count in zip(sequences, proposed, strict=True)
        )
        throughput = (len(sequences) + accepted) / slowdown
        if throughput > max_throughput:
            best, max_throughput = length, throughput
    return best


def _expected_accepted(acceptance_rate: float, length: int) -> float:
    """The expected number of accepted tokens of a draft: a geometric series, since a token can only
    be accepted after those before it."""
    return float(acceptance_rate * (1 - acceptance_rate**length) / (1 - acceptance_rate))


def _add_draft(row: Row, sequence: Sequence, length: int) -> Row:
    draft = sequence.proposer.draft(length)
    padding = array("i", [sequence.tokens[-1]]) * (length - len(draft))
    return row._replace(tokens=sequence.tokens[row.start :] + draft + padding, drafted=length)
