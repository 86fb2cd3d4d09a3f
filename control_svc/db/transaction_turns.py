"""Shares the connections of a database between projects: each waits for its turn."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from svc_kit.fair_semaphore import FairSemaphore
from svc_kit.logs import project_var


@dataclass(frozen=True)
class TransactionTurns:
    """Numbers of transactions that may run at once, and the seconds to wait for a turn."""

    reads: FairSemaphore
    writes: FairSemaphore
    """May be the same as for reads."""
    wait_s: float

    @asynccontextmanager
    async def reserve(self, semaphore: FairSemaphore) -> AsyncIterator[None]:
        """Wait for a turn of the current project, and hold it. Raises TimeoutError."""
        project = project_var.get()
        async with asyncio.timeout(self.wait_s):
            await semaphore.acquire(1, project)
        try:
            yield
        finally:
            semaphore.release(1, project)
