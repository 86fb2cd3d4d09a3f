"""Runs a trace through replicas behind a policy, event by event."""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from bench.simulation.balancers import Balancer, MakeBalancer
from bench.simulation.replica import Replica, ReplicaShape, Request
from bench.simulation.traces import Conversation, num_prompt_tokens, perfect_hit_rate
from bench.streams import quantile


class Policy(NamedTuple):
    """`tries` choose the replicas of a call one after the other, until one does not refuse it.
    `full_at` is the number of requests, by slots, from which a replica refuses calls, but not those
    of the last try; None: it refuses none."""

    name: str
    tries: Sequence[MakeBalancer]
    full_at: float | None = None


class Failure(NamedTuple):
    """A replica that loses what it has."""

    replica: int
    starts_at: float
    ends_at: float


@dataclass(frozen=True)
class Outcome:
    """What became of a trace. `failed` requests found no replica."""

    trace: Sequence[Conversation]
    ended: Sequence[Request]
    failed: Sequence[Request]
    busy_s: Sequence[float]

    @property
    def hit_rate(self) -> float:
        """The part of the prompt tokens that was not computed. What failures repeat counts."""
        computed = sum(request.num_computed for request in (*self.ended, *self.failed))
        return 1 - computed / num_prompt_tokens(self.trace)

    @property
    def waits_s(self) -> list[float]:
        """The times to the first token."""
        return [
            each.first_token_at - each.arrived_at
            for each in self.ended
            if each.first_token_at is not None
        ]

    def figures(self) -> dict[str, float]:
        """What is published of it."""
        waits_s, mean_s = self.waits_s, sum(self.busy_s) / len(self.busy_s)
        figures = {
            "requests": float(len(self.ended)),
            "hit_rate": self.hit_rate,
            "of_perfect": self.hit_rate / (perfect_hit_rate(self.trace) or 1.0),
            "wait_p50_s": quantile(waits_s, 0.5),
            "wait_p99_s": quantile(waits_s, 0.99),
            "refused": sum(each.num_refusals for each in self.ended) / len(self.ended),
            "imbalance": max(self.busy_s) / mean_s,
        }
        return {name: round(value, 4) for name, value in figures.items()}


def simulate(
    trace: Sequence[Conversation],
    policy: Policy,
    shape: ReplicaShape,
    *,
    num_replicas: int,
    failures: Sequence[Failure] = (),
    names: Sequence[str] | None = None,
) -> Outcome:
    """Run all conversations to their ends. `names` are the addresses of the replicas."""
    replicas = [Replica(number, shape) for number in range(num_replicas)]
    names = names or [f"10.0.{number >> 8}.{number & 255}:50051" for number in range(num_replicas)]
    run = _Run(replicas, [make(replicas, names) for make in policy.tries], policy.full_at)
    for conversation in trace:
        run.at(conversation.starts_at, Request(conversation, 0, conversation.starts_at))
    for failure in failures:
        run.at(failure.starts_at, failure)
        run.at(failure.ends_at, failure)
    run.to_end()
    return Outcome(trace, run.ended, run.failed, [each.busy_s for each in replicas])


class _Run:
    def __init__(
        self, replicas: Sequence[Replica], tries: Sequence[Balancer], full_at: float | None
    ) -> None:
        self._replicas = replicas
        self._tries = tries
        self._full_at = full_at
        self._events: list[tuple[float, int, Request | Replica | Failure]] = []
        self._order = count()
        self.ended: list[Request] = []
        self.failed: list[Request] = []

    def at(self, time: float, event: Request | Replica | Failure) -> None:
        heappush(self._events, (time, next(self._order), event))

    def to_end(self) -> None:
        while self._events:
            now, _, event = heappop(self._events)
            if isinstance(event, Request):
                self._send(event, now)
            elif isinstance(event, Failure):
                self._fail(event, now)
            elif event.run_until == now:  # else its plan has changed since
                for request in event.advance(now):
                    self._end(request, now)
                self._await(event)

    def _await(self, replica: Replica) -> None:
        if replica.run_until is not None:
            self.at(replica.run_until, replica)

    def _send(self, request: Request, now: float) -> None:
        for balancer in self._tries[:-1]:
            replica = balancer.choose(request.conversation.key, now)
            if replica is not None and (self._full_at is None or replica.load < self._full_at):
                self._submit(request, replica, now)
                return
            request.num_refusals += 1
        self._send_last(request, now)

    def _send_last(self, request: Request, now: float) -> None:
        """To the last try's replica, which does not refuse it."""
        replica = self._tries[-1].choose(request.conversation.key, now)
        if replica is None:
            self.failed.append(request)
            return
        self._submit(request, replica, now)

    def _submit(self, request: Request, replica: Replica, now: float) -> None:
        before = replica.run_until
        replica.submit(request, now)
        if replica.run_until != before:
            self._await(replica)

    def _end(self, request: Request, now: float) -> None:
        self.ended.append(request)
        conversation, turn = request.conversation, request.turn + 1
        if turn < len(conversation.turns):
            sent_at = now + conversation.turns[turn].pause_s
            self.at(sent_at, Request(conversation, turn, sent_at))

    def _fail(self, failure: Failure, now: float) -> None:
        replica = self._replicas[failure.replica]
        if now == failure.ends_at:
            replica.is_up = True
            return
        for request in replica.fail(now):
            request.num_moves += 1
            self._send_last(request, now)
