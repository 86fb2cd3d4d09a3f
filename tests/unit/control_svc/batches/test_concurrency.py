"""Places for lines: how many there are, and that suspects have all of them."""

import asyncio
from contextlib import AsyncExitStack

from control_svc.batches.concurrency import AdaptiveConcurrency, Permit


async def taken(stack: AsyncExitStack, places: AdaptiveConcurrency, count: int) -> list[Permit]:
    """So many places at the same time."""
    return [await stack.enter_async_context(places.one()) for _ in range(count)]


async def test_what_is_too_much_is_halved_once_for_all_who_were_told() -> None:
    """All that ran were sent back together, which says one thing."""
    places = AdaptiveConcurrency(16)
    async with AsyncExitStack() as stack:
        for place in await taken(stack, places, 16):
            place.was_too_much(0.0)
    halved = places.limit
    async with AsyncExitStack() as stack:
        (place,) = await taken(stack, places, 1)
        place.was_too_much(0.0)

    assert (halved, places.limit) == (8, 4)


async def test_one_place_always_is_there() -> None:
    """However often it was too much."""
    places = AdaptiveConcurrency(2)
    for _ in range(5):
        async with places.one() as place:
            place.was_too_much(0.0)

    assert places.limit == 1


async def test_what_goes_well_brings_places_back() -> None:
    """A little for each line, up to the most."""
    places = AdaptiveConcurrency(4)
    async with places.one() as place:
        place.was_too_much(0.0)
    for _ in range(40):
        async with places.one() as place:
            place.went_well()

    assert places.limit == 4


async def test_more_than_the_limit_wait() -> None:
    """Until a place is given back."""
    places, entered = AdaptiveConcurrency(1), asyncio.Event()

    async def second() -> None:
        async with places.one():
            entered.set()

    async with places.one():
        waiting = asyncio.create_task(second())
        await asyncio.sleep(0)
        was_early = entered.is_set()
    await waiting

    assert not was_early
    assert entered.is_set()


async def test_who_is_alone_waits_for_all_and_keeps_all_out() -> None:
    """Also those that come while it waits."""
    places, log = AdaptiveConcurrency(4), list[str]()

    async def suspect() -> None:
        async with places.alone():
            log.append("suspect in")
            await asyncio.sleep(0)
            log.append("suspect out")

    async def other() -> None:
        async with places.one():
            log.append("other")

    async with places.one():
        tasks = [asyncio.create_task(suspect())]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(other()))
        await asyncio.sleep(0)
        log.append("first out")
    await asyncio.gather(*tasks)

    assert log == ["first out", "suspect in", "suspect out", "other"]


async def test_a_suspect_that_leaves_before_its_turn_keeps_nobody_out() -> None:
    """Its batch was given up while it waited."""
    places = AdaptiveConcurrency(2)
    async with places.one():
        waiting = asyncio.create_task(places.alone().__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        async with asyncio.timeout(5), places.one():
            pass
