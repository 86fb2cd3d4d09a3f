"""Admits queued sequences into slots, and preempts batch work for interactive work and
when cells run out.

A preempted sequence returns to the queue, keeps its order of arrival and its sampler, and resumes
from its saved KV cells.
"""

import logging
from collections.abc import Callable, Collection

from inference_svc.engine.engine_parts import EngineParts
from inference_svc.engine.events import CacheSource, Divergence, Preempted, Resumed, Started
from inference_svc.engine.kv_cache.allocator import Prefix
from inference_svc.engine.kv_cache.prefix_wait import PrefixWaiters
from inference_svc.engine.scheduler.queue import BATCH, INTERACTIVE, PriorityAging, ProjectSlots
from inference_svc.engine.sequence import Sequence
from inference_svc.engine.slots import Slot

log = logging.getLogger(__name__)


def may_preempt(waiting: Sequence) -> bool:
    """Whether the priority class of a request, without aging, allows it to preempt others."""
    return waiting.request.priority >= INTERACTIVE


def is_victim(running: Sequence) -> bool:
    """Whether a running sequence may be preempted: it is batch work."""
    return running.effective_priority <= BATCH


def victims(running: Collection[Sequence]) -> list[Sequence]:
    """The running sequences that may be preempted, last arrived first."""
    batch = filter(is_victim, running)
    return sorted(batch, key=lambda item: (item.arrived_at, item.request.sequence_id), reverse=True)


class Admission:
    """Moves sequences from the queue to the running ones, and preempted ones back.

    `lacks_cells` is whether the last pass ended because too few KV cells were free. `num_misses`
    counts sequences that could have used the prefix cache, but started without a cached token.
    """

    def __init__(self, state: EngineParts) -> None:
        self.cached_tokens = 0
        self.num_misses = 0
        self.num_preemptions = 0
        self.lacks_cells = False
        self.prefix_waiters = PrefixWaiters(
            state.sequences.running, state.step_time, can_trim=state.backend.can_trim
        )
        self._table = state.table
        self._allocator = state.allocator
        self._capacity = state.capacity
        self._sequences = state.sequences
        self._queue = state.sequences.queue
        self._running = state.sequences.running
        self._clock = state.clock
        self._aging = PriorityAging(len(state.table.slots))
        self._projects = ProjectSlots(len(state.table.slots))

    @property
    def could_start(self) -> bool:
        """Whether a waiting sequence could have a slot and does not wait for cells."""
        waits_for_cells = self.lacks_cells and self._running
        return self._queue.has_ready and self._table.has_idle and not waits_for_cells

    def admit(self, prepare: Callable[[Sequence], bool]) -> None:
        """Start as many queued sequences as fit.

        `prepare` sets up a sequence and returns whether it has anything to compute. KV cache copies
        are queued and take effect with the next decode.
        """
        self.lacks_cells = False
        running, now = self._running.values(), self._clock()
        self.prefix_waiters.begin_pass(self._queue.ids, now)
        if not self._queue:
            return
        could_preempt = self._has_victim and any(map(may_preempt, self._queue))
        if not (could_preempt or self._table.has_idle):
            return
        self._aging.begin(running, now)
        self._projects.begin(running, now)
        if could_preempt or any(map(self._projects.may_start, self._queue)):
            for sequence in self._queue.in_order(self._aging.priority_of):
                if not self._projects.may_start(sequence):
                    continue
                if not self._table.has_idle:
                    if not self._has_victim:
                        break
                    if not may_preempt(sequence):
                        continue  # e.g. aged batch work ahead of interactive work
                if prepare(sequence) and not self._start(sequence):
                    break
            self._allocator.queue_copies()

    @property
    def _has_victim(self) -> bool:
        return any(map(is_victim, self._running.values()))

    def _start(self, sequence: Sequence) -> bool:
        """Assign a slot, or defer the sequence until another one has computed its prefix.

        Returns False if no slot or not enough cells are available.
        """
        prefix = self._allocator.find_prefix(sequence)
        if self.prefix_waiters.should_wait(sequence, prefix.tokens):
            return True
        running = self._running.values()
        while not (self._table.has_idle and self._capacity.can_admit(sequence, prefix, running)):
            if not self._free_up(sequence, prefix):
                self.lacks_cells = self._table.has_idle
                return False
            prefix = self._allocator.find_prefix(sequence)
        divergence = None if sequence.has_started else self._allocator.find_divergence(sequence)
        placed = self._allocator.allocate(sequence, prefix)
        if placed is None:
            return False
        self._allocator.drop_saved(sequence)
        self._run(sequence, *placed, divergence)
        return True

    def _run(
        self, sequence: Sequence, slot: Slot, prefix: Prefix, divergence: Divergence | None
    ) -> None:
        request, now = sequence.request, self._clock()
        self._queue.remove(sequence)
        self._running[request.sequence_id] = sequence
        self._queue.shares.charge(request.project, len(sequence.tokens) - prefix.tokens)
        sequence.slot = slot
        self._aging.start(sequence)
        self._projects.start(sequence)
        if sequence.has_started:
            self._sequences.events.append(Resumed(request.sequence_id, slot.index))
            return
        sequence.has_started, sequence.started_at = True, now
        cached = min(prefix.tokens, len(request.prompt))
        self.cached_tokens += cached
        self.num_misses += request.may_start_cached and prefix.source is CacheSource.NONE
        queue_s = now - sequence.arrived_at
        self._sequences.events.append(
            Started(request.sequence_id, slot.index, cached, prefix.source, queue_s, divergence)
        )

    def _free_up(self, sequence: Sequence, prefix: Prefix) -> bool:
        """Preempt a running sequence to free cells; evict a cached prefix if none is running."""
        if not self._running:
            return self._capacity.evict(prefix.slot)
        return may_preempt(sequence) and self._preempt()

    def _preempt(self) -> bool:
        """Preempt batch work to free a slot. Returns False if there is none to preempt."""
        victim = next(filter(self._allocator.swap_out, victims(self._running.values())), None)
        if victim is None:
            return False
        self._requeue(victim)
        return True

    def free_cells(self) -> bool:
        """Preempt a running sequence because the next decode call lacks cells.

        Chooses the one that frees most cells among those of the lowest priority. If its cells do
        not fit into memory, they are recomputed. Returns False if only one sequence is running: its
        cells always fit.
        """
        if len(self._running) < 2:
            return False
        victim = min(self._running.values(), key=self._preemption_order)
        self._allocator.swap_out(victim)
        self._requeue(victim)
        return True

    def _preemption_order(self, sequence: Sequence) -> tuple[int, int]:
        freed = self._capacity.freed_by(sequence.slot) if sequence.slot is not None else 0
        return sequence.effective_priority, -freed

    def _requeue(self, victim: Sequence) -> None:
        del self._running[victim.request.sequence_id]
        victim.clear_inherited()
        victim.prefix_wait = None
        self._allocator.release(victim, keep=True)
        self._queue.push(victim)
        self.num_preemptions += 1
        log.info("sequence %d was preempted", victim.request.sequence_id)
        self._sequences.events.append(Preempted(victim.request.sequence_id))
