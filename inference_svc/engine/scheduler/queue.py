"""The order of waiting sequences: class, which rises with waiting; then the project served least;
then arrival.

Aging prevents starvation. Where a class has more work than it gets done, all of it has waited long,
so only a part of the slots goes to risen sequences.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from heapq import heapify, heappop, heapreplace

from inference_svc.engine.scheduler.fairness import FairShare
from inference_svc.engine.sequence import Sequence

INTERACTIVE = 3
BATCH = 1
# Waiting so long is worth a class, so that no class starves another.
AGING_S = 30.0
_SLOTS_PER_PROMOTION = 8


class AdmissionQueue:
    """Sequences that have no slot; `shares` are what their projects were served."""

    def __init__(self, shares: FairShare[str] | None = None) -> None:
        self.shares = shares or FairShare()
        self._waiting: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._waiting.values())

    def push(self, sequence: Sequence) -> None:
        """Let a sequence wait; one that ran before keeps its place by arrival."""
        self._waiting[sequence.request.sequence_id] = sequence

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, to run or to end it."""
        del self._waiting[sequence.request.sequence_id]

    @property
    def ids(self) -> Collection[int]:
        """The ids of those that wait."""
        return self._waiting.keys()

    @property
    def has_ready(self) -> bool:
        """Whether any could start; paused ones cannot."""
        return any(not sequence.paused for sequence in self)

    def in_order(self, priority_of: Callable[[Sequence], int]) -> Iterator[Sequence]:
        """Those that could start, next first, each of the class that it has now. The order takes in
        what is charged while it is followed, and classes that fall: both only move sequences back,
        so each is ranked anew when its turn comes."""
        ready = [(self._rank(item, priority_of), item) for item in self if not item.paused]
        heapify(ready)
        while ready:
            rank, sequence = ready[0]
            moved = self._rank(sequence, priority_of)
            if moved != rank:
                heapreplace(ready, (moved, sequence))
                continue
            heappop(ready)
            yield sequence

    def expired(self, now: float) -> list[Sequence]:
        """Sequences that waited until one of their deadlines passed."""
        return [sequence for sequence in self if _has_expired(sequence, now)]

    def _rank(
        self, sequence: Sequence, priority_of: Callable[[Sequence], int]
    ) -> tuple[int, float, float, int]:
        request = sequence.request
        served = self.shares.served(request.project)
        return -priority_of(sequence), served, sequence.arrived_at, request.sequence_id


class PriorityAging:
    """Who starts above its own class: of each class one in eight of those that run, at least one;
    never two after each other, so that with few slots others come in between. Who rose counts for
    as long as it takes to wait for a class, and while it is read: one that goes on for an hour, or
    stands still, must not keep all others down."""

    def __init__(self, slots: int) -> None:
        self._most = max(slots // _SLOTS_PER_PROMOTION, 1)
        self._num_promoted: Counter[int] = Counter()
        self._was_last = self._is_open = False
        self._now = 0.0

    def begin(self, running: Iterable[Sequence], now: float) -> None:
        """Look at those that run, before others start."""
        self._num_promoted = Counter(
            sequence.request.priority
            for sequence in running
            if sequence.is_promoted and not sequence.paused and now - sequence.admitted_at < AGING_S
        )
        self._is_open = not self._was_last
        self._now = now

    def priority_of(self, sequence: Sequence) -> int:
        """The class that a sequence would start in; until the next `begin` it may only fall."""
        own = sequence.request.priority
        is_open = self._is_open and self._num_promoted[own] < self._most
        return aged_priority(sequence, self._now) if is_open else own

    def start(self, sequence: Sequence) -> None:
        """Have a sequence stand as high as it may."""
        sequence.admitted_priority, sequence.admitted_at = self.priority_of(sequence), self._now
        self._was_last = sequence.is_promoted
        if sequence.is_promoted:
            self._is_open = False


def aged_priority(sequence: Sequence, now: float) -> int:
    """A sequence's class after the time it has waited."""
    earned = int((now - sequence.arrived_at) / AGING_S)
    return max(min(sequence.request.priority + earned, INTERACTIVE), sequence.request.priority)


def _has_expired(sequence: Sequence, now: float) -> bool:
    deadlines = [sequence.request.deadline]
    if not sequence.has_started:
        deadlines.append(sequence.request.queue_deadline)
    return any(deadline is not None and deadline <= now for deadline in deadlines)


def select_deterministic(sequences: SequenceOf[Sequence], now: float) -> list[Sequence]:
    """Those of the deterministic sequences that have a call in this step.

    Of their prompts only one computes a chunk, to bound the step: of the most urgent class, which
    rises with waiting here as well, the one that has waited longest for its length.
    """
    texts = [sequence for sequence in sequences if sequence.is_decoding]
    prompts = [sequence for sequence in sequences if not sequence.is_decoding]
    return texts + sorted(prompts, key=lambda one: _order(one, now), reverse=True)[:1]


def _order(sequence: Sequence, now: float) -> tuple[int, float]:
    return max(sequence.effective_priority, aged_priority(sequence, now)), sequence.response_ratio(
        now
    )
