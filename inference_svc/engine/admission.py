"""Who comes next: waiting sequences by priority class, in order of arrival inside a class.

The bound on how much may wait is kept at the door, in the frontend (`runtime/worker.py`), where a
refusal can still be an ordinary error.
"""

from collections import OrderedDict
from collections.abc import Container, Iterator

from inference_svc.engine.sequence import Sequence


class AdmissionQueue:
    """Sequences that have no slot yet."""

    def __init__(self) -> None:
        self._classes: dict[int, OrderedDict[int, Sequence]] = {}

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._classes.values())

    def __iter__(self) -> Iterator[Sequence]:
        """In the order in which they would start: the highest class first."""
        for priority in sorted(self._classes, reverse=True):
            yield from self._classes[priority].values()

    def push(self, sequence: Sequence) -> None:
        """Put a sequence last in its class."""
        queue = self._classes.setdefault(sequence.request.priority, OrderedDict())
        queue[sequence.request.sequence_id] = sequence

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, to run or to end it."""
        self._classes[sequence.request.priority].pop(sequence.request.sequence_id)

    def next(self, passed_over: Container[int] = ()) -> Sequence | None:
        """The sequence that starts next, without those that were passed over; it stays in the
        queue."""
        return next(
            (
                sequence
                for sequence in self
                if not sequence.paused and sequence.request.sequence_id not in passed_over
            ),
            None,
        )

    def expired(self, now: float) -> list[Sequence]:
        """Sequences that waited until one of their deadlines passed."""
        return [sequence for sequence in self if _has_expired(sequence, now)]


def _has_expired(sequence: Sequence, now: float) -> bool:
    deadlines = (sequence.request.deadline, sequence.request.queue_deadline)
    return any(deadline is not None and deadline <= now for deadline in deadlines)
