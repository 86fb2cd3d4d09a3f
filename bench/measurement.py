"""Measurements, and results computed from them.

A ratio compares two measurements of the same round, so that a slower machine affects both. A
result is the median of its ratios.
"""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

CORRAL = "corral"


@dataclass(frozen=True)
class Measurement:
    """One system under one load in one round; `value` is in the unit of its part."""

    load: str
    round: int
    system: str
    value: float
    figures: dict[str, Any] = field(default_factory=dict)
    cpu_s: dict[str, float] = field(default_factory=dict)  # by role, during the measurement


@dataclass(frozen=True)
class Result:
    """One line of the report: the ratio measured in each round and its target, if it has one."""

    load: str
    ratios: tuple[float, ...]  # one per round; empty without a peer
    target: float | None
    own: float  # `own` and `peer` are the medians of the compared values
    peer: float
    peer_name: str
    unit: str = "tokens/s"
    bound: Literal["at least", "at most"] = "at least"

    @property
    def ratio(self) -> float:
        """The median over the rounds, or 0 if nothing was compared."""
        return median(self.ratios)

    @property
    def is_met(self) -> bool | None:
        """Whether the target is met, or None if there is none or nothing was compared."""
        if not self.ratios or self.target is None:
            return None
        return self.ratio >= self.target if self.bound == "at least" else self.ratio <= self.target

    def to_json(self) -> dict[str, Any]:
        """Return all fields, the median ratio, and whether the target is met."""
        return asdict(self) | {"ratio": round(self.ratio, 4), "is_met": self.is_met}


def median(values: Sequence[float]) -> float:
    """Return the median, or 0 for no values."""
    return statistics.median(values) if values else 0.0


def values_by_round(
    measurements: Sequence[Measurement], load: str, system: str
) -> dict[int, float]:
    """Return the values of one system under one load, by round."""
    return {m.round: m.value for m in measurements if (m.load, m.system) == (load, system)}


def load_names(measurements: Sequence[Measurement]) -> list[str]:
    """Return the names of the loads in order of their first measurement."""
    return list(dict.fromkeys(m.load for m in measurements))


def best_system(measurements: Sequence[Measurement], load: str, name: str) -> str:
    """Return the fastest system whose name starts with `name`, or "" if there is none.

    Only systems with the most rounds are considered; the highest median wins.
    """
    systems = {m.system for m in measurements if m.load == load and m.system.startswith(name)}

    def rank(system: str) -> tuple[int, float]:
        values = values_by_round(measurements, load, system)
        return len(values), median([*values.values()])

    return max(sorted(systems), key=rank, default="")


def compare(
    measurements: Sequence[Measurement],
    load: str,
    peer: str,
    target: float,
    label: str = "",
    unit: str = "tokens/s",
    system: str = CORRAL,
) -> Result:
    """Compare the speed of Corral, or of another `system`, with the fastest peer whose name starts
    with `peer`.

    `label` replaces the name of the load in the report.
    """
    name = best_system(measurements, load, peer)
    own, others = (values_by_round(measurements, load, each) for each in (system, name))
    return Result(
        label or load,
        tuple(value / others[n] for n, value in own.items() if n in others),
        target,
        median([*own.values()]),
        median([*others.values()]),
        name,
        unit,
    )
