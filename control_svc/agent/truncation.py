"""Finds how many items of a history fit into the context of a model."""

from collections.abc import Awaitable, Callable, Sequence


async def first_that_fits(starts: Sequence[int], fits: Callable[[int], Awaitable[bool]]) -> int:
    """Binary search for the first start whose items fit; the last start if none does.

    `starts` is ascending and not empty. If the items from one start fit, so do those of later ones.
    """
    low, high = 0, len(starts) - 1
    while low < high:
        middle = (low + high) // 2
        if await fits(starts[middle]):
            high = middle
        else:
            low = middle + 1
    return starts[low]
