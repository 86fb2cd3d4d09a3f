"""The adaptive limit of running lines, exclusive permits, and the weighted semaphore."""

import asyncio
from contextlib import AsyncExitStack

from control_svc.batches.concurrency import AdaptiveConcurrency


async def reject(concurrency: AdaptiveConcurrency, num_lines: int) -> None:
    """Run lines concurrently that are all rejected."""
    async with AsyncExitStack() as stack:
        contexts = [concurrency.acquire() for _ in range(num_lines)]
        for epoch in [await stack.enter_async_context(context) for context in contexts]:
            concurrency.record_rejection(epoch, 0.0)


async def test_simultaneous_rejections_halve_the_limit_once() -> None:
    """A later rejection halves it again."""
    concurrency = AdaptiveConcurrency(16)
    await reject(concurrency, 16)
    halved = concurrency.limit
    await reject(concurrency, 1)

    assert (halved, concurrency.limit) == (8, 4)


async def test_the_limit_is_at_least_one() -> None:
    """However often lines are rejected."""
    concurrency = AdaptiveConcurrency(2)
    for _ in range(5):
        await reject(concurrency, 1)

    assert concurrency.limit == 1


async def test_successes_raise_the_limit_to_the_maximum() -> None:
    """One per `limit` successes."""
    concurrency = AdaptiveConcurrency(4)
    await reject(concurrency, 1)
    for _ in range(40):
        async with concurrency.acquire():
            concurrency.record_success()

    assert concurrency.limit == 4


async def test_acquire_waits_at_the_limit() -> None:
    """Until a permit is released."""
    concurrency, entered = AdaptiveConcurrency(1), asyncio.Event()

    async def second() -> None:
        async with concurrency.acquire():
            entered.set()

    async with concurrency.acquire():
        waiting = asyncio.create_task(second())
        await asyncio.sleep(0)
        was_early = entered.is_set()
    await waiting

    assert not was_early
    assert entered.is_set()


async def test_an_exclusive_permit_waits_for_others_and_excludes_them() -> None:
    """Including those that are requested while it waits."""
    concurrency, log = AdaptiveConcurrency(4), list[str]()

    async def exclusive() -> None:
        async with concurrency.acquire_exclusive():
            log.append("exclusive acquired")
            await asyncio.sleep(0)
            log.append("exclusive released")

    async def other() -> None:
        async with concurrency.acquire():
            log.append("other")

    async with concurrency.acquire():
        tasks = [asyncio.create_task(exclusive())]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(other()))
        await asyncio.sleep(0)
        log.append("first released")
    await asyncio.gather(*tasks)

    assert log == ["first released", "exclusive acquired", "exclusive released", "other"]


async def test_a_cancelled_exclusive_permit_does_not_block_others() -> None:
    """Its batch was cancelled while it waited."""
    concurrency = AdaptiveConcurrency(2)
    async with concurrency.acquire():
        waiting = asyncio.create_task(concurrency.acquire_exclusive().__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        async with asyncio.timeout(50), concurrency.acquire():
            pass
