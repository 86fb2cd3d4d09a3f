"""Finds how many items of a history fit into the context of a model."""

from collections.abc import Awaitable, Callable, Sequence


async def first_that_fits(starts: Sequence[int], fits: Callable[[int], Awaitable[bool]]) -> int:
    """The first of the starts, in order, behind which everything fits; the last, if none does.

    There is at least one start. What fits behind one fits behind every later one, so few are tried.
    """
    low, high = 0, len(starts) - 1
    while low < high:
        middle = (low + high) // 2
        if await fits(starts[middle]):
            high = middle
        else:
            low = middle + 1
    return starts[low]
