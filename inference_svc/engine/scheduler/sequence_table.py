"""The live sequences of an engine: waiting in the queue, or running in a slot."""

import math

from inference_svc.engine.constraint import GuideError
from inference_svc.engine.events import Event, Failed
from inference_svc.engine.kv_cache.allocator import SlotAllocator
from inference_svc.engine.scheduler.queue import AdmissionQueue
from inference_svc.engine.sequence import Sequence
from inference_svc.engine.spec_decode.drafter import Drafter
from svc_kit.errors import DomainError, GrammarInvalid


class SequenceTable:
    """Live sequences: all in `by_id`, those with a slot in `running`, the others in `queue`.

    `events` are those not collected yet. `num_changes` counts added and removed sequences.
    """

    def __init__(self, allocator: SlotAllocator, drafter: Drafter) -> None:
        self.by_id: dict[int, Sequence] = {}
        self.running: dict[int, Sequence] = {}
        self.events: list[Event] = []
        self.num_changes = 0
        self.queue = AdmissionQueue()
        self._allocator = allocator
        self._drafter = drafter
        self._expires_at = math.inf  # no sequence does so before

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.request.sequence_id in self.by_id

    def ready(self) -> list[Sequence]:
        """The running sequences that have tokens to compute."""
        return [sequence for sequence in self.running.values() if sequence.is_ready]

    def expired(self, now: float) -> list[Sequence]:
        """The sequences whose deadline, or deadline for the queue, has passed."""
        if now < self._expires_at:
            return []
        live = self.by_id.values()
        times = (sequence.expires_at for sequence in live)
        self._expires_at = min((each for each in times if each > now), default=math.inf)
        return [sequence for sequence in live if sequence.expires_at <= now]

    def add(self, sequence: Sequence) -> None:
        self.num_changes += 1
        self._expires_at = min(self._expires_at, sequence.expires_at)
        self.by_id[sequence.request.sequence_id] = sequence
        self.queue.shares.enter(sequence.request.project)
        self.queue.push(sequence)

    def fail(self, sequence: Sequence, error: DomainError, *, keep: bool = True) -> None:
        """End a sequence with an error. If `keep`, its KV cells stay in the prefix cache."""
        self.remove(sequence, keep=keep)
        self.events.append(Failed(sequence.request.sequence_id, error))

    def fail_guide(self, sequence: Sequence, problem: GuideError) -> None:
        """End a sequence whose constraint cannot be followed."""
        constraint = sequence.request.constraint
        field = constraint.field if constraint is not None else ""
        self.fail(sequence, GrammarInvalid(field=field, problem=str(problem)))

    def remove(self, sequence: Sequence, *, keep: bool = True) -> None:
        """Remove a sequence in any phase and free its slot. If `keep`, its KV cells stay in the
        prefix cache."""
        self.num_changes += 1
        sequence_id = sequence.request.sequence_id
        del self.by_id[sequence_id]
        self._drafter.record_outcome(sequence)
        self.queue.shares.leave(sequence.request.project)
        if sequence.sampler is not None:
            sequence.sampler.close()
        if sequence.guide is not None:
            sequence.guide.close()
        if sequence.slot is None:
            self.queue.remove(sequence)
        else:
            del self.running[sequence_id]
        self._allocator.finish(sequence, keep=keep)
