"""Processes that write and follow event streams."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from control_svc.db.engine import Database
from control_svc.db.transaction import CrossProjectTransaction
from control_svc.event_log.group_commit import GROUP_BYTES, GroupCommitter
from control_svc.event_log.model import BEFORE_FIRST, Event, StreamKey, StreamPosition
from control_svc.event_log.queries import EventLogQueries, StreamQueries
from control_svc.event_log.reader import GroupReader, StreamReader
from control_svc.event_log.tail_cache import Tails
from control_svc.jobs.handler import JobContext
from control_svc.jobs.leases import DeadLetterHandler
from svc_kit.errors import BatchNotFound
from svc_kit.metrics import StreamMetrics
from tests.support.dispatching import NEVER_S
from tests.support.jobs import (
    KIND,
    LEASE,
    PROJECT,
    FaultyTransactions,
    Handler,
    Jobs,
    WatchedLeases,
    make_leases,
)

MISSING = BatchNotFound(batch="unknown")
"""Raised for an unknown stream."""


@dataclass(frozen=True)
class StreamProcess:
    """The event log of one control process."""

    leases: WatchedLeases
    committer: GroupCommitter
    group_reader: GroupReader
    reader: StreamReader
    transactions: FaultyTransactions
    registry: CollectorRegistry

    @asynccontextmanager
    async def run(self) -> AsyncIterator["StreamProcess"]:
        """Run the group commit and the group reader while the context is open."""
        tasks = [asyncio.create_task(part.run()) for part in (self.committer, self.group_reader)]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def follow(self, stream_id: str, after: int = BEFORE_FIRST) -> "Follower":
        return Follower(self, stream_id, after)

    def value(self, name: str) -> float:
        """The value of a metric; 0 if it has none."""
        return self.registry.get_sample_value(name) or 0


def make_process(
    database: Database,
    owner: str = "a",
    *,
    poll_s: float = NEVER_S,
    dead_letter_handler: DeadLetterHandler | None = None,
    group_bytes: int = GROUP_BYTES,
) -> StreamProcess:
    """The event log of a process with lease owner `owner`."""
    transactions = FaultyTransactions(database.across_projects)
    tails, registry = Tails(), CollectorRegistry()
    metrics = StreamMetrics(registry)
    committer = GroupCommitter(transactions, tails, metrics, lease=LEASE, group_bytes=group_bytes)
    group_reader = GroupReader(transactions, metrics)
    reader = StreamReader(group_reader, tails, database.notifications, metrics, poll_s)
    leases = make_leases(transactions, owner, {KIND: dead_letter_handler or Handler()})
    return StreamProcess(leases, committer, group_reader, reader, transactions, registry)


class Follower:
    def __init__(self, process: StreamProcess, stream_id: str, after: int) -> None:
        self.stream_id = stream_id
        self.after = after
        self.events: list[Event] = []
        self._changed = asyncio.Event()
        self._batches = process.reader.follow(
            PROJECT, stream_id, after, missing=MISSING, field="starting_after"
        )
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for events in self._batches:
                self.events.extend(events)
                self._changed.set()
        finally:
            await self._batches.aclose()
            self._changed.set()

    @property
    def texts(self) -> list[bytes]:
        """The data of the events read so far."""
        return [event.data for event in self.events]

    async def wait_for(self, count: int) -> list[bytes]:
        """Wait until `count` events have been read or the stream has ended."""
        while len(self.events) < count and not self.task.done():
            self._changed.clear()
            await self._changed.wait()
        return self.texts

    async def cancel(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


async def create_stream(jobs: Jobs, stream_id: str, *events: bytes) -> None:
    await jobs.add(subject=stream_id)
    await jobs.transactions.of(jobs.project).write(
        lambda tx: StreamQueries(tx).create(stream_id, events)
    )


async def read_stored_events(
    tx: CrossProjectTransaction, stream_id: str, number: int = 0
) -> list[Event]:
    position = StreamPosition(StreamKey(PROJECT, stream_id), number)
    result = (await EventLogQueries(tx).read([position])).get(position)
    events = list(result.events) if result else []
    return events and events + await read_stored_events(tx, stream_id, number + len(events))


async def claim(process: StreamProcess) -> JobContext:
    return JobContext(await process.leases.claim_next(), process.leases)


def numbered_events(count: int, first: int = 0) -> list[bytes]:
    return [f"event {first + index}".encode() for index in range(count)]
