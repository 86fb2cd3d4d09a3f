"""Balancers as gRPC has them, and two to compare them with.

What is simulated is one channel: its ring, its weights and its turns.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from bench.simulation.replica import Replica
from bench.simulation.xxhash import xxh64

_MASK: Final = 2**16 - 1
_MAX_RATIO, _MIN_RATIO = 10.0, 0.1
_MIN_LOAD: Final = 0.02  # as in `svc_kit/rpc/orca.py`
_REPORT_AGE_S: Final = 2.0
"""Loads are reported each second, and weights computed each second from what has arrived."""


class Balancer(Protocol):
    """Chooses a replica for a key."""

    def choose(self, key: str, now: float) -> Replica | None:
        """A replica that is up; None if none is."""


class RingHash:
    """gRPC's ring_hash: each replica has as many points of the ring as the others."""

    def __init__(
        self, replicas: Sequence[Replica], names: Sequence[str], min_size: int, suffix: str = ""
    ) -> None:
        """`names` are the addresses. `min_size` is minRingSize, and the ring's cap; `suffix` is
        added to all keys."""
        self._suffix = suffix
        per_replica = math.ceil(min_size / len(replicas))
        points = sorted(
            (xxh64(f"{name}_{count}".encode()), number)
            for number, name in enumerate(names)
            for count in range(per_replica)
        )
        self._hashes = [point for point, _ in points]
        self._owners = [replicas[number] for _, number in points]

    def choose(self, key: str, now: float) -> Replica | None:
        """The owner of the next point, or of the next one whose owner is up."""
        start = bisect_left(self._hashes, xxh64((key + self._suffix).encode()))
        for step in range(len(self._owners)):
            owner = self._owners[(start + step) % len(self._owners)]
            if owner.is_up:
                return owner
        return None


class RoundRobin:
    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._next = 0

    def choose(self, key: str, now: float) -> Replica | None:
        for _ in self._replicas:
            replica = self._replicas[self._next]
            self._next = (self._next + 1) % len(self._replicas)
            if replica.is_up:
                return replica
        return None


class LeastLoad:
    """The replica with the fewest requests, by counts that are never late; in turns if equal."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._turn = 0

    def choose(self, key: str, now: float) -> Replica | None:
        serving = [(each.num_live, each) for each in self._replicas if each.is_up]
        if not serving:
            return None
        least = min(count for count, _ in serving)
        found = [each for count, each in serving if count == least]
        self._turn += 1
        return found[self._turn % len(found)]


class WeightedRoundRobin:
    """gRPC's weighted_round_robin: static strides by the inverse of the reported load."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._sequence = 0
        self._reported_at = -math.inf
        self._serving: list[Replica] = []
        self._weights: list[int] = []

    def choose(self, key: str, now: float) -> Replica | None:
        is_late = now >= self._reported_at + _REPORT_AGE_S
        if is_late or not any(each.is_up for each in self._serving):
            self._reported_at = now
            self._serving = [each for each in self._replicas if each.is_up]
            self._weights = stride_weights([1 / max(_MIN_LOAD, r.load) for r in self._serving])
        while self._serving:
            turn, index = divmod(self._sequence, len(self._serving))
            self._sequence += 1
            weight, replica = self._weights[index], self._serving[index]
            if (weight * turn + index * (_MASK // 2)) % _MASK >= _MASK - weight and replica.is_up:
                return replica
        return None


def stride_weights(weights: Sequence[float]) -> list[int]:
    """Weights in 16 bits, none above ten times or below a tenth of their mean."""
    if not weights:
        return []
    mean = sum(weights) / len(weights)
    scale = _MASK / min(max(weights), _MAX_RATIO * mean)
    least = math.ceil(_MIN_RATIO * scale * mean)
    return [max(least, min(_MASK, round(each * scale))) for each in weights]


Names = Sequence[str]
MakeBalancer = Callable[[Sequence[Replica], Names], Balancer]


def ring_hash(min_size: int, suffix: str = "") -> MakeBalancer:
    return lambda replicas, names: RingHash(replicas, names, min_size, suffix)


def round_robin(replicas: Sequence[Replica], _: Names) -> Balancer:
    return RoundRobin(replicas)


def least_load(replicas: Sequence[Replica], _: Names) -> Balancer:
    return LeastLoad(replicas)


def weighted_round_robin(replicas: Sequence[Replica], _: Names) -> Balancer:
    return WeightedRoundRobin(replicas)
