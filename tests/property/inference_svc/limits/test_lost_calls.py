"""An exact ledger of one limit while calls of control are lost, or their answers, or come late."""

import asyncio
from typing import Any, Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from tests.support.examples import examples
from tests.support.operators import make_limit
from tests.support.shares import Fault, Installation

MOST_OUTPUT: Final = 12
STEP_S: Final = 0.09
MOST_STEPS: Final = 10
"""Less than a rate of the smallest amount needs to refill 1, and than the lease."""
UNITS: Final = {
    "requests a day": ("REQUESTS", "DAY"),
    "tokens a day": ("TOKENS", "DAY"),
    "tokens a minute": ("TOKENS", "MINUTE"),
    "concurrent requests": ("CONCURRENT_REQUESTS", ""),
}


class Ledger(RuleBasedStateMachine):
    """Holders whose calls fail in every way, and what they may use.

    Nothing is refilled, so each amount is in exactly one place: left at control, held by one
    holder, or used.
    """

    unit: tuple[str, str]
    grace_s: float

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.steps = 0
        self.restarted = False

    @initialize(amount=st.integers(2, 60), num_holders=st.integers(1, 3))
    def begin(self, amount: int, num_holders: int) -> None:
        limit = make_limit("one", self.unit[0], amount, self.unit[1])
        self.installation = Installation(limit, num_holders, grace_s=self.grace_s, patience_s=0)
        self.installation.control.refills = False
        self.amount = amount
        self.run(self.installation.start())

    @rule(
        holder=st.integers(0, 2),
        prompt=st.integers(1, 8),
        faults=st.lists(st.sampled_from(Fault), max_size=1),
        is_back=st.booleans(),
    )
    def admit(self, holder: int, prompt: int, faults: list[Fault], is_back: bool) -> None:
        """Start a request, after an outage or in it; the call that it may need can fail."""
        number = holder % len(self.installation.holders)
        if is_back and not self.installation.control.waiting:
            self.run(self.installation.holders[number].renew())
        self.installation.control.faults.extend(faults)
        self.run(self.installation.admit(number, prompt, MOST_OUTPUT))
        self.installation.control.faults.clear()

    @rule(number=st.integers(0, 9), tokens=st.integers(1, MOST_OUTPUT))
    def generate(self, number: int, tokens: int) -> None:
        """Generate what a request has reserved, or less."""
        if running := self.installation.running:
            request = running[number % len(running)]
            if rest := MOST_OUTPUT - request.tokens:
                self.installation.generate(number % len(running), min(tokens, rest))

    @rule(number=st.integers(0, 9))
    def finish(self, number: int) -> None:
        if running := self.installation.running:
            self.installation.finish(number % len(running))

    @rule(holder=st.integers(0, 2), faults=st.lists(st.sampled_from(Fault), max_size=1))
    def renew(self, holder: int, faults: list[Fault]) -> None:
        """Renew the leases of a holder; the call can fail."""
        self.installation.control.faults.extend(faults)
        holders = self.installation.holders
        self.run(holders[holder % len(holders)].renew(), waits=False)
        self.installation.control.faults.clear()

    @precondition(lambda self: self.installation.control.late)
    @rule()
    def deliver_late(self) -> None:
        """Calls arrive whose holders have given up, some after later ones."""
        self.installation.control.deliver_late()

    @precondition(lambda self: self.installation.control.waiting)
    @rule(is_lost=st.booleans())
    def end_waiting(self, is_lost: bool) -> None:
        """Answers arrive that requests no longer wait for, or are lost."""
        self.installation.control.end_waiting(is_lost=is_lost)
        self.run(asyncio.sleep(0))

    @precondition(lambda self: self.steps < MOST_STEPS)
    @rule()
    def wait(self) -> None:
        """Let some time pass."""
        self.steps += 1
        self.installation.control.now += STEP_S

    @rule(holder=st.integers(0, 2))
    def restart(self, holder: int) -> None:
        """Kill a holder; what it held stays reserved for its lease."""
        if not self.installation.control.waiting:
            self.restarted = True
            number = holder % len(self.installation.holders)
            self.run(self.installation.restart(number))

    @rule()
    def settle(self) -> None:
        """Nothing is late any more, and all holders call: control has counted everything once."""
        control = self.installation.control
        self.deliver_late()
        self.end_waiting(is_lost=False)
        for _ in range(2):
            self.run(self.installation.start())
        if self.restarted:
            return
        held = sum(each.held for each in control.holdings.values())
        buckets = [
            each for holder in self.installation.holders for each in holder._buckets.values()
        ]
        assert held == sum(bucket.held for bucket in buckets)
        if self.unit[1] == "MINUTE":
            assert control.level.level + held == self.amount - self.used

    @property
    def used(self) -> int:
        return sum(each.used for each in self.installation.reservations)

    @invariant()
    def no_more_is_used_than_the_amount(self) -> None:
        """By all holders, unless several served alone."""
        if not hasattr(self, "installation"):
            return
        if self.grace_s and len(self.installation.holders) > 1:
            return
        if self.unit[1]:
            assert self.used <= self.amount + self.installation.topped_up
        else:
            assert len(self.installation.running) <= self.amount

    @invariant()
    def control_knows_what_holders_have(self) -> None:
        """Unless they served alone: no late call makes it forget a share."""
        if self.grace_s or not hasattr(self, "installation"):
            return
        for holder in self.installation.holders:
            known = self.installation.control.holdings.get(holder._holder)
            held = sum(bucket.held for bucket in holder._buckets.values())
            assert held <= (known.held if known else 0) + self.installation.topped_up

    def run(self, steps: Any, *, waits: bool = True) -> None:
        """Carry out steps, and what follows at once."""

        async def run() -> None:
            task = asyncio.ensure_future(steps)
            for _ in range(10):
                await asyncio.sleep(0)
            if waits:
                await task

        self.runner.run(run())

    def teardown(self) -> None:
        """End what waits, and compare the ledger once more."""
        if hasattr(self, "installation"):
            self.settle()
        self.runner.close()


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("grace_s", [0, 300])
def test_each_amount_is_counted_once(unit: str, grace_s: float) -> None:
    """Whatever calls are lost or late: no more is used than the amount, and nothing gets lost. With
    a time of grace that is so for one holder, which may use everything that was left."""
    machine = type("Machine", (Ledger,), {"unit": UNITS[unit], "grace_s": grace_s})
    run_machine(
        machine, settings=settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
    )
