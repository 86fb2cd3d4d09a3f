"""Several holders and a real control service, on both databases and a common manual clock.

The figures are logged.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from corral.control.v1.limit_service_pb2_grpc import LimitServiceStub
from prometheus_client import CollectorRegistry

from inference_svc.delivery import make_sender
from inference_svc.limits.limiter import Limiter, LimitReservation, Need
from inference_svc.limits.limits_file import LimitsFile
from inference_svc.usage import Counts, UsageKey
from svc_kit.errors import BudgetExceeded, RateLimited
from svc_kit.metrics import LimitMetrics
from svc_kit.rpc.client import open_channel
from tests.support.control import RunningControl
from tests.support.operators import Operator

log = logging.getLogger(__name__)
KEY = UsageKey("red", "key_1", "demo")
NUM_HOLDERS = 3
SECONDS = 15
PATIENCE_S = 60.0
"""A holder that gives up uses its part of what control has left, which is not tested here."""
MEAN_OUTPUT = 30


@dataclass
class Drill:
    """Holders whose requests come faster than the limit allows."""

    running: RunningControl
    holders: list[Limiter]
    dice: random.Random = field(default_factory=lambda: random.Random(7))
    open: list[tuple[float, LimitReservation, int, int]] = field(default_factory=list)
    """When a request ends, with its prompt and output tokens."""
    used: dict[str, int] = field(default_factory=lambda: {"requests": 0, "tokens": 0})
    refused: int = 0
    longer: int = 0
    """Tokens by which streams were longer than what they had reserved."""

    @property
    def now(self) -> float:
        """Seconds on the common clock."""
        return self.running.clock.now.timestamp()

    async def run(self, seconds: int) -> None:
        """Send requests from all holders; the leases are renewed every second."""
        for _ in range(seconds):
            await asyncio.gather(*(holder.renew() for holder in self.holders))
            for _ in range(4):
                self.running.clock.advance(seconds=0.25)
                self.finish(self.now)
                await asyncio.gather(*(self.send(each) for each in self.holders for _ in range(3)))

    async def send(self, holder: Limiter) -> None:
        """Send a request; its output varies around what is expected."""
        prompt, output = self.dice.randrange(10, 200), self.dice.randrange(1, 2 * MEAN_OUTPUT)
        try:
            admission = await holder.admit(KEY, Need(prompt, 2 * MEAN_OUTPUT))
        except (RateLimited, BudgetExceeded):
            self.refused += 1
            return
        self.used["requests"] += 1
        self.open.append((self.now + self.dice.uniform(0, 5), admission, prompt, output))

    def finish(self, until: float) -> None:
        """End the requests that are due."""
        due = [each for each in self.open if each[0] <= until]
        self.open = [each for each in self.open if each[0] > until]
        for _, admission, prompt, output in due:
            reserved = sum(each.amount - prompt for each in admission._open)
            admission.add_output(output)
            admission.settle(Counts(1, prompt, 0, output))
            self.used["tokens"] += prompt + output
            self.longer += max(0, output - reserved)


@pytest.fixture
async def drill(running: RunningControl, tmp_path: Path) -> AsyncIterator[Drill]:
    """Three holders, each with its own connection."""
    token = (running.folder / "token").read_text().strip()
    metrics = LimitMetrics(CollectorRegistry())
    channels = [open_channel(running.target, token=token) for _ in range(NUM_HOLDERS)]
    drill = Drill(running, [])
    async with channels[0] as one, channels[1] as two, channels[2] as three:
        drill.holders = [
            Limiter(
                make_sender(LimitServiceStub(channel).LeaseLimits, PATIENCE_S),
                LimitsFile(tmp_path / f"limits-{number}"),
                metrics,
                grace_s=60,
                clock=lambda: drill.now,
                patience_s=PATIENCE_S,
            )
            for number, channel in enumerate((one, two, three))
        ]
        yield drill


@pytest.mark.parametrize(("unit", "amount"), [("REQUESTS", 90), ("TOKENS", 12_000)])
async def test_holders_use_what_one_server_would(drill: Drill, unit: str, amount: int) -> None:
    """No more than the amount and the refill, and nearly all of it."""
    await Operator.of(drill.running).create_limit("limit", unit, amount, project="red")
    await drill.run(SECONDS)
    drill.finish(float("inf"))

    used = drill.used[unit.lower()]
    allowed = amount * (1 + SECONDS / 60) + (drill.longer if unit == "TOKENS" else 0)
    error = used / allowed - 1
    log.warning(
        "%d holders, %d %s per minute, %d s: used %d of %d (%+.1f %%), %d refused",
        *(NUM_HOLDERS, amount, unit.lower(), SECONDS, used, allowed, 100 * error, drill.refused),
    )
    assert -0.12 <= error <= 0
    assert drill.refused


async def test_a_killed_holder_strands_its_share_until_the_lease_ends(drill: Drill) -> None:
    """Then the others use all of it; nothing is used twice."""
    await Operator.of(drill.running).create_limit("slots", "CONCURRENT_REQUESTS", 9, "")
    await drill.run(2)
    assert len(drill.open) == 9
    killed = drill.holders.pop()
    of_killed = [each for each in drill.open if each[1] in _admissions(killed, drill)]
    drill.open = [each for each in drill.open if each not in of_killed]
    await drill.run(14)
    before = len(drill.open)
    await drill.run(6)
    assert before <= 9 - len(of_killed)
    assert len(drill.open) == 9


def _admissions(holder: Limiter, drill: Drill) -> list[LimitReservation]:
    buckets = set(holder._buckets.values())
    return [each[1] for each in drill.open if {r.bucket for r in each[1]._open} & buckets]
