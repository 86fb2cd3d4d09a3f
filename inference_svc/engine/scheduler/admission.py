"""Admits sequences from the queue into slots, prepares their samplers and grammars, and preempts
batch work for interactive work.

A preempted sequence waits again in its order of arrival and resumes with the same cells and
sampler.
"""

import logging
from collections.abc import Callable, Collection

from inference_svc.engine.events import CacheSource, Preempted, Resumed, Started
from inference_svc.engine.kv_cache.allocator import Prefix, SlotAllocator
from inference_svc.engine.kv_cache.capacity import CacheCapacity
from inference_svc.engine.kv_cache.prefix_wait import PrefixWaiters
from inference_svc.engine.scheduler.queue import BATCH, INTERACTIVE, PriorityAging
from inference_svc.engine.scheduler.sequence_table import SequenceTable
from inference_svc.engine.sequence import Sequence
from inference_svc.engine.slots import Slot, SlotTable


def may_preempt(waiting: Sequence) -> bool:
    """Whether a sequence's own class allows it."""
    return waiting.request.priority >= INTERACTIVE


def victims(running: Collection[Sequence]) -> list[Sequence]:
    """The batch work, youngest first."""
    batch = [sequence for sequence in running if sequence.effective_priority <= BATCH]
    return sorted(batch, key=_youth, reverse=True)


def _youth(sequence: Sequence) -> tuple[float, int]:
    return sequence.arrived_at, sequence.request.sequence_id


log = logging.getLogger(__name__)


class Admission:
    """Moves a sequences's sequences from its queue to those that run and, preempted, back. The last
    pass ended because somebody `lacks_cells`, or not; `num_misses` began without anything that was
    computed before."""

    def __init__(
        self,
        table: SlotTable,
        allocator: SlotAllocator,
        capacity: CacheCapacity,
        sequences: SequenceTable,
        prefix_waiters: PrefixWaiters,
        clock: Callable[[], float],
    ) -> None:
        self.cached_tokens = 0
        self.num_misses = 0
        self.num_preemptions = 0
        self.lacks_cells = False
        self._table = table
        self._allocator = allocator
        self._capacity = capacity
        self._sequences = sequences
        self._queue = sequences.queue
        self._running = sequences.running
        self._prefix_waiters = prefix_waiters
        self._clock = clock
        self._aging = PriorityAging(len(table.slots))

    def admit(self, prepare: Callable[[Sequence], bool]) -> None:
        """Start what can be started; `prepare` prepares a sequence and says whether there is
        anything to compute. The copies that this needs are queued for the next decode."""
        self.lacks_cells = False
        self._prefix_waiters.begin_pass(self._running.values(), self._queue.ids, self._clock())
        self._aging.begin(self._running.values(), self._clock())
        if self._table.has_idle or (self._has_victim and any(map(may_preempt, self._queue))):
            for sequence in self._queue.in_order(self._aging.priority_of):
                if not self._table.has_idle:
                    if not self._has_victim:
                        break
                    if not may_preempt(sequence):
                        continue  # aged work, say, with interactive work behind it
                if prepare(sequence) and not self._start(sequence):
                    break
            self._allocator.queue_copies()

    @property
    def _has_victim(self) -> bool:
        return bool(victims(self._running.values()))

    def _start(self, sequence: Sequence) -> bool:
        """Put a sequence into a slot, or let it wait for its leader; False where there is no
        slot."""
        prefix = self._allocator.find_prefix(sequence)
        running = self._running.values()
        if self._prefix_waiters.should_wait(sequence, prefix.tokens, running, self._clock()):
            return True
        while not (self._table.has_idle and self._capacity.can_admit(sequence, prefix, running)):
            if not self._free_up(sequence, prefix):
                self.lacks_cells = self._table.has_idle
                return False
            prefix = self._allocator.find_prefix(sequence)
        placed = self._allocator.allocate(sequence, prefix)
        if placed is None:
            return False
        self._allocator.drop_saved(sequence)
        self._run(sequence, *placed)
        return True

    def _run(self, sequence: Sequence, slot: Slot, prefix: Prefix) -> None:
        request, now = sequence.request, self._clock()
        self._queue.remove(sequence)
        self._running[request.sequence_id] = sequence
        self._queue.shares.charge(request.project, len(sequence.tokens) - prefix.tokens)
        sequence.slot = slot
        self._aging.start(sequence)
        if sequence.has_started:
            self._sequences.events.append(Resumed(request.sequence_id, slot.index))
            return
        sequence.has_started, sequence.started_at = True, now
        cached = min(prefix.tokens, len(request.prompt))
        self.cached_tokens += cached
        self.num_misses += request.reuse and prefix.source is CacheSource.NONE
        queue_s = now - sequence.arrived_at
        self._sequences.events.append(
            Started(request.sequence_id, slot.index, cached, prefix.source, queue_s)
        )

    def _free_up(self, sequence: Sequence, prefix: Prefix) -> bool:
        """Preempt a running sequence to free cells; if there is none, evict a prefix."""
        if not self._running:
            return self._capacity.evict(prefix.slot)
        return may_preempt(sequence) and self._preempt()

    def _preempt(self) -> bool:
        """Free a slot by preempting batch work; False if there is none."""
        found = victims(self._running.values())
        victim = next(filter(self._allocator.swap_out, found), None)
        if victim is None:
            return False
        self._requeue(victim)
        return True

    def free_cells(self) -> bool:
        """Let one of those that run wait, for the others to go on: of the least urgent the one that
        frees most cells. False where only one is left, which always has room. Without memory for
        its cells they are computed again."""
        if len(self._running) < 2:
            return False
        victim = min(self._running.values(), key=self._preemption_order)
        self._allocator.swap_out(victim)
        self._requeue(victim)
        return True

    def _preemption_order(self, sequence: Sequence) -> tuple[int, int]:
        slot = sequence.slot
        return sequence.effective_priority, -self._capacity.freed_by(
            slot
        ) if slot is not None else 0

    def _requeue(self, victim: Sequence) -> None:
        del self._running[victim.request.sequence_id]
        victim.clear_inherited()
        victim.prefix_wait = None
        self._allocator.release(victim, keep=True)
        self._queue.push(victim)
        self.num_preemptions += 1
        log.info("sequence %d is preempted", victim.request.sequence_id)
        self._sequences.events.append(Preempted(victim.request.sequence_id))
