"""Moves running sequences to lower slots when holes between slots cost more than the move."""

from collections.abc import Sequence as SequenceOf
from typing import NamedTuple

from inference_svc.engine.backend import Backend
from inference_svc.engine.defrag.batch_layout import BatchLayout
from inference_svc.engine.events import Moved
from inference_svc.engine.kv_cache.allocator import SlotAllocator
from inference_svc.engine.kv_cache.copies import CacheCopier
from inference_svc.engine.sequence import Plan, Sequence
from inference_svc.engine.slots import Slot, SlotTable


class SlotMover:
    """Moves sequences between the slots of `table`; a copy may be queued, so a decode must
    follow."""

    def __init__(
        self, backend: Backend, copier: CacheCopier, table: SlotTable, allocator: SlotAllocator
    ) -> None:
        self._backend = backend
        self._copier = copier
        self._table = table
        self._allocator = allocator

    def free_slots(self, first: int) -> list[Slot]:
        """The slots from `first` on that a running sequence could have now."""
        return [slot for slot in self._table.slots[first:] if self._allocator.is_free(slot)]

    def seconds(self, sequence: Sequence, target: Slot) -> float:
        """What a move would take."""
        if not self._allocator.is_worth_saving(target):
            return self._copier.copy_seconds(sequence.num_computed)
        return sum(
            self._copier.state_seconds(tokens)
            for tokens in (sequence.num_computed, len(target.tokens))
        )

    def move(self, sequence: Sequence, target: Slot) -> bool:
        """Bring a running sequence to a free slot. False where that cannot be; the sequence is then
        where it was."""
        source = sequence.slot
        if source is None or not self._copier.is_settled(source.index):
            return False
        keeps = self._allocator.is_worth_saving(target)
        if not keeps:
            self._allocator.clear(target)
        if not keeps and not self._backend.copies_by_state:
            self._copier.copy(source.index, target.index, len(source.tokens))
            self._backend.trim(source.index, 0)
        elif not self._exchange_states(source, target):
            return False
        self._table.swap(source, target)
        sequence.slot = target
        return True

    def _exchange_states(self, source: Slot, target: Slot) -> bool:
        """The one that runs first: where it is refused, nothing has happened to it."""
        state = self._copier.save(source.index)
        kept = self._copier.save(target.index) if target.tokens else None
        if not self._copier.restore(target.index, state):
            self._allocator.clear(target)
            return False
        if kept is None or not self._copier.restore(source.index, kept):
            self._backend.trim(source.index, 0)
            target.tokens, target.key = target.tokens[:0], b""
        return True


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
    """Moves sequences by the `layout`'s measured step times and the `mover`'s measured copies;
    `num_moves` counts."""

    def __init__(
        self, table: SlotTable, mover: SlotMover, layout: BatchLayout, slot_tokens: int
    ) -> None:
        self.num_moves = 0
        self._table = table
        self._mover = mover
        self._layout = layout
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
        return self._layout.cheapest_seconds(used, fillable)


def _expected_steps(sequence: Sequence) -> int:
    """Expect as many tokens as it has generated, at most its limit."""
    left = sequence.request.max_tokens - sequence.num_output
    return min(left, max(sequence.num_output, _LEAST_EXPECTED))
