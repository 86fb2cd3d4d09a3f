"""Checks that the bookkeeping and the native cache agree between two decode calls."""

from collections.abc import Iterable, Mapping

from inference_svc.engine.backend import Backend
from inference_svc.engine.kv_cache.prefix_cache import PrefixCache
from inference_svc.engine.sequence import Sequence
from inference_svc.engine.slots import SlotTable


class IntegrityError(Exception):
    """The bookkeeping and the native cache disagree."""


def check_integrity(
    table: SlotTable,
    backend: Backend,
    running: Mapping[int, Sequence],
    waiting: Iterable[Sequence],
    prefix_cache: PrefixCache,
) -> None:
    """Compare slots with the native cache, and sequences with slots and saved states.

    Raises `IntegrityError`.
    """
    owners = [slot.owner for slot in table.slots if slot.owner is not None]
    if sorted(owners) != sorted(running):
        raise IntegrityError(f"slot owners {owners} differ from running sequences {list(running)}")
    for slot in table.slots:
        native = backend.slot_length(slot.index)
        if native != len(slot.tokens):
            raise IntegrityError(
                f"slot {slot.index} has {native} cells for {len(slot.tokens)} tokens"
            )
        if not backend.can_trim_to(slot.index, native):
            raise IntegrityError(f"slot {slot.index} lacks cells that its next token depends on")
    if backend.limits.cells is not None and backend.used_cells > backend.limits.cells:
        raise IntegrityError(f"{backend.used_cells} of {backend.limits.cells} cells are in use")
    for sequence in running.values():
        computed = sequence.num_computed
        if sequence.slot is None or sequence.slot.tokens != sequence.tokens[:computed]:
            raise IntegrityError(f"sequence {sequence.request.sequence_id} lost its prefix")
    states = [sequence.saved_prefix for sequence in waiting if sequence.saved_prefix is not None]
    if sum(len(state.state) for state in states) != prefix_cache.num_reserved:
        raise IntegrityError("the reserved bytes are not those of the preempted sequences")
