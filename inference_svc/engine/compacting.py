"""Closing holes: running sequences move to lower slots where the steps they save are worth it.

Only neighbouring slots share a compute batch (see `shape`), so whoever ends in the middle leaves a
hole that every later step pays for, be it with a filler or with one more pass. A move copies a
sequence's cells. It pays where it takes less time than the steps that follow will save, which
depends on how much longer the moved sequences run.

Nothing moves back and forth: sequences only ever move down, a new one takes the lowest free slot,
and a hole must have stayed for some steps, so that whoever comes next may fill it for nothing.
"""

from collections.abc import Sequence as SequenceOf
from typing import NamedTuple

from inference_svc.engine.events import Moved
from inference_svc.engine.moving import Mover
from inference_svc.engine.scheduler import Plan
from inference_svc.engine.sequence import Sequence
from inference_svc.engine.shape import StepShape
from inference_svc.engine.slots import Slot, SlotTable

# Steps that a hole must stay. Then it is looked at again whenever so many have passed: sequences
# that run on promise more steps.
PATIENCE_STEPS = 4
# What is saved must be worth so many times the moves: how long a sequence runs is a guess.
_WORTH = 2.0
# A sequence that has said little may yet say so much.
_LEAST_EXPECTED = 16
# The moves of one step may take so much of its time; one is always made.
_LONGEST_SHARE = 0.5


class Move(NamedTuple):
    """A running sequence, the idle slot that it gets, and the seconds that this takes."""

    sequence: Sequence
    target: Slot
    seconds: float


class Compactor:
    """Moves sequences by the `shape`'s measured step times and the `mover`'s measured copies;
    `num_moves` counts."""

    def __init__(self, table: SlotTable, mover: Mover, shape: StepShape, slot_tokens: int) -> None:
        self.num_moves = 0
        self._table = table
        self._mover = mover
        self._shape = shape
        self._slot_tokens = slot_tokens
        self._slots: tuple[int, ...] = ()
        self._num_seen = 0

    def close_holes(self, plan: Plan) -> list[Moved] | None:
        """Move some of a plan's sequences before it is carried out; the plan must then be made anew
        and carried out. None where it stands as it is. Nobody moves beside prompts, whose steps
        have shapes of their own."""
        if plan.prompt_tokens or not plan.has_holes or not self._has_lasted(plan):
            return None
        moves = self._moves(plan)
        # With fillers, as such steps usually are: this one may be the exception that tries without.
        seconds = self._cheapest_seconds([item.row.slot for item in plan.work])
        if not moves or not self._pays(plan, moves, seconds):
            return None
        moved: list[Moved] = []
        left = seconds * _LONGEST_SHARE
        for move in moves:
            if moved and move.seconds > left:
                break
            left -= move.seconds
            if self._mover.move(move.sequence, move.target):
                moved.append(Moved(move.sequence.request.sequence_id, move.target.index))
        self.num_moves += len(moved)
        return moved

    def _has_lasted(self, plan: Plan) -> bool:
        slots = tuple(item.row.slot for item in plan.work)
        if slots != self._slots:
            self._slots, self._num_seen = slots, 0
        self._num_seen += 1
        return self._num_seen % PATIENCE_STEPS == 0

    def _moves(self, plan: Plan) -> list[Move]:
        """The highest sequences into the lowest holes, until they meet."""
        holes = self._mover.free_slots(plan.work[0].row.slot)
        return [
            Move(item.sequence, hole, self._mover.seconds(item.sequence, hole))
            for item, hole in zip(reversed(plan.work), holes, strict=False)
            if hole.index < item.row.slot
        ]

    def _pays(self, plan: Plan, moves: list[Move], seconds: float) -> bool:
        stay = [item.row.slot for item in plan.work[: -len(moves)]]
        used = sorted(stay + [move.target.index for move in moves])
        saved = seconds - self._cheapest_seconds(used)
        steps = min(_expected_steps(move.sequence) for move in moves)
        return saved * steps > _WORTH * sum(move.seconds for move in moves)

    def _cheapest_seconds(self, used: SequenceOf[int]) -> float:
        """What a step with rows in these slots takes."""
        fillable = [
            slot.index
            for slot in self._table.slots
            if slot.index not in used and len(slot.tokens) < self._slot_tokens
        ]
        return self._shape.cheapest_seconds(used, fillable)


def _expected_steps(sequence: Sequence) -> int:
    """As many tokens as it has said, up to what it may say: nothing better is known of texts."""
    left = sequence.request.max_tokens - sequence.num_output
    return min(left, max(sequence.num_output, _LEAST_EXPECTED))
