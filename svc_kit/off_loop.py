"""Runs conversions whose time grows with the request in threads, in which others take turns."""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

_MANY: Final = 500
"""Items that take a few milliseconds."""
Result = TypeVar("Result")
Argument = TypeVar("Argument")


async def off_loop(
    num_items: int, function: Callable[[Argument], Result], argument: Argument
) -> Result:
    """Call a function of an argument with `num_items`: at once for few, else in a thread."""
    if num_items <= _MANY:
        return function(argument)
    return await asyncio.to_thread(function, argument)
