"""Commits the events of all streams of a process together, at most once in `COMMIT_INTERVAL_S`.

A transaction for each event would be thousands a second, each of which waits for the disk.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Container, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Final

from control_svc.db.transaction import Transaction, Transactions
from control_svc.event_log.model import Addition, StreamKey, StreamState
from control_svc.event_log.queries import EventLogQueries, StreamQueries
from control_svc.event_log.tail_cache import Tails
from control_svc.event_log.writer import StreamWriter, pause_after
from control_svc.jobs.handler import JobContext
from control_svc.jobs.leases import lock_claimed
from control_svc.jobs.model import LeaseLost
from svc_kit.errors import Unavailable
from svc_kit.metrics import StreamMetrics

_log = logging.getLogger(__name__)
COMMIT_INTERVAL_S: Final = 0.02
GROUP_BYTES: Final = 8 * 1024 * 1024
"""About the most that one transaction writes: after an outage everybody has much."""


class GroupCommitter:
    """Opens the writers of a process and commits their events."""

    def __init__(
        self,
        transactions: Transactions,
        tails: Tails,
        metrics: StreamMetrics,
        *,
        lease: timedelta,
        interval_s: float = COMMIT_INTERVAL_S,
        group_bytes: int = GROUP_BYTES,
    ) -> None:
        """`lease` is the duration of job leases, which a commit renews.

        `interval_s` is the minimum time between two commits, and `group_bytes` the approximate
        maximum size of a transaction.
        """
        self._transactions = transactions
        self._tails = tails
        self._metrics = metrics
        self._lease = lease
        self._interval_s = interval_s
        self._group_bytes = group_bytes
        self._writers: list[StreamWriter] = []
        self._ready = asyncio.Event()

    async def run(self) -> None:
        """Commit until cancelled."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            await self.commit()
            await asyncio.sleep(self._interval_s)

    @asynccontextmanager
    async def writer(self, context: JobContext, stream_id: str) -> AsyncIterator[StreamWriter]:
        """Open the writer of a stream, behind the committed events. Raises LeaseLost."""
        key = StreamKey(context.claim.project, stream_id)
        stream = await context.write(lambda tx: StreamQueries(tx).get(*key))
        if stream is None or stream.state is not StreamState.OPEN:
            raise LeaseLost(f"the stream {stream_id} is closed")
        with self._tails.open_for_writer(key, stream.next_number) as tail:
            writer = StreamWriter(context, key, stream, tail, self._ready.set)
            self._writers.append(writer)
            self._metrics.written.inc()
            try:
                yield writer
            finally:
                self._metrics.written.dec()
                self._writers.remove(writer)

    async def commit(self) -> None:
        """Commit what waits."""
        waiting = [writer for writer in self._writers if writer.is_waiting]
        for group in _groups(waiting, self._group_bytes):
            # While the group before it was written, changes of rows may have begun. They commit
            # their events themselves, and nobody waits for them: whose turn was held meanwhile
            # could say what belongs to its next change.
            free = [writer for writer in group if writer.is_waiting]
            if free:
                await self._write_group(free)

    async def _write_group(self, group: Sequence[StreamWriter]) -> None:
        async with AsyncExitStack() as turns:
            for writer in group:  # all are free, so what they have to say does not grow meanwhile
                await turns.enter_async_context(writer.turn)
            await self._write({writer: writer.addition() for writer in group})

    async def _write(self, additions: Mapping[StreamWriter, Addition]) -> None:
        try:
            with self._metrics.commit_seconds.time():
                written = await self._transactions.write(lambda each: self._append(each, additions))
        except Unavailable as error:
            _log.warning("events are not written yet: %s", error)
            await asyncio.sleep(pause_after(error))
            self._ready.set()
        except Exception as error:  # a defect that one of them meets; the others go on
            _log.exception("events cannot be written")
            await self._write_one_by_one(additions, error)
        else:
            self._notify(additions, written)

    async def _append(
        self, tx: Transaction, additions: Mapping[StreamWriter, Addition]
    ) -> set[StreamWriter]:
        """Append events; return the claims whose events were written. A stream can briefly have two
        writers here: one that has lost its job without knowing, and its successor.
        """
        claims = await lock_claimed(tx, {writer.claim for writer in additions}, self._lease)
        held = {writer: each for writer, each in additions.items() if writer.claim in claims}
        had = await EventLogQueries(tx).append(held.values())
        return {writer for writer in held if writer.key in had}

    async def _write_one_by_one(
        self, additions: Mapping[StreamWriter, Addition], error: Exception
    ) -> None:
        if len(additions) == 1:
            next(iter(additions)).fail(error)
            return
        for writer, addition in additions.items():
            await self._write({writer: addition})

    def _notify(
        self, additions: Mapping[StreamWriter, Addition], written: Container[StreamWriter]
    ) -> None:
        num_events = 0
        for writer, addition in additions.items():
            if writer in written:
                num_events += writer.written(addition)
            else:
                writer.fail(LeaseLost(f"{writer.claim.job_id} or its stream is not ours"))
        self._metrics.events_per_commit.observe(num_events)


def _groups(writers: Sequence[StreamWriter], group_bytes: int) -> Iterator[list[StreamWriter]]:
    """Split writers into groups that are written in one transaction each."""
    group: list[StreamWriter] = []
    num_bytes = 0
    for writer in writers:
        if group and num_bytes + writer.num_bytes > group_bytes:
            yield group
            group, num_bytes = [], 0
        group.append(writer)
        num_bytes += writer.num_bytes
    if group:
        yield group
