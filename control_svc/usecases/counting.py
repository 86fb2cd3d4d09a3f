"""How much work waits, as gauges: a scrape shows what the last count found."""

import asyncio
import logging
from datetime import datetime

from control_svc.domain.job_ports import JobCount
from control_svc.domain.jobs import JobState
from control_svc.storage.repositories.jobs import SqlJobQueue
from control_svc.storage.unit_of_work import Transaction, Transactions
from svc_kit.errors import DomainError
from svc_kit.metrics import JobMetrics

_log = logging.getLogger(__name__)


class JobGauges:
    """Counts the jobs in the database now and then."""

    def __init__(self, transactions: Transactions, metrics: JobMetrics) -> None:
        self._transactions = transactions
        self._metrics = metrics

    async def run(self, interval_s: float) -> None:
        """Count until cancelled; while the database is away the last count stays."""
        while True:
            try:
                await self.count()
            except DomainError as error:
                _log.debug("jobs cannot be counted: %s", error)
            except Exception:  # nobody else hears of it, and the next count may do better
                _log.exception("jobs cannot be counted")
            await asyncio.sleep(interval_s)

    async def count(self) -> None:
        """Count once."""

        async def ask(tx: Transaction) -> tuple[list[JobCount], datetime]:
            return await SqlJobQueue(tx).census(), await tx.now()

        counts, now = await self._transactions.read(ask)
        self._metrics.jobs.clear()
        self._metrics.oldest_queued.clear()
        for found in counts:
            self._metrics.jobs.labels(found.kind, found.state).set(found.num_jobs)
            if found.state is JobState.QUEUED:
                waited = max((now - found.oldest).total_seconds(), 0)
                self._metrics.oldest_queued.labels(found.kind).set(waited)
