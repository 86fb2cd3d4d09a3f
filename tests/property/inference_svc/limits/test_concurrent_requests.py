"""Requests that come together, to a process that has no share yet, or little of one."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.operators import make_limit
from tests.support.shares import Installation

UNITS = {
    "tokens a minute": ("TOKENS", "MINUTE"),
    "tokens a day": ("TOKENS", "DAY"),
    "requests a minute": ("REQUESTS", "MINUTE"),
    "concurrent requests": ("CONCURRENT_REQUESTS", ""),
}


@settings(max_examples=examples(200), deadline=None)
@given(
    unit=st.sampled_from([*UNITS]),
    amount=st.integers(1, 60),
    num_holders=st.integers(1, 3),
    crowds=st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=8), min_size=1, max_size=3),
)
def test_none_is_refused_while_there_is_enough_for_all(
    unit: str, amount: int, num_holders: int, crowds: list[list[int]]
) -> None:
    """All come to one process, while it renews its share; others are idle, and nothing is
    refilled."""
    measure, period = UNITS[unit]
    installation = Installation(make_limit("one", measure, amount, period), num_holders)
    installation.control.refills = False

    async def admit_all() -> None:
        await installation.start()
        for crowd in crowds:
            free = amount - num_reserved()
            await asyncio.gather(
                *(installation.admit(0, prompt, 1) for prompt in crowd),
                *(holder.renew() for holder in installation.holders),
            )
            needs = [prompt + 1 if measure == "TOKENS" else 1 for prompt in crowd]
            assert sum(needs) > free or not installation.refusals
            assert num_reserved() <= amount
            installation.refusals.clear()

    def num_reserved() -> int:
        return sum(each.amount for each in installation.reservations)

    asyncio.run(admit_all())
