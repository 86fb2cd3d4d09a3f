"""Defragmentation: moves running sequences to lower slots if holes cost more than the moves."""

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
    """Moves sequences between slots. KV cache copies may be queued until the next decode."""

    def __init__(
        self, backend: Backend, copier: CacheCopier, table: SlotTable, allocator: SlotAllocator
    ) -> None:
        self._backend = backend
        self._copier = copier
        self._table = table
        self._allocator = allocator

    def free_slots(self, first: int) -> list[Slot]:
        """The slots from index `first` on that are free for a running sequence."""
        return [slot for slot in self._table.slots[first:] if self._allocator.is_free(slot)]

    def seconds(self, sequence: Sequence, target: Slot) -> float:
        """Predicted seconds of a move."""
        if not self._allocator.is_worth_saving(target):
            return self._copier.copy_seconds(sequence.num_computed)
        return sum(
            self._copier.state_seconds(tokens)
            for tokens in (sequence.num_computed, len(target.tokens))
        )

    def move(self, sequence: Sequence, target: Slot) -> bool:
        """Move a running sequence to a free slot. Returns False if it could not be moved; its slot
        is then unchanged."""
        source = sequence.slot
        if source is None or not self._copier.is_settled(source.index):
            return False
        must_save = self._allocator.is_worth_saving(target)
        if not must_save:
            self._allocator.clear(target)
        if not must_save and self._backend.can_trim:
            self._copier.copy(source.index, target.index, len(source.tokens))
            self._backend.trim(source.index, 0)
        elif not self._exchange_states(source, target):
            return False
        self._table.swap(source, target)
        sequence.slot = target
        return True

    def _exchange_states(self, source: Slot, target: Slot) -> bool:
        """Exchange the cells of two slots by saving and restoring their states.

        Restores the running sequence first, so that a failure leaves it unchanged. If the cached
        prefix of the target cannot be restored, it is dropped.
        """
        state = self._copier.save(source.index)
        cached = self._copier.save(target.index) if target.tokens else None
        if not self._copier.restore(target.index, state):
            self._allocator.clear(target)
            return False
        if cached is None or not self._copier.restore(source.index, cached):
            self._backend.trim(source.index, 0)
            target.tokens, target.key = target.tokens[:0], b""
        return True


PATIENCE_STEPS = 4
"""Steps with the same holes before a move is considered, and again each time as many have passed:
the longer sequences run, the more steps are expected of them."""
_MIN_BENEFIT_RATIO = 2.0
"""Minimum of saved time per time of the moves, since the number of further steps is a guess."""
_MIN_EXPECTED_STEPS = 16
"""Expected steps of a sequence that has generated fewer tokens than this."""
_MAX_STEP_SHARE = 0.5
"""Maximum time of the moves before a step, as a fraction of the step; one move is always made."""


class Move(NamedTuple):
    """A move of a running sequence to an idle slot, with its predicted duration."""

    sequence: Sequence
    target: Slot
    seconds: float


class Compactor:
    """Decides which sequences to move, by the predicted times of steps and of moves."""

    def __init__(
        self, table: SlotTable, mover: SlotMover, layout: BatchLayout, slot_tokens: int
    ) -> None:
        self.num_moves = 0
        self._table = table
        self._mover = mover
        self._layout = layout
        self._slot_tokens = slot_tokens
        self._slots: tuple[int, ...] = ()
        self._num_steps = 0

    def close_holes(self, plan: Plan) -> list[Moved] | None:
        """Move sequences of a plan before it is executed. The caller must then plan again.

        Returns None if no move was attempted. Plans with prompts are not changed, since few steps
        have the same layout.
        """
        if plan.prompt_tokens or not plan.has_holes or not self._has_lasted(plan):
            return None
        moves = self._moves(plan)
        # With the usual fillers, even if this step is a trial without them.
        seconds = self._cheapest_seconds([item.row.slot for item in plan.work])
        if not moves or not self._pays(plan, moves, seconds):
            return None
        moved: list[Moved] = []
        remaining_s = seconds * _MAX_STEP_SHARE
        for move in moves:
            if moved and move.seconds > remaining_s:
                break
            remaining_s -= move.seconds
            if self._mover.move(move.sequence, move.target):
                moved.append(Moved(move.sequence.request.sequence_id, move.target.index))
        self.num_moves += len(moved)
        return moved

    def _has_lasted(self, plan: Plan) -> bool:
        slots = tuple(item.row.slot for item in plan.work)
        if slots != self._slots:
            self._slots, self._num_steps = slots, 0
        self._num_steps += 1
        return self._num_steps % PATIENCE_STEPS == 0

    def _moves(self, plan: Plan) -> list[Move]:
        """Moves from the highest slots to the lowest holes, until they meet."""
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
        return saved * steps > _MIN_BENEFIT_RATIO * sum(move.seconds for move in moves)

    def _cheapest_seconds(self, used: SequenceOf[int]) -> float:
        """Predicted seconds of a step with rows in these slots."""
        fillable = [
            slot.index
            for slot in self._table.slots
            if slot.index not in used and len(slot.tokens) < self._slot_tokens
        ]
        return self._layout.cheapest_seconds(used, fillable)


def _expected_steps(sequence: Sequence) -> int:
    """The expected further steps: as many as it has generated tokens, at most its token limit."""
    remaining = sequence.request.max_tokens - sequence.num_output
    return min(remaining, max(sequence.num_output, _MIN_EXPECTED_STEPS))
