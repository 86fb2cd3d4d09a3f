"""Holders of one limit and the control service, with the real arithmetic of both sides and a manual
clock, but no transport: calls can be lost, or their answers, or either comes late.
"""

import asyncio
import time
from collections import deque
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import Final, NamedTuple

from corral.control.v1 import limit_service_pb2 as pb
from prometheus_client import CollectorRegistry

from control_svc.limits.model import (
    Caller,
    Holding,
    Limit,
    Period,
    RateBucket,
    ShareRequest,
    Unit,
    grant,
)
from inference_svc.limits.bucket import Reservation
from inference_svc.limits.limiter import Limiter, LimitReservation, Need
from inference_svc.usage import Counts, UsageKey
from svc_kit.errors import BudgetExceeded, DomainError, RateLimited, UpstreamUnavailable
from svc_kit.metrics import LimitMetrics

PRICE: Final = pb.Price(prompt_nanos=3, cached_nanos=1, completion_nanos=5)
START: Final = datetime(2026, 11, 26, tzinfo=UTC)
KEY: Final = UsageKey("red", "key_1", "demo")


class Fault(Enum):
    """What happens to a call of control."""

    REQUEST_LOST = auto()
    REQUEST_LATE = auto()
    """It fails, and arrives later: `deliver_late`."""
    ANSWER_LOST = auto()
    ANSWER_LATE = auto()
    """It waits for `answer_late`."""


class Waiting(NamedTuple):
    end: asyncio.Future[None]
    reply: pb.LeaseLimitsResponse


class FakeControl:
    """Divides one limit as `control_svc.limits.service` does, on a manual clock."""

    def __init__(self, limit: pb.Limit) -> None:
        self.limit = limit
        self.now = 0.0
        self.is_away = False
        self.refills = True
        """Whether time passes for control."""
        self.faults: deque[Fault] = deque()
        """What happens to the next calls."""
        self.late: list[pb.LeaseLimitsRequest] = []
        self.waiting: list[Waiting] = []
        self.reported = 0
        self.reset_s = 1e6
        """Seconds until a budget begins again."""
        self.level = RateBucket(float(limit.amount), START)
        self.holdings: dict[str, Holding] = {}
        period = pb.Limit.Period.Name(limit.period).removeprefix("PERIOD_").lower()
        self._limit = Limit(
            id=limit.id,
            unit=Unit(pb.Limit.Unit.Name(limit.unit).removeprefix("UNIT_").lower()),
            amount=limit.amount,
            period=Period(period) if limit.period else None,
        )

    async def lease(self, request: pb.LeaseLimitsRequest) -> pb.LeaseLimitsResponse:
        """Answer a holder, or let the next fault happen."""
        fault = self.faults.popleft() if self.faults else None
        if fault is Fault.ANSWER_LATE:
            end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiting.append(Waiting(end, reply := self.answer(request)))
            await end
            return reply
        if fault is Fault.ANSWER_LOST:
            self.answer(request)
        if fault is Fault.REQUEST_LATE:
            self.late.append(request)
        if self.is_away or fault:
            raise UpstreamUnavailable(service="control")
        return self.answer(request)

    def answer(self, request: pb.LeaseLimitsRequest) -> pb.LeaseLimitsResponse:
        caller = Caller(request.holder, request.number)
        shares = [self._grant(caller, share) for share in request.shares]
        return pb.LeaseLimitsResponse(limits=[self.limit], prices=[PRICE], shares=shares)

    def deliver_late(self) -> None:
        """Let the calls arrive whose holders have given up."""
        for request in self.late:
            self.answer(request)
        self.late.clear()

    def end_waiting(self, *, is_lost: bool) -> None:
        """Let the answers arrive that are late, or be lost."""
        for end, _ in self.waiting:
            if is_lost:
                end.set_exception(UpstreamUnavailable(service="control"))
            else:
                end.set_result(None)
        self.waiting.clear()

    def _grant(self, caller: Caller, share: pb.LimitShareRequest) -> pb.LimitShare:
        division = grant(
            self._limit,
            self.level,
            self.holdings,
            caller,
            ShareRequest(
                limit_id=share.limit_id,
                held=share.held,
                returned=share.returned,
                required=share.required,
                desired=share.desired,
                used=share.used if share.HasField("used") else None,
            ),
            used=self.reported if self.limit.period else 0,
            now=START + timedelta(seconds=self.now if self.refills else 0),
        )
        if division is None:
            return pb.LimitShare()
        granted, self.level, self.holdings[caller.holder] = division
        answer = pb.LimitShare(
            granted=granted.granted,
            remaining=granted.remaining,
            num_holders=granted.num_holders,
        )
        answer.reset_time.FromMilliseconds(round((time.time() + self.reset_s) * 1000))
        return answer


class NoFile:
    """Keeps no limits."""

    def read(self) -> pb.LeaseLimitsResponse | None:
        """Nothing was written."""
        return None

    def write(self, limits: pb.LeaseLimitsResponse) -> None:
        """Write nothing."""


class Running(NamedTuple):
    holder: Limiter
    admission: LimitReservation
    prompt: int
    tokens: int = 0


class Installation:
    """Several holders of one limit, and what their requests have used, with times."""

    def __init__(
        self, limit: pb.Limit, num_holders: int, *, grace_s: float = 60.0, patience_s: float = 1.0
    ) -> None:
        self.control = FakeControl(limit)
        self._metrics = LimitMetrics(CollectorRegistry())
        self._times = (grace_s, patience_s)
        self.holders = [self._holder() for _ in range(num_holders)]
        self.running: list[Running] = []
        self.used: list[tuple[float, int]] = []
        self.reservations: list[Reservation] = []
        """Of all requests."""
        self.keeps_usage = False
        """Whether usage is not reported."""
        self.unreported: list[tuple[Limiter, Counts]] = []
        self.topped_up = 0
        self.refusals: list[DomainError] = []

    def _holder(self) -> Limiter:
        grace_s, patience_s = self._times
        return Limiter(
            self.control.lease,
            NoFile(),
            self._metrics,
            grace_s=grace_s,
            patience_s=patience_s,
            clock=lambda: self.control.now,
        )

    async def start(self) -> None:
        """Let all holders learn the limit."""
        for holder in self.holders:
            await holder.renew()

    async def restart(self, number: int) -> None:
        """Replace a holder that was killed; what its requests have used is reported."""
        killed, self.holders[number] = self.holders[number], self._holder()
        for each in [each for each in self.running if each.holder is killed]:
            self.running.remove(each)
            if each.tokens:
                self.control.reported += self._amount(Counts(1, each.prompt, 0, each.tokens))
        await self.holders[number].renew()

    async def admit(self, holder: int, prompt: int, most: int) -> None:
        limiter = self.holders[holder]
        try:
            admission = await limiter.admit(KEY, Need(prompt, most))
        except (RateLimited, BudgetExceeded, UpstreamUnavailable) as error:
            self.refusals.append(error)
            return
        self.running.append(Running(limiter, admission, prompt))
        self.reservations += admission._open
        if self.control.limit.unit == pb.Limit.UNIT_REQUESTS:
            self.used.append((self.control.now, 1))

    def generate(self, number: int, tokens: int) -> None:
        request = self.running[number]
        reserved = self._reserved(request.admission)
        request.admission.add_output(tokens)
        self.topped_up += max(0, self._reserved(request.admission) - reserved)
        if self.control.limit.unit == pb.Limit.UNIT_TOKENS:
            self.used.append((self.control.now, tokens + (0 if request.tokens else request.prompt)))
        self.running[number] = request._replace(tokens=request.tokens + tokens)

    def generate_reserved(self, number: int) -> None:
        """Generate all tokens that a request has reserved."""
        request = self.running[number]
        rest = self._reserved(request.admission) - request.prompt - request.tokens
        if rest > 0:
            self.generate(number, rest)

    def finish(self, number: int) -> None:
        """End a request, and report its usage at once."""
        request = self.running.pop(number)
        if not request.tokens:
            request.admission.release()
            return
        counts = Counts(1, request.prompt, 0, request.tokens)
        reserved = self._reserved(request.admission)
        request.admission.settle(counts)
        self.topped_up += max(0, request.prompt + request.tokens - reserved)
        self.unreported.append((request.holder, counts))
        if not (self.control.is_away or self.keeps_usage):
            self.report()

    def report(self) -> None:
        """Report the usage of requests that have ended."""
        for holder, counts in self.unreported:
            self.control.reported += self._amount(counts)
            holder.on_reported(KEY, counts)
        self.unreported.clear()

    def used_within(self, seconds: float) -> int:
        """The most that was used in any such time."""
        return max(
            (
                sum(amount for time, amount in self.used if start <= time <= start + seconds)
                for start, _ in self.used
            ),
            default=0,
        )

    def _amount(self, counts: Counts) -> int:
        match self.control.limit.unit:
            case pb.Limit.UNIT_REQUESTS:
                return 1
            case pb.Limit.UNIT_COST:
                prompt, output = counts.prompt_tokens, counts.completion_tokens
                return prompt * PRICE.prompt_nanos + output * PRICE.completion_nanos
            case _:
                return counts.prompt_tokens + counts.completion_tokens

    @staticmethod
    def _reserved(admission: LimitReservation) -> int:
        return sum(reservation.amount for reservation in admission._open)
