"""A process that runs jobs as the control service does, each of a millisecond.

python -m bench.job_worker DATABASE_URL FOLDER
"""

import asyncio
import secrets
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry

from control_svc.config import JobSettings
from control_svc.db.engine import open_database
from control_svc.db.transaction import Transaction
from control_svc.jobs.dispatcher import Dispatcher
from control_svc.jobs.handler import JobContext
from control_svc.jobs.heartbeat import renew_leases
from control_svc.jobs.leases import Leases, LeaseTerms
from control_svc.jobs.model import Claim, Job
from svc_kit.metrics import JobMetrics

KIND: Final = "bench"
CONCURRENCY: Final = 32
WORK_S: Final = 0.001


class Handler:
    """Waits."""

    kind = KIND
    concurrency = CONCURRENCY

    async def run(self, claim: Claim, context: JobContext) -> None:
        await asyncio.sleep(WORK_S)

    async def on_dead(self, tx: Transaction, job: Job) -> None:
        """Nothing depends on it."""


async def work(url: str, folder: Path) -> None:
    """Run jobs until SIGTERM."""
    limits, loop, handler = JobSettings(), asyncio.get_running_loop(), Handler()
    terms = LeaseTerms(secrets.token_hex(8), timedelta(seconds=limits.lease_s), is_exclusive=False)
    async with open_database(url, folder) as database:
        leases = Leases(database.across_projects, {KIND: handler}, terms)
        metrics = JobMetrics(CollectorRegistry())
        dispatcher = Dispatcher(leases, database.notifications, [handler], metrics)
        loop.add_signal_handler(signal.SIGTERM, dispatcher.stop)
        with renew_leases(database, terms.owner, terms.lease):
            print("ready", flush=True)
            await dispatcher.run(limits.poll_interval_s)


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], Path(sys.argv[2])))
