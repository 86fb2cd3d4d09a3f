"""A semaphore that is shared fairly between clients."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from svc_kit.fair_semaphore import FairSemaphore


@given(sizes=st.lists(st.integers(0, 15), max_size=20), total=st.integers(1, 10))
def test_it_is_bounded_and_serves_a_client_in_order(sizes: list[int], total: int) -> None:
    """The acquired sum stays within the total, and waiters are served in order."""

    async def acquire_all() -> tuple[list[int], int]:
        semaphore, order, acquired, peak = FairSemaphore(total), list[int](), 0, 0

        async def acquire(number: int, size: int) -> None:
            nonlocal acquired, peak
            async with semaphore.reserve(size):
                order.append(number)
                acquired += min(size, total)
                peak = max(peak, acquired)
                for _ in range(number % 3):
                    await asyncio.sleep(0)
                acquired -= min(size, total)

        async with asyncio.timeout(50):
            await asyncio.gather(*(acquire(number, size) for number, size in enumerate(sizes)))
        return order, peak

    order, peak = asyncio.run(acquire_all())

    assert order == list(range(len(sizes)))
    assert peak <= total


async def test_a_cancelled_waiter_does_not_block_the_next() -> None:
    semaphore = FairSemaphore(2)
    async with semaphore.reserve(2):
        cancelled = asyncio.create_task(semaphore.acquire(2))
        waiting = asyncio.create_task(semaphore.acquire(1))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
    async with asyncio.timeout(50):
        await waiting


async def _start(
    group: asyncio.TaskGroup, semaphore: FairSemaphore, order: list[str], clients: str
) -> None:
    """Start a task for each letter, which notes it once it has acquired one, and gives it back."""

    async def use(client: str) -> None:
        async with semaphore.reserve(1, client):
            order.append(client)
            await asyncio.sleep(0)

    for client in clients:
        group.create_task(use(client))
    await asyncio.sleep(0)


async def test_clients_are_served_in_turns() -> None:
    """One that comes when many of another wait is served after those that hold it."""
    semaphore, order = FairSemaphore(1), list[str]()
    async with asyncio.timeout(50), asyncio.TaskGroup() as group:
        await _start(group, semaphore, order, "a" * 100)
        await _start(group, semaphore, order, "bb")

    assert "".join(order[:6]).count("b") == 2
    assert len(order) == 102


async def test_a_client_leaves_some_to_others() -> None:
    """It waits at its limit while another one acquires the rest."""
    semaphore = FairSemaphore(4, client_limit=3)
    async with asyncio.timeout(50):
        for _ in range(3):
            await semaphore.acquire(1, "a")
        waiting = asyncio.create_task(semaphore.acquire(1, "a"))
        await semaphore.acquire(1, "b")
        assert not waiting.done()
        semaphore.release(1, "a")
        await waiting
