"""Room: never more than there is, and nobody is overtaken."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from control_svc.batches.concurrency import ByteSemaphore


@given(sizes=st.lists(st.integers(0, 15), max_size=20), total=st.integers(1, 10))
def test_no_more_is_held_than_there_is(sizes: list[int], total: int) -> None:
    """But by one that is larger than all, alone; all come in the order in which they asked."""

    async def all_of_them() -> tuple[list[int], int]:
        room, order, held, most = ByteSemaphore(total), list[int](), 0, 0

        async def one(number: int, size: int) -> None:
            nonlocal held, most
            async with room.of(size):
                order.append(number)
                held += min(size, total)
                most = max(most, held)
                for _ in range(number % 3):
                    await asyncio.sleep(0)
                held -= min(size, total)

        async with asyncio.timeout(5):
            await asyncio.gather(*(one(number, size) for number, size in enumerate(sizes)))
        return order, most

    order, most = asyncio.run(all_of_them())

    assert order == list(range(len(sizes)))
    assert most <= total


async def test_who_stops_waiting_holds_nobody_up() -> None:
    """The next one gets what is free."""
    room = ByteSemaphore(2)
    async with room.of(2):
        impatient = asyncio.create_task(room.take(2))
        patient = asyncio.create_task(room.take(1))
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.wait([impatient])
    async with asyncio.timeout(5):
        await patient
