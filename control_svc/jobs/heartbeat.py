"""Renews leases in a thread with its own event loop and its own connection.

A process keeps its jobs even if its main event loop is blocked or its connection pool is exhausted.
Only needed on PostgreSQL: on SQLite the lock on the data folder excludes other processes.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from sqlalchemy.ext.asyncio import AsyncEngine

from control_svc.db.engine import Database
from control_svc.db.notifications import LocalNotifications
from control_svc.db.transaction import Clock, CrossProjectTransactions
from control_svc.jobs.queries import JobQueueQueries
from svc_kit.logs import log_errors

_log = logging.getLogger(__name__)
BEATS_PER_LEASE: Final = 4
"""Heartbeats per lease duration. Two in a row may fail; after a third one the lease may expire."""


@contextmanager
def renew_leases(database: Database, owner: str, lease: timedelta) -> Iterator[None]:
    """Renew the leases of `owner`, each of duration `lease`, while the context is open.

    Does nothing on SQLite, where no other process can take a lease.
    """
    if database.connect_dedicated is None:
        yield
        return
    with _Heartbeat(database.connect_dedicated, database.clock).running(owner, lease):
        yield


class _Heartbeat:
    """Renews leases in a thread with its own event loop and its own connection."""

    def __init__(self, connect: Callable[[], AsyncEngine], clock: Clock | None) -> None:
        """`connect` opens an engine with a single connection."""
        self._connect = connect
        self._clock = clock

    @contextmanager
    def running(self, owner: str, lease: timedelta) -> Iterator[None]:
        """Run the thread while the context is open."""
        stopping = threading.Event()
        thread = threading.Thread(
            target=lambda: asyncio.run(self._beat(owner, lease, stopping)),
            name="heartbeats",
            daemon=True,  # a database that hangs must not keep the process from exiting
        )
        thread.start()
        try:
            yield
        finally:
            stopping.set()
            thread.join(timeout=1)

    async def _beat(self, owner: str, lease: timedelta, stopping: threading.Event) -> None:
        engine = self._connect()
        transactions = CrossProjectTransactions(engine, engine, LocalNotifications(), self._clock)
        interval_s = lease.total_seconds() / BEATS_PER_LEASE
        try:
            # Nothing else runs on this loop, so the wait may block it.
            while not stopping.wait(interval_s):
                await self._renew(transactions, owner, lease)
        finally:
            await engine.dispose()

    async def _renew(
        self, transactions: CrossProjectTransactions, owner: str, lease: timedelta
    ) -> None:
        with log_errors(_log, "leases could not be renewed"):
            async with asyncio.timeout(lease.total_seconds()):
                await transactions.write(lambda each: JobQueueQueries(each).renew(owner, lease))
