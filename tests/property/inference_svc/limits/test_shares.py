"""Holders and the control service, with the real arithmetic of both sides and no transport."""

import asyncio
import math

from hypothesis import example, given, settings
from hypothesis import strategies as st

from svc_kit.errors import UpstreamUnavailable
from tests.support.examples import examples
from tests.support.operators import make_limit
from tests.support.shares import Installation

MOST_OUTPUT = 400
MOST_REQUESTS = 20
"""More than the largest amount admits."""
ROUNDING = 1e-6

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["admit", "admit", "generate", "generate", "finish", "wait", "renew"]),
        st.integers(0, 7),
        st.integers(1, MOST_OUTPUT),
    ),
    max_size=60,
)


async def run_steps(
    installation: Installation, steps: list[tuple[str, int, int]], *, renews: bool = False
) -> None:
    """Carry out the steps. `renews`: all leases are renewed in time, as while control is reached;
    otherwise some end while their holders still have streams."""
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
                installation.control.now += size / 20 / (2 if renews else 1)
                if renews:
                    await installation.start()
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
    most the amount, however much of it they use at once. (Of a holder whose lease has ended, others
    use the share, which the next property bounds.)"""
    installation = Installation(make_limit("tokens", "TOKENS", amount), num_holders)

    async def run() -> None:
        await run_steps(installation, steps, renews=True)
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


@settings(max_examples=examples(50))
@example(num_holders=1, amount=30, pauses=[*[0.3] * 2, 6.9, *[0.1] * 40])
@given(
    num_holders=st.integers(1, 3),
    amount=st.integers(20, 60),
    pauses=st.lists(st.sampled_from([0.1, 0.1, 0.3, 6.9]), min_size=40, max_size=100),
)
def test_holders_use_a_full_rate_only_once(
    num_holders: int, amount: int, pauses: list[float]
) -> None:
    """In the time between any two requests, exactly as with a single token bucket: what a holder
    had of a full one and used at once was not refilled meanwhile."""
    installation = Installation(make_limit("calls", "REQUESTS", amount), num_holders)

    async def run() -> None:
        await installation.start()
        for number, pause_s in enumerate(pauses):
            control = installation.control
            seconds = range(math.floor(control.now) + 1, math.floor(control.now + pause_s) + 1)
            end = control.now + pause_s
            for second in seconds:  # the leases are renewed every second
                control.now = float(second)
                await installation.start()
            control.now = end
            await installation.admit(number % num_holders, 1, 1)
            if installation.running:
                installation.generate(0, 1)
                installation.finish(0)

    asyncio.run(run())
    times = [time for time, _ in installation.used]
    for first, start in enumerate(times):
        for count, end in enumerate(times[first:], 1):
            assert count <= amount * (1 + (end - start) / 60) + ROUNDING


@settings(max_examples=examples(100))
@example(
    num_holders=2,
    amount=291,
    steps=[("admit", 0, 35), ("wait", 0, 300), ("admit", 1, 1), ("generate", 0, 1)],
)
@given(num_holders=st.integers(1, 4), amount=st.integers(50, 3000), steps=STEPS)
def test_holders_never_exceed_a_budget_but_by_running_streams(
    num_holders: int, amount: int, steps: list[tuple[str, int, int]]
) -> None:
    """Usage is at most the budget, and what streams were longer than expected. A holder that does
    not renew for 15 seconds, as in the example, is in an outage: others get what its streams have
    reserved (docs/operate/limits.md)."""
    installation = Installation(make_limit("tokens", "TOKENS", amount, "DAY"), num_holders)

    async def run() -> None:
        await run_steps(installation, steps, renews=True)
        for number in range(len(installation.running)):
            installation.generate_reserved(number)

    asyncio.run(run())
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
        for request in installation.running:
            request.admission.release()
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
