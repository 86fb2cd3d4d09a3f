"""A dispatcher at work in a test, which hears of every attempt's end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from control_svc.db.engine import Database
from control_svc.jobs.dispatcher import Dispatcher
from control_svc.jobs.model import Job
from svc_kit.metrics import JobMetrics
from tests.support.jobs import Handler, leases_of

NEVER_S = 3600.0
"""No polls: what happens, happens because of a notice."""


class Work(NamedTuple):
    """A dispatcher at work."""

    dispatcher: Dispatcher
    ends: asyncio.Queue[Job]
    metrics: CollectorRegistry


@asynccontextmanager
async def run_dispatcher(
    database: Database,
    handler: Handler,
    owner: str = "a",
    *,
    ends: asyncio.Queue[Job] | None = None,
    poll_s: float = NEVER_S,
) -> AsyncIterator[Work]:
    """A dispatcher that looks once, and then when it is told to."""
    leases = leases_of(database, owner, dead_letter_handler=handler)
    leases.ends = leases.ends if ends is None else ends
    registry = CollectorRegistry()
    dispatcher = Dispatcher(leases, database.notifications, [handler], JobMetrics(registry))
    working = asyncio.create_task(dispatcher.run(poll_s))
    try:
        async with asyncio.timeout(25):
            yield Work(dispatcher, leases.ends, registry)
    finally:
        dispatcher.stop()
        await working
