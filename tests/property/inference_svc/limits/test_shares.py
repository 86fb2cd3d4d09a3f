"""Holders and the control service, with the real arithmetic of both sides and no transport."""

import asyncio
from collections import defaultdict
from datetime import UTC, datetime, timedelta

from corral.control.v1 import limit_service_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from control_svc.limits.model import RateBucket, ShareRequest, divide
from inference_svc.limits.limiter import Admission, Limiter, Need
from inference_svc.usage import Counts, UsageKey
from svc_kit.errors import BudgetExceeded, DomainError, RateLimited, UpstreamUnavailable
from svc_kit.metrics import LimitMetrics
from tests.support.examples import examples
from tests.support.operators import make_limit

START = datetime(2026, 11, 26, tzinfo=UTC)
KEY = UsageKey("red", "key_1", "demo")
MOST_OUTPUT = 400
MOST_REQUESTS = 20
"""More than the largest amount admits."""


class FakeControl:
    """Divides one limit as `control_svc.limits.service` does, on a manual clock."""

    def __init__(self, limit: pb.Limit) -> None:
        self.limit = limit
        self.now = 0.0
        self.is_away = False
        self.reported = 0
        self._bucket = RateBucket(float(limit.amount), START)
        self._held: dict[str, int] = defaultdict(int)

    async def lease(self, request: pb.LeaseLimitsRequest) -> pb.LeaseLimitsResponse:
        """Answer a holder."""
        if self.is_away:
            raise UpstreamUnavailable(service="control")
        shares = [self._grant(request.holder, share) for share in request.shares]
        return pb.LeaseLimitsResponse(limits=[self.limit], shares=shares)

    def _grant(self, holder: str, share: pb.LimitShareRequest) -> pb.LimitShare:
        self._held[holder] = share.held
        held, asked = (
            sum(self._held.values()),
            ShareRequest(limit_id=share.limit_id, required=share.required, desired=share.desired),
        )
        if self.limit.period == pb.Limit.PERIOD_MINUTE:
            now = START + timedelta(seconds=self.now)
            self._bucket = self._bucket.refill(
                self.limit.amount, now, held=held, returned=share.returned
            )
            granted = divide(self._bucket.level, asked, len(self._held))
            self._bucket = self._bucket.subtract(granted.granted)
        else:
            used = self.reported if self.limit.period else 0
            free = self.limit.amount - used - held
            granted = divide(free, asked, len(self._held))
        self._held[holder] += granted.granted
        return pb.LimitShare(
            granted=granted.granted, remaining=granted.remaining, num_holders=len(self._held)
        )


class NoFile:
    """Keeps no limits."""

    def read(self) -> pb.LeaseLimitsResponse | None:
        """Nothing was written."""
        return None

    def write(self, limits: pb.LeaseLimitsResponse) -> None:
        """Write nothing."""


class Installation:
    """Several holders of one limit, and what their requests have used, with times."""

    def __init__(self, limit: pb.Limit, num_holders: int, grace_s: float = 60.0) -> None:
        self.control = FakeControl(limit)
        metrics = LimitMetrics(CollectorRegistry())
        self.holders = [
            Limiter(
                self.control.lease,
                NoFile(),
                metrics,
                grace_s=grace_s,
                clock=lambda: self.control.now,
            )
            for _ in range(num_holders)
        ]
        self.running: list[tuple[int, Admission, int, int]] = []
        self.used: list[tuple[float, int]] = []
        self.topped_up = 0
        self.refusals: list[DomainError] = []

    async def start(self) -> None:
        """Let all holders learn the limit."""
        for holder in self.holders:
            await holder.renew()

    async def admit(self, holder: int, prompt: int, most: int) -> None:
        """Try to start a request."""
        try:
            admission = await self.holders[holder].admit(KEY, Need(prompt, most))
        except (RateLimited, BudgetExceeded, UpstreamUnavailable) as error:
            self.refusals.append(error)
            return
        self.running.append((holder, admission, prompt, 0))
        if self.control.limit.unit == pb.Limit.UNIT_REQUESTS:
            self.used.append((self.control.now, 1))

    def generate(self, number: int, tokens: int) -> None:
        """Generate tokens of a request."""
        holder, admission, prompt, before = self.running[number]
        reserved = self._reserved(admission)
        admission.add_output(tokens)
        self.topped_up += max(0, self._reserved(admission) - reserved)
        if self.control.limit.unit == pb.Limit.UNIT_TOKENS:
            self.used.append((self.control.now, tokens + (0 if before else prompt)))
        self.running[number] = (holder, admission, prompt, before + tokens)

    def generate_reserved(self, number: int) -> None:
        """Generate all tokens that a request has reserved."""
        _, admission, prompt, tokens = self.running[number]
        if (rest := self._reserved(admission) - prompt - tokens) > 0:
            self.generate(number, rest)

    def finish(self, number: int) -> None:
        """End a request, and report its usage at once."""
        holder, admission, prompt, tokens = self.running.pop(number)
        counts = Counts(1, prompt, 0, tokens)
        if not tokens:
            admission.release()
            return
        reserved = self._reserved(admission)
        admission.settle(counts)
        self.topped_up += max(0, prompt + tokens - reserved)
        self.control.reported += prompt + tokens
        self.holders[holder].on_reported(KEY, counts)

    def used_within(self, seconds: float) -> int:
        """The most that was used in any such time."""
        return max(
            (
                sum(amount for time, amount in self.used if start <= time <= start + seconds)
                for start, _ in self.used
            ),
            default=0,
        )

    @staticmethod
    def _reserved(admission: Admission) -> int:
        return sum(reservation.amount for reservation in admission._open)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["admit", "admit", "generate", "generate", "finish", "wait", "renew"]),
        st.integers(0, 7),
        st.integers(1, MOST_OUTPUT),
    ),
    max_size=60,
)


async def run_steps(installation: Installation, steps: list[tuple[str, int, int]]) -> None:
    """Carry out the steps."""
    await installation.start()
    running, num_holders = installation.running, len(installation.holders)
    for name, number, size in steps:
        match name:
            case "admit":
                await installation.admit(number % num_holders, size, MOST_OUTPUT)
            case "generate" if running:
                installation.generate(number % len(running), size)
            case "finish" if running:
                installation.finish(number % len(running))
            case "wait":
                installation.control.now += size / 20
            case "renew":
                await installation.holders[number % num_holders].renew()


@settings(max_examples=examples(50))
@given(
    num_holders=st.integers(1, 4),
    amount=st.integers(300, 3000),
    steps=STEPS,
    pause_s=st.integers(0, 120),
)
def test_what_streams_have_reserved_is_not_refilled(
    num_holders: int, amount: int, steps: list[tuple[str, int, int]], pause_s: int
) -> None:
    """After a pause of any length, those that run and all that are admitted then use together at
    most the amount, however much of it they use at once."""
    installation = Installation(make_limit("tokens", "TOKENS", amount), num_holders)

    async def run() -> None:
        await run_steps(installation, steps)
        await installation.admit(0, 1, MOST_OUTPUT)
        installation.control.now += pause_s
        await installation.start()
        installation.used.clear()
        installation.topped_up = 0
        for number in range(MOST_REQUESTS):
            await installation.admit(number % num_holders, 1, MOST_OUTPUT)
        for number in range(len(installation.running)):
            installation.generate_reserved(number)

    asyncio.run(run())
    assert sum(used for _, used in installation.used) <= amount + installation.topped_up


@settings(max_examples=examples(150))
@given(num_holders=st.integers(1, 4), amount=st.integers(50, 3000), steps=STEPS)
def test_holders_never_use_more_of_a_rate_than_one_server_would(
    num_holders: int, amount: int, steps: list[tuple[str, int, int]]
) -> None:
    """In any time: the amount, what time refills, and what running streams were longer than
    expected. The same as with a single token bucket."""
    installation = Installation(make_limit("tokens", "TOKENS", amount), num_holders)
    asyncio.run(run_steps(installation, steps))

    for seconds in (1, 5, 30, 60):
        allowed = amount * (1 + seconds / 60) + installation.topped_up
        assert installation.used_within(seconds) <= allowed


@settings(max_examples=examples(100))
@given(num_holders=st.integers(1, 4), amount=st.integers(50, 3000), steps=STEPS)
def test_holders_never_exceed_a_budget_but_by_running_streams(
    num_holders: int, amount: int, steps: list[tuple[str, int, int]]
) -> None:
    """Usage is at most the budget, and what streams were longer than expected."""
    installation = Installation(make_limit("tokens", "TOKENS", amount, "DAY"), num_holders)
    asyncio.run(run_steps(installation, steps))

    assert sum(used for _, used in installation.used) <= amount + installation.topped_up


@settings(max_examples=examples(100))
@given(num_holders=st.integers(1, 4), amount=st.integers(1, 5), steps=STEPS)
def test_holders_never_run_more_requests_than_allowed(
    num_holders: int, amount: int, steps: list[tuple[str, int, int]]
) -> None:
    """And all slots can be used again once all requests have ended."""
    limit = make_limit("at-once", "CONCURRENT_REQUESTS", amount, "")
    installation = Installation(limit, num_holders)

    async def run() -> None:
        for step in steps:
            await run_steps(installation, [step])
            assert len(installation.running) <= amount
        for _, admission, _, _ in installation.running:
            admission.release()
        installation.running.clear()
        installation.control.now += 10
        await installation.start()
        for _ in range(amount):
            await installation.admit(0, 1, 1)
        assert len(installation.running) == amount

    asyncio.run(run())


@settings(max_examples=examples(50))
@given(num_holders=st.integers(1, 4), amount=st.integers(60, 600), away_s=st.integers(1, 90))
def test_holders_share_a_rate_while_control_is_away(
    num_holders: int, amount: int, away_s: int
) -> None:
    """For the grace period they use together at most twice the amount and the refill, then
    requests are refused with UNAVAILABLE."""
    installation = Installation(make_limit("calls", "REQUESTS", amount), num_holders, grace_s=60)

    async def run() -> None:
        await installation.start()
        for holder in range(num_holders):
            await installation.admit(holder, 1, 1)
        await installation.start()  # the leases are renewed every second
        installation.control.is_away = True
        for second in range(away_s):
            installation.control.now = float(second + 1)
            for holder in range(num_holders):
                for _ in range(20):
                    await installation.admit(holder, 1, 1)

    asyncio.run(run())
    assert len(installation.used) > num_holders
    assert sum(used for _, used in installation.used) <= amount * (2 + min(away_s, 60) / 60)
    if away_s > 61:
        assert isinstance(installation.refusals[-1], UpstreamUnavailable)
