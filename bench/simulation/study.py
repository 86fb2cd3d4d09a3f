"""What the simulation is asked: policies by the number of replicas and by trace, and the defaults:
the ring's size, from how many requests on a replica is full, and where its refused calls go."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Final, NamedTuple

from bench.paths import REPOSITORY
from bench.simulation.balancers import (
    least_load,
    ring_hash,
    round_robin,
    weighted_round_robin,
)
from bench.simulation.calibration import measured
from bench.simulation.replica import ReplicaShape
from bench.simulation.simulator import Failure, Policy, simulate
from bench.simulation.traces import TraceShape, make_trace
from svc_kit.rpc.replica_channel import RING_SIZE

_RESULTS: Final = REPOSITORY / "bench/results"
FULL_AT: Final = 2.0
"""As in `EngineClient.is_full`."""
_HOME: Final = ring_hash(RING_SIZE)
CORRAL: Final = Policy("Corral", (_HOME, weighted_round_robin), FULL_AT)
ROUND_ROBIN: Final = Policy("round robin", (round_robin,))
POLICIES: Final = (
    CORRAL,
    Policy("ring hash without spill", (_HOME,)),
    Policy("least load", (least_load,)),
    ROUND_ROBIN,
)
COUNTS: Final = (2, 4, 8, 16, 64, 250, 1000)
_SECONDS: Final = {250: 60.0, 1000: 15.0}
"""How long the load lasts, by the number of replicas, where it is less than elsewhere."""
_MAX_SEEDS, _MIDDLE = 4, 16
"""Of small counts of replicas, and the count where nothing else is said."""
_FAILING_SHARE: Final = 0.25

TALKS: Final = TraceShape("conversations")
TRACES: Final = (
    TALKS,
    TraceShape("long prompts", long_share=0.4),
    TraceShape("short prompts", system_tokens=200, long_share=0.0),
    TraceShape("one tenant has half", skew=2.0),
    TraceShape("a session has a quarter", crowd_share=0.25),
)
_ON_CPU: Final = TraceShape(
    "conversations, 4 slots",
    system_tokens=300,
    text_tokens=60,
    long_tokens=1200,
    output_tokens=100,
    pause_s=20.0,
)


@dataclass(frozen=True)
class Site:
    """Replicas, and the load that is offered to them for `seconds`."""

    shape: ReplicaShape = field(default_factory=lambda: ReplicaShape(measured(_RESULTS / "gpu")))
    load: float = 0.8
    seconds: float = 120.0


GPU: Final = Site()
CPU: Final = Site(ReplicaShape(measured(_RESULTS), 4, 4 * 8192), seconds=600.0)


class Row(NamedTuple):
    """Mean figures over the seeds."""

    study: str
    load: str
    replicas: int
    policy: str
    figures: dict[str, float]


def run_studies(*, max_replicas: int) -> Iterator[Row]:
    """The rows of all studies with up to so many replicas."""
    counts = [count for count in COUNTS if count <= max_replicas]
    for policy in POLICIES:
        yield _row("traces", GPU, TALKS, policy, _MIDDLE, fails=True)
        for trace in TRACES:
            yield _row("traces", GPU, trace, policy, _MIDDLE)
    yield from _keys()
    yield from _full_marks()
    yield from _spills()
    for count in counts:
        site = replace(GPU, seconds=_SECONDS.get(count, GPU.seconds))
        rows = [_row("replicas", site, TALKS, policy, count) for policy in POLICIES]
        yield from rows
        if count >= _MIDDLE:
            yield from _rings(site, count)
            yield rows[0]._replace(study="ring", policy=f"{RING_SIZE:,}")


def _keys() -> Iterator[Row]:
    """Homes by conversation, as they are, and by system prompt, with caches of two sizes."""
    for trace in (TALKS, replace(TALKS, name="homes by system prompt", home_of="tenant")):
        for times in (1, 4):
            cache_tokens = times * GPU.shape.cache_tokens
            site = replace(GPU, shape=replace(GPU.shape, cache_tokens=cache_tokens))
            policy = CORRAL._replace(name=f"cache of {cache_tokens:,} tokens")
            yield _row("keys", site, trace, policy, _MIDDLE)


def _full_marks() -> Iterator[Row]:
    for site, trace in ((GPU, TALKS), (CPU, _ON_CPU)):
        for load in (0.6, 0.9):
            for mark in (1.0, 1.5, FULL_AT, 3.0):
                policy = Policy(f"{mark:g} x slots", CORRAL.tries, mark)
                yield _row("full", replace(site, load=load), trace, policy, _MIDDLE)


def _spills() -> Iterator[Row]:
    second = ring_hash(RING_SIZE, "/2")
    for trace in (TALKS, TRACES[-1]):
        for name, tries in {
            "weighted round robin": CORRAL.tries,
            "round robin": (_HOME, round_robin),
            "least load": (_HOME, least_load),
            "a second home": (_HOME, second),
            "a second home, then weighted": (_HOME, second, weighted_round_robin),
        }.items():
            policy = Policy(name, tries, FULL_AT)
            yield _row("spill", replace(GPU, load=0.9), trace, policy, _MIDDLE)


def _rings(site: Site, count: int) -> Iterator[Row]:
    """Smaller rings than that of the policy."""
    for size in (1024, 8192):
        policy = Policy(f"{size:,}", (ring_hash(size), weighted_round_robin), FULL_AT)
        yield _row("ring", site, TALKS, policy, count)


def _row(
    study: str, site: Site, trace: TraceShape, policy: Policy, count: int, *, fails: bool = False
) -> Row:
    seeds = range(max(1, min(_MAX_SEEDS, 2 * _MIDDLE // count)))
    runs = [_figures(site, trace, policy, count, seed, fails=fails) for seed in seeds]
    means = {name: round(fmean(run[name] for run in runs), 4) for name in runs[0]}
    load = f"{trace.name}, a quarter fails" if fails else trace.name
    return Row(study, f"{load}, {site.load:g}", count, policy.name, means)


def _figures(
    site: Site, shape: TraceShape, policy: Policy, count: int, seed: int, *, fails: bool
) -> dict[str, float]:
    trace = make_trace(
        shape,
        site.shape.times,
        num_replicas=count,
        slots=site.shape.slots,
        load=site.load,
        seconds=site.seconds,
        seed=seed,
    )
    failures = _failures(count, site.seconds, seed) if fails else []
    outcome = simulate(trace, policy, site.shape, num_replicas=count, failures=failures)
    return outcome.figures()


def _failures(count: int, seconds: float, seed: int) -> Sequence[Failure]:
    """A quarter of the replicas, each away for a quarter of the time."""
    rng = random.Random(seed)
    failing = rng.sample(range(count), max(1, round(_FAILING_SHARE * count)))
    starts = [rng.uniform(0.2, 0.7) * seconds for _ in failing]
    return [
        Failure(number, starts_at, starts_at + seconds / 4)
        for number, starts_at in zip(failing, starts, strict=True)
    ]
