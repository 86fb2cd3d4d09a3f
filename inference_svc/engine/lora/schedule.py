"""Schedules adapter stacks. llama.cpp applies the same adapters to a whole decode call, so stacks
take turns.
"""

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf

from inference_svc.engine.request import AdapterStack
from inference_svc.engine.sequence import Sequence


class AdapterSchedule:
    """A round-robin queue of the stacks with ready sequences, with priorities.

    The first stack is the current one. A stack of higher priority comes first; a stack of lower
    priority that has waited `max_wait_s` seconds gets one step. Times are in seconds of the
    engine's clock.
    """

    def __init__(self, max_wait_s: float) -> None:
        self._max_wait_s = max_wait_s
        self._queue: dict[AdapterStack, float] = {}  # stack to the time when it was queued
        self._priorities: Mapping[AdapterStack, int] = {}
        self._turn_started_at = 0.0
        self._turn_priority = 0
        self._overtaken: frozenset[AdapterStack] = frozenset()  # of higher priority, in last step

    def next_stack(self, ready: SequenceOf[Sequence], now: float) -> AdapterStack:
        """The stack of the next step, of those of the `ready` sequences (at least one)."""
        self._priorities = _priorities(ready)
        if len(self._priorities) > 1 or self._priorities.keys() != self._queue.keys():
            self._update_queue(now)
        current = next(iter(self._queue))
        self._turn_priority = self._priorities[current]
        self._overtaken = self._higher_priority(current)
        return current

    def _update_queue(self, now: float) -> None:
        """Remove stacks without ready sequences, append new ones, and move the next one to the
        front; the previous one goes to the end."""
        previous = next(iter(self._queue), None)
        queue = {stack: since for stack, since in self._queue.items() if stack in self._priorities}
        queue |= {stack: now for stack in self._priorities if stack not in queue}
        first = self._next(queue, previous, now)
        since = queue.pop(first)
        if first != previous:
            self._turn_started_at = now
            if previous is not None and queue.pop(previous, None) is not None:
                queue[previous] = now
        self._queue = {first: since, **queue}

    def _next(
        self, queue: Mapping[AdapterStack, float], previous: AdapterStack | None, now: float
    ) -> AdapterStack:
        """The stack that follows `previous`, which may have no ready sequences any more."""
        waiting = [stack for stack in queue if stack != previous]
        if previous is not None and not waiting:
            return previous
        highest = max(self._priorities[stack] for stack in waiting)
        if self._turn_priority >= highest:
            for stack in waiting:
                if self._may_overtake(stack) and self._is_overdue(queue[stack], now):
                    return stack
        peers = [stack for stack in waiting if self._priorities[stack] == highest]
        if previous is None or previous not in queue or self._priorities[previous] < highest:
            return peers[0]
        if self._priorities[previous] > highest:
            return previous
        is_turn_over = now - self._turn_started_at >= self._max_wait_s / len(peers)
        return peers[0] if is_turn_over or self._is_overdue(queue[peers[0]], now) else previous

    def _may_overtake(self, stack: AdapterStack) -> bool:
        """Whether a stack of lower priority may have a step: only after the stacks that the last
        step overtook have had one, unless their priority is no longer higher."""
        is_lower = self._priorities[stack] < self._turn_priority
        return is_lower and self._overtaken.isdisjoint(self._higher_priority(stack))

    def _higher_priority(self, stack: AdapterStack) -> frozenset[AdapterStack]:
        own = self._priorities[stack]
        return frozenset(other for other, value in self._priorities.items() if value > own)

    def _is_overdue(self, since: float, now: float) -> bool:
        return now - since >= self._max_wait_s


def _priorities(ready: SequenceOf[Sequence]) -> dict[AdapterStack, int]:
    """The stacks of the sequences, each with the highest priority of its sequences."""
    priorities: dict[AdapterStack, int] = {}
    for sequence in ready:
        stack = sequence.request.adapters
        priorities[stack] = max(priorities.get(stack, 0), sequence.effective_priority)
    return priorities
