"""Processes that write and follow streams, over a database of a test."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from prometheus_client import CollectorRegistry

from control_svc.db.engine import Database
from control_svc.db.transaction import Transaction, Transactions
from control_svc.event_log.group_commit import GroupCommitter
from control_svc.event_log.model import BEFORE_FIRST, Event
from control_svc.event_log.queries import StreamQueries
from control_svc.event_log.reader import GroupReader, StreamReader
from control_svc.event_log.tail_cache import Tails
from control_svc.jobs.handler import JobContext
from control_svc.jobs.leases import DeadLetterHandler, Leases, LeaseTerms
from svc_kit.errors import BatchNotFound, UpstreamUnavailable
from svc_kit.metrics import StreamMetrics
from tests.support.dispatching import NEVER_S
from tests.support.jobs import KIND, LEASE, PROJECT, Handler, Jobs

ResultT = TypeVar("ResultT")
AWAY = UpstreamUnavailable(service="database", retry_after=0)
MISSING = BatchNotFound(batch="unknown")
"""The error of an unknown stream; the object that has the stream chooses it."""


class Trouble(StrEnum):
    """What befalls a transaction."""

    AWAY = "away"
    """The database cannot be reached."""
    ANSWER_LOST = "answer lost"
    """It commits, and nobody hears of it."""


class TroubledTransactions(Transactions):
    """A database's transactions, counted, some of which meet with trouble."""

    def __init__(self, transactions: Transactions) -> None:
        self.troubles: list[Trouble] = []
        """Of the next ones that write, in order."""
        self.num_written = 0
        self.num_read = 0
        self._transactions = transactions

    async def write(self, work: Callable[[Transaction], Awaitable[ResultT]]) -> ResultT:
        """Write, unless the database is away."""
        self.num_written += 1
        trouble = self.troubles.pop(0) if self.troubles else None
        if trouble is Trouble.AWAY:
            raise AWAY
        result = await self._transactions.write(work)
        if trouble is Trouble.ANSWER_LOST:
            raise AWAY
        return result

    async def read(self, work: Callable[[Transaction], Awaitable[ResultT]]) -> ResultT:
        """Read."""
        self.num_read += 1
        return await self._transactions.read(work)


@dataclass(frozen=True)
class StreamProcess:
    """What one process has: leases, a committer and followers."""

    leases: Leases
    committer: GroupCommitter
    reader: GroupReader
    followers: StreamReader
    transactions: TroubledTransactions
    registry: CollectorRegistry

    @asynccontextmanager
    async def running(self) -> AsyncIterator["StreamProcess"]:
        """Commit and read meanwhile."""
        tasks = [asyncio.create_task(part.run()) for part in (self.committer, self.reader)]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def follow(self, stream_id: str, after: int = BEFORE_FIRST) -> "Follower":
        """A reader of a stream of the test's project."""
        return Follower(self, stream_id, after)

    def value(self, name: str) -> float:
        """A metric."""
        return self.registry.get_sample_value(name) or 0


def a_process(
    database: Database,
    owner: str = "a",
    *,
    poll_s: float = NEVER_S,
    dead_letter_handler: DeadLetterHandler | None = None,
) -> StreamProcess:
    """A process on a database."""
    transactions = TroubledTransactions(database.transactions)
    tails, registry = Tails(), CollectorRegistry()
    metrics = StreamMetrics(registry)
    committer = GroupCommitter(transactions, tails, metrics, lease=LEASE)
    reader = GroupReader(transactions, metrics)
    followers = StreamReader(reader, tails, database.notifications, metrics, poll_s)
    terms = LeaseTerms(owner=owner, lease=LEASE, is_exclusive=False)
    leases = Leases(transactions, {KIND: dead_letter_handler or Handler()}, terms, lambda: 0.0)
    return StreamProcess(leases, committer, reader, followers, transactions, registry)


class Follower:
    """A reader, a task of its own, and what it has seen."""

    def __init__(self, process: StreamProcess, stream_id: str, after: int) -> None:
        self.stream_id = stream_id
        self.after = after
        self.seen: list[Event] = []
        self._changed = asyncio.Event()
        self._follow = process.followers.follow(
            PROJECT, stream_id, after, missing=MISSING, field="starting_after"
        )
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for events in self._follow:
                self.seen.extend(events)
                self._changed.set()
        finally:
            await self._follow.aclose()
            self._changed.set()

    @property
    def texts(self) -> list[bytes]:
        """What was said."""
        return [event.data for event in self.seen]

    async def until(self, count: int) -> list[bytes]:
        """So many events, or all."""
        while len(self.seen) < count and not self.reading.done():
            self._changed.clear()
            await self._changed.wait()
        return self.texts

    async def leave(self) -> None:
        """Stop reading."""
        self.reading.cancel()
        await asyncio.wait([self.reading])


async def begin(jobs: Jobs, stream_id: str, *events: bytes) -> None:
    """An object with a stream and a job."""
    await jobs.add(subject=stream_id)
    await jobs.transactions.write(
        lambda each: StreamQueries(each).create(jobs.project, stream_id, events)
    )


async def claim(process: StreamProcess) -> JobContext:
    """The next job, begun."""
    job = await process.leases.claim([KIND])
    assert job is not None
    return JobContext(job, process.leases)


async def nothing(_repositories: Transaction) -> None:
    """A change of nothing."""


def numbered(count: int, first: int = 0) -> list[bytes]:
    """So many different events."""
    return [f"event {first + index}".encode() for index in range(count)]
