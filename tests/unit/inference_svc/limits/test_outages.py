"""Exact counts of what holders serve while control is away, and of what is left afterwards.

The leases are renewed every second, as `Limiter.run` does.
"""

import asyncio
import math
from typing import Final, NamedTuple

import pytest
from corral.control.v1.usage_service_pb2 import ReportUsageRequest

from inference_svc.usage import Counts
from svc_kit.errors import BudgetExceeded, RateLimited, UpstreamUnavailable
from tests.support.operators import make_limit
from tests.support.shares import KEY, Fault, Installation

GRACE_S: Final = 300
PROMPT, OUTPUT = 9, 1


class Case(NamedTuple):
    """A limit that has enough for `fits` requests."""

    unit: str
    period: str
    amount: int
    refusal: type[Exception]
    """Of a request beyond the limit."""


CASES: Final = {
    "requests": Case("REQUESTS", "DAY", 40, BudgetExceeded),
    "tokens": Case("TOKENS", "DAY", 400, BudgetExceeded),
    "cost": Case("COST", "MONTH", 40 * 32, BudgetExceeded),
    "concurrent requests": Case("CONCURRENT_REQUESTS", "", 40, RateLimited),
}
NUM_FIT: Final = 40
NUM_BEFORE: Final = 3
"""Requests of each holder before the outage."""


class Outage:
    """An installation whose control goes away."""

    def __init__(self, case: Case, num_holders: int) -> None:
        limit = make_limit("one", case.unit, case.amount, case.period)
        self.installation = Installation(limit, num_holders, grace_s=GRACE_S)
        self.keeps_running = not case.period

    async def serve(self, holder: int, times: int) -> int:
        """Send requests, and return how many are served."""
        served = 0
        for _ in range(times):
            running = self.installation.running
            before = len(running)
            await self.installation.admit(holder, PROMPT, OUTPUT)
            if len(running) > before:
                served += 1
                self.installation.generate(before, OUTPUT)
                if not self.keeps_running:
                    self.installation.finish(before)
        return served

    async def pass_time(self, seconds: int) -> None:
        """Let the holders renew their leases every second."""
        for _ in range(seconds):
            self.installation.control.now += 1
            await self.installation.start()

    async def begin(self, fault: Fault) -> None:
        """Serve some requests; concurrent ones end, so that each holder has a share to give back.
        Then its first call fails in a way of its own, and the next ones do not arrive."""
        await self.installation.start()
        for holder in range(len(self.installation.holders)):
            assert await self.serve(holder, NUM_BEFORE) == NUM_BEFORE
        control = self.installation.control
        await self.pass_time(1)
        await self.installation.start()  # each has learned what the others hold
        while self.installation.running:
            self.installation.finish(0)
        control.is_away = True
        control.faults.extend([fault] * len(self.installation.holders))
        control.now += 0.5
        await self.installation.start()
        await self.pass_time(10)

    async def end(self) -> None:
        """Let control return, and late calls arrive."""
        control = self.installation.control
        control.is_away = False
        control.deliver_late()
        self.installation.report()
        await self.pass_time(2)


@pytest.mark.parametrize("fault", [Fault.REQUEST_LOST, Fault.REQUEST_LATE, Fault.ANSWER_LOST])
@pytest.mark.parametrize("num_holders", [1, 2, 3])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_each_holder_serves_an_equal_part_of_what_was_left(
    case: Case, num_holders: int, fault: Fault
) -> None:
    """Exactly that, and no budget is called exhausted that others may have left. When control is
    back, the rest is served, and not one request more."""
    outage = Outage(case, num_holders)
    refusals = outage.installation.refusals
    await outage.begin(fault)
    left = NUM_FIT - NUM_BEFORE * num_holders  # as each knows it, and what it has itself
    if outage.keeps_running:
        left += NUM_BEFORE
    served = [await outage.serve(holder, 60) for holder in range(num_holders)]
    during = {type(each) for each in refusals}
    refusals.clear()
    await outage.end()
    after = [await outage.serve(holder, 60) for holder in range(num_holders)]
    await outage.pass_time(90)  # nothing is leased in advance any more
    after += [await outage.serve(holder, 60) for holder in range(num_holders)]

    assert served == [left // num_holders] * num_holders
    assert during == {case.refusal if num_holders == 1 else refusal_of_a_part(case)}
    used = 0 if outage.keeps_running else NUM_BEFORE * num_holders
    assert used + sum(served) + sum(after) == NUM_FIT
    assert {type(each) for each in refusals} == {case.refusal}


def refusal_of_a_part(case: Case) -> type[Exception]:
    return UpstreamUnavailable if case.refusal is BudgetExceeded else case.refusal


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_requests_are_served_for_the_time_of_grace(case: Case) -> None:
    """A share that is not used up is of no use after it; once control is back, it is."""
    outage = Outage(case, 1)
    await outage.begin(Fault.REQUEST_LOST)
    await outage.pass_time(GRACE_S - 11)
    before = await outage.serve(0, 2)
    await outage.pass_time(1)
    late = await outage.serve(0, 2)
    refused = outage.installation.refusals[-1]
    await outage.end()

    assert (before, late) == (2, 0)
    assert isinstance(refused, UpstreamUnavailable)
    assert await outage.serve(0, 2) == 2


@pytest.mark.parametrize("num_holders", [1, 3])
async def test_a_rate_is_refilled_during_an_outage(num_holders: int) -> None:
    """Each holder refills an equal part of it. All together serve what one server would, but for
    what was leased in advance."""
    outage = Outage(Case("REQUESTS", "MINUTE", 60, RateLimited), num_holders)
    await outage.begin(Fault.REQUEST_LOST)
    first = sum([await outage.serve(holder, 60) for holder in range(num_holders)])
    later = 0
    for _ in range(30):
        await outage.pass_time(1)
        later += sum([await outage.serve(holder, 2) for holder in range(num_holders)])
    await outage.end()
    after = sum([await outage.serve(holder, 60) for holder in range(num_holders)])

    assert first == 60
    allowed = 60 + 30 + 2  # it was full, and went on for so many seconds
    assert allowed - num_holders <= first + later + after <= allowed + NUM_BEFORE
    assert {type(each) for each in outage.installation.refusals} == {RateLimited}


async def test_a_budget_begins_again_during_an_outage() -> None:
    """At the end of its day each holder has an equal part of the next one, less what it used and
    could not report."""
    outage = Outage(CASES["requests"], 2)
    outage.installation.control.reset_s = 60.0
    await outage.begin(Fault.REQUEST_LOST)
    left = (NUM_FIT - 2 * NUM_BEFORE) // 2
    today = await outage.serve(0, 60)
    await outage.pass_time(60)
    tomorrow = await outage.serve(0, 60)

    assert (today, tomorrow) == (left, (NUM_FIT - left) // 2)


async def test_callers_are_told_what_this_service_has_left() -> None:
    """What all have left as long as the share suffices, then this part of it."""
    outage = Outage(CASES["requests"], 2)
    await outage.begin(Fault.REQUEST_LOST)
    admitted = []
    for _ in range(4):
        await outage.installation.admit(0, PROMPT, OUTPUT)
        admitted.append(outage.installation.running[-1].admission.statuses()[0].remaining)

    assert admitted == [30, 29, 28, 13]


async def test_usage_whose_report_was_not_answered_exhausts_no_budget() -> None:
    """Control may have added it, and counts it as held too: that is not told as an exhausted budget
    until the report is answered."""
    outage = Outage(CASES["requests"], 1)
    installation, holder = outage.installation, outage.installation.holders[0]
    control = installation.control

    async def send(report: ReportUsageRequest) -> None:
        control.reported = 30
        if control.is_away:
            raise UpstreamUnavailable(service="control")

    report = holder.between_calls(send)
    await installation.start()
    installation.keeps_usage = True
    first = await outage.serve(0, 30)
    control.is_away = True
    with pytest.raises(UpstreamUnavailable):
        await report(ReportUsageRequest())
    control.is_away = False
    await outage.pass_time(2)
    second = await outage.serve(0, 20)
    in_doubt = installation.refusals[-1]
    await report(ReportUsageRequest())
    holder.on_reported(KEY, Counts(30))
    await outage.pass_time(2)
    third = await outage.serve(0, 20)

    assert isinstance(in_doubt, UpstreamUnavailable)
    assert first + second + third == NUM_FIT
    assert isinstance(installation.refusals[-1], BudgetExceeded)


async def test_an_answer_that_is_late_is_used_when_it_comes() -> None:
    """Requests do not wait for it, and use what was left meanwhile; nothing is counted twice."""
    case = CASES["requests"]
    outage = Outage(case, 1)
    installation = outage.installation
    await outage.begin(Fault.REQUEST_LOST)
    await outage.end()
    await outage.pass_time(3)
    installation.control.faults.append(Fault.ANSWER_LATE)
    renewal = asyncio.create_task(outage.pass_time(1))
    await asyncio.sleep(0)
    installation.control.now += 2
    served = await outage.serve(0, 20)
    installation.control.end_waiting(is_lost=False)
    await renewal
    rest = await outage.serve(0, 60)

    assert (served, rest) == (20, NUM_FIT - NUM_BEFORE - 20)
    assert {type(each) for each in installation.refusals} == {BudgetExceeded}


@pytest.mark.parametrize("late_s", [1.25, 4])
@pytest.mark.parametrize(
    "case",
    [*CASES.values(), Case("REQUESTS", "MINUTE", NUM_FIT, RateLimited)],
    ids=[*CASES, "rate"],
)
async def test_a_late_answer_does_not_grant_what_was_used_meanwhile(
    case: Case, late_s: float
) -> None:
    """A request waits for a share, and others serve themselves from what was left."""
    outage = Outage(case, 1)
    control = outage.installation.control
    await outage.installation.start()
    before = await outage.serve(0, NUM_FIT - 2)
    control.faults.append(Fault.ANSWER_LATE)
    waiting = asyncio.create_task(outage.serve(0, 1))
    for _ in range(3):
        await asyncio.sleep(0)
    assert control.waiting
    control.now += late_s
    alone = await outage.serve(0, 5)
    control.end_waiting(is_lost=False)
    await waiting
    await outage.serve(0, 5)
    refilled = math.floor(late_s * NUM_FIT / 60) if case.period == "MINUTE" else 0

    assert (before, alone) == (NUM_FIT - 2, 2 + refilled)
    assert len(outage.installation.reservations) == NUM_FIT + refilled
