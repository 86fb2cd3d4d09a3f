"""Who gives way when interactive work waits behind batch work for a slot.

The victim's cells go to memory and it waits again, keeping its place by arrival; it resumes with
the same cells and the same sampler, as if nothing had happened. Nobody is preempted whom somebody
more urgent follows, nor who started above its own class, having waited long.
"""

from collections.abc import Collection

from inference_svc.engine.admission import BATCH, INTERACTIVE
from inference_svc.engine.sequence import Sequence


def may_preempt(waiting: Sequence) -> bool:
    """Whether a sequence's own class allows it."""
    return waiting.request.priority >= INTERACTIVE


def victims(running: Collection[Sequence]) -> list[Sequence]:
    """The batch work, youngest first."""
    batch = [sequence for sequence in running if sequence.urgency <= BATCH]
    return sorted(batch, key=_youth, reverse=True)


def _youth(sequence: Sequence) -> tuple[float, int]:
    return sequence.arrived_at, sequence.request.sequence_id
