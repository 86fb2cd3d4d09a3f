"""Speculative decoding: proposed tokens are computed behind a row and verified in the same step.

A draft changes when tokens are computed, never which: each position is sampled by its own draw, and
rejected tokens are removed from the KV cache. A step drafts where measured step times and the
acceptance rate say that this saves time. All rows of such a step have the same length, since KV
streams compute rows of different lengths one after the other; a sequence without a proposal repeats
its last token. A sequence that runs alone tries a draft now and then, so that a wrong estimate is
corrected.
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
_LONGEST_STEP = 1.5  # times what it takes without drafts, where others wait for it


class _Option(NamedTuple):
    """A length of drafts, and what a step with them takes as a multiple of one without."""

    length: int
    slowdown: float


class Drafter:
    """Adds drafts to plans, as far as `limits` leave outputs beyond one a slot."""

    def __init__(self, limits: NativeLimits, step_time: StepTimeModel, *, can_trim: bool) -> None:
        self.num_drafted = 0
        self.num_accepted = 0
        self._slot_tokens = limits.slot_tokens
        self._has_streams = limits.cells is None
        self._pass_tokens = limits.pass_tokens
        self._spare = limits.output_rows - limits.slots if can_trim else 0
        self._step_time = step_time
        self._paying = lru_cache(maxsize=limits.slots)(self._find_paying)
        self._num_trials = 0
        self._next_trial_in = float(TRIAL_INTERVAL)

    def invalidate(self) -> None:
        """Weigh the lengths anew: what is believed of steps has changed."""
        self._paying.cache_clear()

    def extend(self, plan: Plan, *, others_wait: bool) -> Plan:
        """The plan, with drafts where they are expected to save time; not beside prompts, nor
        where holes between streams would make a pass of every run of them. Where `others_wait`
        for the step to end, it may not take much longer."""
        if plan.prompt_tokens or (self._has_streams and plan.has_holes):
            return plan
        sequences = [item.sequence for item in plan.work]
        room = self._slot_tokens - max(len(sequence.tokens) for sequence in sequences)
        options = self._choice(plan.num_decoding, room, others_wait=others_wait)
        if not options:
            return plan
        guessed = [self._propose(sequence, options[-1].length) for sequence in sequences]
        length = _best(options, sequences, guessed)
        if not length:
            return plan
        work = tuple(Work(sequence, _drafted(row, sequence, length)) for sequence, row in plan.work)
        return replace(plan, rows=tuple(item.row for item in work), work=work, fillers=())

    def _choice(self, rows: int, room: int, *, others_wait: bool) -> list[_Option]:
        """The lengths that a step may draft: those that may pay, or the one that is tried."""
        is_alone = rows == 1 and not others_wait
        slowest = float("inf") if is_alone else _LONGEST_STEP
        tried = self._trial(room) if is_alone else []
        return tried or [
            option
            for option in self._paying(rows)
            if option.length <= room and option.slowdown < slowest
        ]

    def _options(self, rows: int) -> list[_Option]:
        """The lengths that may be computed, shortest first. In one pass: a second one may take the
        place of cells that a sliding window has left behind, and attends to again when the draft is
        dropped."""
        longest = min(self._spare // rows, self._pass_tokens // rows - 1)
        return [
            _Option(length, self._step_time.slowdown(rows, 1 + length))
            for length in _LENGTHS
            if length <= longest
        ]

    def _find_paying(self, rows: int) -> list[_Option]:
        """Those that pay if every guess is right."""
        return [option for option in self._options(rows) if option.slowdown < 1 + option.length]

    def _trial(self, room: int) -> list[_Option]:
        """At times a length that a sequence alone tries as if it took no longer, in turn. The
        longer that may take, the longer it is until the next: so all of them together take at most
        one part in `TRIAL_INTERVAL` of the time."""
        self._next_trial_in -= 1
        if self._next_trial_in > 0:
            return []
        self._next_trial_in = TRIAL_INTERVAL
        doubtful = [item for item in self._options(1) if item.slowdown > 1 and item.length <= room]
        if not doubtful:
            return []
        chosen = doubtful[self._num_trials % len(doubtful)]
        self._num_trials += 1
        # So many tokens take no longer than as many steps, whatever was measured.
        self._next_trial_in *= min(chosen.slowdown, 1 + chosen.length)
        return [chosen._replace(slowdown=1.0)]

    def _propose(self, sequence: Sequence, longest: int) -> int:
        """Propose the next tokens of the sequence; returns their number."""
        self.record_outcome(sequence)
        request = sequence.request
        left = request.max_tokens - sequence.num_output - 1  # one comes without a draft
        count = min(longest, request.max_draft, left)
        return len(sequence.proposer.propose(sequence.tokens, count)) if count > 0 else 0

    def record_outcome(self, sequence: Sequence) -> None:
        """Count what became of the last draft, if there is one that was not counted yet."""
        judged = sequence.proposer.score(sequence.tokens)
        self.num_drafted += judged.drafted
        self.num_accepted += judged.accepted


def accept_draft(sequence: Sequence, row: Row) -> bool:
    """Take over the computed tokens of a drafted row that the sequence has said meanwhile; whether
    the last one is among them, so that the next can be sampled."""
    slot = sequence.slot
    if slot is None:
        return False
    known = len(slot.tokens)
    drafted, said = row.tokens[known - row.start :], sequence.tokens[known:]
    slot.tokens.extend(said[: common_prefix(drafted, said, limit=len(said))])
    return len(slot.tokens) == len(sequence.tokens)


def _best(
    options: SequenceOf[_Option], sequences: SequenceOf[Sequence], guessed: SequenceOf[int]
) -> int:
    """The length at which most tokens are expected in the time of a step without drafts; 0 where
    that step gives as many."""
    best, most = 0, float(len(sequences))
    for length, slowdown in options:
        gained = sum(
            _expected(sequence.proposer.acceptance_rate, min(length, count))
            for sequence, count in zip(sequences, guessed, strict=True)
        )
        if (len(sequences) + gained) / slowdown > most:
            best, most = length, (len(sequences) + gained) / slowdown
    return best


def _expected(acceptance_rate: float, length: int) -> float:
    """How many of so many guessed tokens stand, if each does so after those before it."""
    return float(acceptance_rate * (1 - acceptance_rate**length) / (1 - acceptance_rate))


def _drafted(row: Row, sequence: Sequence, length: int) -> Row:
    draft = sequence.proposer.draft(length)
    padding = array("i", [sequence.tokens[-1]]) * (length - len(draft))
    return row._replace(tokens=sequence.tokens[row.start :] + draft + padding, drafted=length)
