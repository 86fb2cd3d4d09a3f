"""Schedules adapter stacks: llama.cpp applies adapters to a whole decode call, so stacks take
turns.
"""

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf

from inference_svc.engine.request import AdapterStack
from inference_svc.engine.sequence import Sequence


class AdapterSchedule:
    """The line of stacks that have something to compute; the first is on turn. Times are the
    engine's clock, in seconds."""

    def __init__(self, max_wait_s: float) -> None:
        self._max_wait_s = max_wait_s
        self._line: dict[AdapterStack, float] = {}  # since when each is in the line
        self._classes: Mapping[AdapterStack, int] = {}
        self._turn_began = 0.0
        self._turn_class = 0
        self._overtaken: frozenset[AdapterStack] = frozenset()  # by the last step

    def next_stack(self, ready: SequenceOf[Sequence], now: float) -> AdapterStack:
        """The stack that is on turn for the next step, of those of `ready` (at least one)."""
        self._classes = _classes(ready)
        if len(self._classes) > 1 or self._classes.keys() != self._line.keys():
            self._move_on(now)
        current = next(iter(self._line))
        self._turn_class = self._classes[current]
        self._overtaken = self._more_urgent(current)
        return current

    def _move_on(self, now: float) -> None:
        """Bring the line up to date: those without work leave, new ones stand at its end, and so
        does the first when its turn is over; who comes next goes to the front."""
        before = next(iter(self._line), None)
        line = {stack: since for stack, since in self._line.items() if stack in self._classes}
        line |= {stack: now for stack in self._classes if stack not in line}
        first = self._next(line, before, now)
        since = line.pop(first)
        if first != before:
            self._turn_began = now
            if before is not None and line.pop(before, None) is not None:
                line[before] = now
        self._line = {first: since, **line}

    def _next(
        self, line: Mapping[AdapterStack, float], before: AdapterStack | None, now: float
    ) -> AdapterStack:
        """The next stack after a step of `before`, which may have no work left."""
        waiting = [stack for stack in line if stack != before]
        if before is not None and not waiting:
            return before
        most = max(self._classes[stack] for stack in waiting)
        if self._turn_class >= most:
            for stack in waiting:
                if self._may_overtake(stack) and self._is_overdue(line[stack], now):
                    return stack
        peers = [stack for stack in waiting if self._classes[stack] == most]
        if before is None or before not in line or self._classes[before] < most:
            return peers[0]
        if self._classes[before] > most:
            return before
        is_long = now - self._turn_began >= self._max_wait_s / len(peers)
        return peers[0] if is_long or self._is_overdue(line[peers[0]], now) else before

    def _may_overtake(self, stack: AdapterStack) -> bool:
        """Whether a less urgent stack may have a step: not before those have gone on that the last
        step overtook, who may be less urgent by now."""
        is_less_urgent = self._classes[stack] < self._turn_class
        return is_less_urgent and self._overtaken.isdisjoint(self._more_urgent(stack))

    def _more_urgent(self, stack: AdapterStack) -> frozenset[AdapterStack]:
        least = self._classes[stack]
        return frozenset(one for one, its in self._classes.items() if its > least)

    def _is_overdue(self, since: float, now: float) -> bool:
        return now - since >= self._max_wait_s


def _classes(ready: SequenceOf[Sequence]) -> dict[AdapterStack, int]:
    """The stacks that there are, each with the class of its most urgent sequence."""
    classes: dict[AdapterStack, int] = {}
    for sequence in ready:
        stack = sequence.request.adapters
        classes[stack] = max(classes.get(stack, 0), sequence.effective_priority)
    return classes
