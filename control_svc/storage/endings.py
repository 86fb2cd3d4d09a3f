"""Cleaning up is done to its end, whoever is cancelled meanwhile."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Wait for work that goes on where its caller is cancelled, be it for the second time."""
    await asyncio.shield(asyncio.ensure_future(work))
