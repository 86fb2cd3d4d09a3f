"""How a running sequence gets another slot: its cells are copied by the cheaper way, and what the
other slot remembered takes its place where that is worth something."""

from inference_svc.engine.backend import Backend
from inference_svc.engine.cells import Cells
from inference_svc.engine.placing import Placer
from inference_svc.engine.sequence import Sequence
from inference_svc.engine.slots import Slot, SlotTable


class Mover:
    """Moves sequences between the slots of `table`; a copy may be queued, so a decode must
    follow."""

    def __init__(self, backend: Backend, cells: Cells, table: SlotTable, placer: Placer) -> None:
        self._backend = backend
        self._cells = cells
        self._table = table
        self._placer = placer

    def free_slots(self, first: int) -> list[Slot]:
        """The slots from `first` on that a running sequence could have now."""
        return [slot for slot in self._table.slots[first:] if self._placer.is_free(slot)]

    def seconds(self, sequence: Sequence, target: Slot) -> float:
        """What a move would take."""
        if not self._placer.is_worth_saving(target):
            return self._cells.copy_seconds(sequence.num_computed)
        return sum(
            self._cells.state_seconds(tokens)
            for tokens in (sequence.num_computed, len(target.tokens))
        )

    def move(self, sequence: Sequence, target: Slot) -> bool:
        """Bring a running sequence to a free slot. False where that cannot be; the sequence is then
        where it was."""
        source = sequence.slot
        if source is None or not self._cells.is_settled(source.index):
            return False
        keeps = self._placer.is_worth_saving(target)
        if not keeps:
            self._placer.empty(target)
        if not keeps and not self._backend.copies_by_state:
            self._cells.copy(source.index, target.index, len(source.tokens))
            self._backend.trim(source.index, 0)
        elif not self._exchange_states(source, target):
            return False
        self._table.exchange(source, target)
        sequence.slot = target
        return True

    def _exchange_states(self, source: Slot, target: Slot) -> bool:
        """The one that runs first: where it is refused, nothing has happened to it."""
        state = self._cells.save(source.index)
        kept = self._cells.save(target.index) if target.tokens else None
        if not self._cells.restore(target.index, state):
            self._placer.empty(target)
            return False
        if kept is None or not self._cells.restore(source.index, kept):
            self._backend.trim(source.index, 0)
            target.tokens, target.key = target.tokens[:0], b""
        return True
