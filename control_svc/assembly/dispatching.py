"""The dispatcher of jobs, at work."""

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

from control_svc.assembly.ground import Ground, end
from control_svc.usecases.counting import JobGauges
from control_svc.usecases.dispatching import Dispatcher
from control_svc.usecases.leasing import Leases, LeaseTerms
from control_svc.usecases.working import JobHandler
from svc_kit.metrics import JobMetrics

_COUNT_INTERVAL_S: Final = 10.0


@asynccontextmanager
async def dispatching(
    ground: Ground, handlers: Sequence[JobHandler], metrics: JobMetrics
) -> AsyncIterator[Dispatcher]:
    """A dispatcher at work; what it works on is given back at the end."""
    bounds, database = ground.settings.jobs, ground.database
    terms = LeaseTerms(
        owner=f"{socket.gethostname()[:32]}-{os.getpid()}-{secrets.token_hex(4)}",
        lease=timedelta(seconds=bounds.lease_s),
        is_alone=not database.is_shared,
    )
    undertakers = {handler.kind: handler for handler in handlers}
    leases = Leases(ground.transactions, undertakers, terms)
    dispatcher = Dispatcher(leases, ground.notices, handlers, metrics)
    gauges = JobGauges(ground.transactions, metrics)
    with database.beating(terms.owner, terms.lease):
        counting = asyncio.create_task(gauges.run(_COUNT_INTERVAL_S))
        working = asyncio.create_task(dispatcher.run(bounds.poll_interval_s))
        try:
            yield dispatcher
        finally:
            dispatcher.stop()
            await working
            await end(counting)
