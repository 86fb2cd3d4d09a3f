"""The admission queue: ordered by priority class, then by the service of the project, then by
arrival.

The priority of a waiting sequence rises with time (aging), to prevent starvation. Under constant
overload every sequence of a class has waited long, so only part of the slots is for promoted ones.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from heapq import heapify, heappop, heapreplace
from operator import itemgetter

from inference_svc.engine.sequence import Sequence
from svc_kit.fairness import FairShare

INTERACTIVE = 3
BATCH = 1
AGING_S = 30.0
"""Waiting time that raises the priority by one class, in seconds."""
_SLOTS_PER_PROMOTION = 8
MIN_SHARED_SLOTS = 4
"""With fewer slots, none is left free for other projects."""
RECENT_S = 60.0
_MAX_PROJECTS = 64


class AdmissionQueue:
    """Sequences without a slot. `shares` is the service of their projects."""

    def __init__(self, shares: FairShare[str] | None = None) -> None:
        self.shares = shares or FairShare()
        self._waiting: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._waiting.values())

    def push(self, sequence: Sequence) -> None:
        """Add a sequence; a preempted one is ordered by its original arrival."""
        self._waiting[sequence.request.sequence_id] = sequence

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that starts or ends."""
        del self._waiting[sequence.request.sequence_id]

    @property
    def ids(self) -> Collection[int]:
        """Ids of the waiting sequences."""
        return self._waiting.keys()

    @property
    def has_ready(self) -> bool:
        """Whether any sequence is not paused."""
        return any(not sequence.paused for sequence in self)

    def in_order(self, priority_of: Callable[[Sequence], int]) -> Iterator[Sequence]:
        """Yield the sequences that are not paused, in order of admission.

        Charges to projects and lower priorities during the iteration are taken into account. They
        only move sequences back, so it is enough to rank each one again when it is next.
        """
        ready = [(self._rank(item, priority_of), item) for item in self if not item.paused]
        heapify(ready)
        while ready:
            rank, sequence = ready[0]
            current = self._rank(sequence, priority_of)
            if current != rank:
                heapreplace(ready, (current, sequence))
                continue
            heappop(ready)
            yield sequence

    def expired(self, now: float) -> list[Sequence]:
        """The sequences whose deadline, or deadline for the queue, has passed."""
        return [sequence for sequence in self if sequence.expires_at <= now]

    def _rank(
        self, sequence: Sequence, priority_of: Callable[[Sequence], int]
    ) -> tuple[int, float, float, int]:
        request = sequence.request
        served = self.shares.served(request.project)
        return -priority_of(sequence), served, sequence.arrived_at, request.sequence_id


class PriorityAging:
    """Decides which sequences start above their own priority class.

    Each class may have one promoted sequence per eight slots, at least one. Two promoted sequences
    never start in succession, so that others start in between even if there are few slots. A
    promoted sequence counts for `AGING_S` seconds unless it is paused, so that one that runs for an
    hour does not block further promotions.
    """

    def __init__(self, slots: int) -> None:
        self._max_promoted = max(slots // _SLOTS_PER_PROMOTION, 1)
        self._num_promoted: Counter[int] = Counter()
        self._was_last_promoted = self._may_promote = False
        self._now = 0.0

    def begin(self, running: Iterable[Sequence], now: float) -> None:
        """Begin an admission pass: count the promoted sequences among the running ones."""
        self._num_promoted = Counter(
            sequence.request.priority
            for sequence in running
            if sequence.is_promoted and not sequence.paused and now - sequence.admitted_at < AGING_S
        )
        self._may_promote = not self._was_last_promoted
        self._now = now

    def priority_of(self, sequence: Sequence) -> int:
        """The class in which a sequence would start. It does not rise until the next `begin`."""
        own = sequence.request.priority
        if self._may_promote and self._num_promoted[own] < self._max_promoted:
            return aged_priority(sequence, self._now)
        return own

    def start(self, sequence: Sequence) -> None:
        """Record the class and the time of the start of a sequence."""
        sequence.admitted_priority, sequence.admitted_at = self.priority_of(sequence), self._now
        self._was_last_promoted = sequence.is_promoted
        if sequence.is_promoted:
            self._may_promote = False


class ProjectSlots:
    """Leaves one slot to other projects while several use the model: a project does not start in
    the last slot if another one has started a sequence in the last `RECENT_S` seconds.

    Batch work does not count for other work, since that preempts it.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._held: Counter[tuple[str, bool]] = Counter()
        self._started: dict[str, float] = {}
        """The time of the last start, by project."""
        self._now = 0.0

    def begin(self, running: Iterable[Sequence], now: float, slots: int | None = None) -> None:
        """Begin an admission pass. `slots` are those of now, if their number changes."""
        self._slots = self._slots if slots is None else slots
        self._held = Counter(map(_project_and_kind, running))
        self._now = now

    def may_start(self, sequence: Sequence) -> bool:
        """Whether the project of a sequence may have one more slot."""
        project, is_batch = _project_and_kind(sequence)
        held = self._held[project, False] + is_batch * self._held[project, True]
        limit = self._slots - (self._slots >= MIN_SHARED_SLOTS)
        return held < limit or not any(
            other != project and self._now - started < RECENT_S
            for other, started in self._started.items()
        )

    def start(self, sequence: Sequence) -> None:
        key = _project_and_kind(sequence)
        self._held[key] += 1
        self._started[key[0]] = self._now
        if len(self._started) > _MAX_PROJECTS:
            recent = sorted(self._started.items(), key=itemgetter(1))[_MAX_PROJECTS // 2 :]
            self._started = dict(recent)


def _project_and_kind(sequence: Sequence) -> tuple[str, bool]:
    return sequence.request.project, sequence.effective_priority <= BATCH


def aged_priority(sequence: Sequence, now: float) -> int:
    """The priority class of a sequence after aging: at most `INTERACTIVE`, unless it is higher
    anyway."""
    num_classes = int((now - sequence.arrived_at) / AGING_S)
    own = sequence.request.priority
    return max(min(own + num_classes, INTERACTIVE), own)


def select_deterministic(sequences: SequenceOf[Sequence], now: float) -> list[Sequence]:
    """The deterministic sequences that have a decode call in this step.

    These are all decoding ones, and one prompt, to limit the duration of the step: the one with the
    highest response ratio in the highest priority class after aging.
    """

    def order(prompt: Sequence) -> tuple[int, float]:
        priority = max(prompt.effective_priority, aged_priority(prompt, now))
        return priority, prompt.response_ratio(now)

    decoding = [sequence for sequence in sequences if sequence.is_decoding]
    prompts = [sequence for sequence in sequences if not sequence.is_decoding]
    return decoding + sorted(prompts, key=order, reverse=True)[:1]
