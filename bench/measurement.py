"""What a run measures, and what is concluded from it.

A ratio is made of two measurements of one round, so that a machine that gets slower during the run
slows both; the median over the rounds counts, the lowest and the highest are shown beside it.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from bench.stage import Stage

CORRAL = "corral"


@dataclass(frozen=True)
class Measurement:
    """One system under one load in one round; `value` is in the unit of its part."""

    load: str
    round: int
    system: str
    value: float
    figures: dict[str, Any] = field(default_factory=dict)
    cpu_s: dict[str, float] = field(default_factory=dict)  # by role, while it was measured


@dataclass(frozen=True)
class Result:
    """One line of the report: what was promised, and what was measured round by round."""

    load: str
    ratios: tuple[float, ...]  # one a round; none: there was nothing to compare with
    target: float
    own: float  # medians of what the ratios were made of
    peer: float
    peer_name: str
    unit: str = "tokens/s"
    bound: Literal["at least", "at most"] = "at least"

    @property
    def ratio(self) -> float:
        """The median over the rounds; 0 where nothing could be compared."""
        return middle(self.ratios)

    @property
    def is_met(self) -> bool | None:
        """Whether the target is met; None where nothing could be compared."""
        if not self.ratios:
            return None
        return self.ratio >= self.target if self.bound == "at least" else self.ratio <= self.target

    def to_json(self) -> dict[str, Any]:
        """Return everything, the median and the verdict included."""
        return asdict(self) | {"ratio": round(self.ratio, 4), "is_met": self.is_met}


@dataclass(frozen=True)
class Part:
    """A part of the benchmark: it measures on a stage and concludes from what was measured."""

    name: str
    title: str
    text: str  # what is measured, for the report
    measure: Callable[["Stage"], Iterator[Measurement]]
    conclude: Callable[[Sequence[Measurement]], list[Result]]


def middle(values: Sequence[float]) -> float:
    """Return the median; 0 of nothing."""
    return statistics.median(values) if values else 0.0


def by_round(measurements: Sequence[Measurement], load: str, system: str) -> dict[int, float]:
    """Return what one system reached under one load."""
    return {m.round: m.value for m in measurements if (m.load, m.system) == (load, system)}


def loads(measurements: Sequence[Measurement]) -> list[str]:
    """Return the loads in the order in which they were measured first."""
    return list(dict.fromkeys(m.load for m in measurements))


def best(measurements: Sequence[Measurement], load: str, name: str) -> str:
    """Return the fastest of the systems whose names begin so: of those with the most rounds, the
    one with the highest median. Empty: there is none."""
    systems = {m.system for m in measurements if m.load == load and m.system.startswith(name)}

    def standing(system: str) -> tuple[int, float]:
        reached = by_round(measurements, load, system)
        return len(reached), middle([*reached.values()])

    return max(sorted(systems), key=standing, default="")


def compared(
    measurements: Sequence[Measurement],
    load: str,
    peer: str,
    target: float,
    label: str = "",
    unit: str = "tokens/s",
) -> Result:
    """Compare Corral's speed with the best peer whose name begins so; `label` replaces the load's
    own name in the report."""
    name = best(measurements, load, peer)
    own, others = (by_round(measurements, load, system) for system in (CORRAL, name))
    return Result(
        label or load,
        tuple(value / others[n] for n, value in own.items() if n in others),
        target,
        middle([*own.values()]),
        middle([*others.values()]),
        name,
        unit,
    )
