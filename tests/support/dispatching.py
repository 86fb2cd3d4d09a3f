"""A running dispatcher for tests."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from control_svc.db.engine import Database
from control_svc.jobs.dispatcher import TIME_SLICE_S, Dispatcher
from control_svc.jobs.model import Job
from svc_kit.metrics import JobMetrics
from tests.support.jobs import FaultyTransactions, Handler, make_leases

NEVER_S = 3600.0
"""A poll interval longer than any test: the dispatcher reacts to notifications only."""


class RunningDispatcher(NamedTuple):
    dispatcher: Dispatcher
    transactions: FaultyTransactions
    ended: asyncio.Queue[Job]
    """Jobs whose attempts have ended."""
    metrics: CollectorRegistry


@asynccontextmanager
async def run_dispatcher(
    database: Database,
    handler: Handler,
    owner: str = "a",
    *,
    ended: asyncio.Queue[Job] | None = None,
    poll_s: float = NEVER_S,
    time_slice_s: float = TIME_SLICE_S,
) -> AsyncIterator[RunningDispatcher]:
    """Run a dispatcher while the context is open, for at most 25 seconds."""
    transactions = FaultyTransactions(database.across_projects)
    leases = make_leases(transactions, owner, {handler.kind: handler})
    leases.ended = leases.ended if ended is None else ended
    registry = CollectorRegistry()
    dispatcher = Dispatcher(
        leases, database.notifications, [handler], JobMetrics(registry), time_slice_s
    )
    task = asyncio.create_task(dispatcher.run(poll_s))
    try:
        async with asyncio.timeout(50):
            yield RunningDispatcher(dispatcher, transactions, leases.ended, registry)
    finally:
        dispatcher.stop()
        await task
