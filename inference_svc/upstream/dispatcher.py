"""Which requests wait, and which are at an engine.

An engine gets as many requests as it has slots, and lines of batches beyond: these wait in it, so
that it begins with the next one in the step after the end of another. They wait here again when
others come.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from inference_svc.engine.scheduler.queue import BATCH, AdmissionQueue, PriorityAging, ProjectSlots
from inference_svc.upstream.endpoint import Endpoint
from inference_svc.upstream.endpoints import Endpoints
from inference_svc.upstream.upstream_turn import Turn

OnDone = Callable[[Turn, Endpoint, asyncio.Task[None]], None]


class Dispatcher:
    """The requests of a name: `turns` by sequence id, of which those in `queue` wait. `on_done` is
    called when one has left an engine. In an engine one waits for at most `max_wait_s`."""

    def __init__(self, endpoints: Endpoints, max_wait_s: float, on_done: OnDone) -> None:
        self.turns: dict[int, Turn] = {}
        self.queue = AdmissionQueue()
        self._endpoints = endpoints
        self._max_wait_s = max_wait_s
        self._on_done = on_done
        self._aging, self._projects = PriorityAging(1), ProjectSlots(1)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._returning: dict[int, Endpoint] = {}
        """What leaves an engine to wait here again."""

    @property
    def tasks(self) -> Sequence[asyncio.Task[None]]:
        """Those of the requests at engines."""
        return [*self._tasks.values()]

    @property
    def num_running(self) -> int:
        return len(self._tasks) - self._endpoints.num_ahead

    @property
    def num_waiting(self) -> int:
        """How many wait, here or in an engine."""
        return len(self.queue) + self._endpoints.num_ahead

    def set_slots(self, slots: int) -> None:
        """Set the slots of all engines together."""
        self._aging, self._projects = PriorityAging(slots), ProjectSlots(slots)

    def add(self, turn: Turn) -> None:
        request = turn.sequence.request
        self.turns[request.sequence_id] = turn
        self.queue.shares.enter(request.project)
        self.queue.push(turn.sequence)

    def drop(self, turn: Turn) -> None:
        """Forget a request, wherever it is."""
        request = turn.sequence.request
        if request.sequence_id in self.queue.ids:
            self.queue.remove(turn.sequence)
        if (task := self._tasks.get(request.sequence_id)) is not None:
            task.cancel()
        self._returning.pop(request.sequence_id, None)
        if self.turns.pop(request.sequence_id, None) is not None:
            self.queue.shares.leave(request.project)

    def late_turns(self, now: float) -> Iterator[Turn]:
        """The requests whose deadline, or deadline for the queue, has passed."""
        expired = {sequence.request.sequence_id for sequence in self.queue.expired(now)}
        for sequence_id, turn in [*self.turns.items()]:
            deadline = turn.sequence.request.deadline
            if sequence_id in expired or (deadline is not None and deadline <= now):
                yield turn

    def admit(self) -> None:
        """Start as many waiting requests as the engines take."""
        now = time.monotonic()
        do_others_wait = any(each.request.priority > BATCH for each in self.queue)
        self._withdraw(now, everything=do_others_wait)
        if not len(self.queue):
            return
        running = [self.turns[number].sequence for number in self._tasks if number in self.turns]
        self._aging.begin(running, now)
        self._projects.begin(running, now, self._endpoints.num_slots)
        for sequence in self.queue.in_order(self._aging.priority_of):
            if not self._projects.may_start(sequence):
                continue
            turn = self.turns[sequence.request.sequence_id]
            is_ahead = turn.may_wait_there and not do_others_wait
            endpoint = self._endpoints.choose(now, turn.failed_at, is_ahead=is_ahead)
            if endpoint is not None:
                self._start(turn, endpoint)
            elif turn.failed_at is None:
                return

    def _start(self, turn: Turn, endpoint: Endpoint) -> None:
        sequence, request = turn.sequence, turn.sequence.request
        self.queue.remove(sequence)
        if not turn.is_charged:
            turn.is_charged = True
            num_tokens = len(sequence.tokens) or request.estimated_tokens
            self.queue.shares.charge(request.project, num_tokens)
        self._aging.start(sequence)
        self._projects.start(sequence)
        used = {self.turns[other].slot for other in self._tasks if other in self.turns}
        turn.slot = next(slot for slot in range(len(used) + 1) if slot not in used)
        turn.endpoint = endpoint
        endpoint.num_running += 1
        task = asyncio.get_running_loop().create_task(turn.run(endpoint))
        task.add_done_callback(partial(self._end, turn, endpoint))
        self._tasks[request.sequence_id] = task

    def _end(self, turn: Turn, endpoint: Endpoint, task: asyncio.Task[None]) -> None:
        """Free the slot of a request, even if it was cancelled before its task began to run."""
        sequence_id = turn.sequence.request.sequence_id
        endpoint.num_running -= 1
        if self._tasks.get(sequence_id) is task:
            del self._tasks[sequence_id]
        if self._returning.pop(sequence_id, None) is not None and task.cancelled():
            turn.set_aside()
            self.queue.push(turn.sequence)
        self._on_done(turn, endpoint, task)

    def _withdraw(self, now: float, *, everything: bool) -> None:
        """Let what waits in an engine wait here: all of it, or what has waited there for long,
        since the engine would count as lost."""
        if not self._endpoints.num_ahead:
            return
        num_waiting = Counter[Endpoint]()
        for sequence_id, task in reversed(self._tasks.items()):
            turn = self.turns.get(sequence_id)
            if turn is None or (endpoint := turn.endpoint) is None:
                continue
            is_begun = not turn.may_wait_there or turn.phase != "prefill"
            if is_begun or num_waiting[endpoint] >= endpoint.num_running - endpoint.slots:
                continue
            num_waiting[endpoint] += 1
            is_old = now - turn.sequence.started_at >= self._max_wait_s
            if (everything or is_old) and sequence_id not in self._returning:
                self._returning[sequence_id] = endpoint
                task.cancel()
