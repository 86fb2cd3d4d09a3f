"""Commits the events of all streams of a process together, at most once per `COMMIT_INTERVAL_S`.

One transaction per event would mean thousands per second, each of which waits for the disk.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Container, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Final

from control_svc.db.transaction import CrossProjectTransaction, CrossProjectTransactions
from control_svc.event_log.model import Addition, StreamKey, StreamState
from control_svc.event_log.queries import EventLogQueries, StreamQueries
from control_svc.event_log.tail_cache import Tails
from control_svc.event_log.writer import StreamWriter, retry_delay_s
from control_svc.jobs.handler import JobContext
from control_svc.jobs.leases import lock_claimed
from control_svc.jobs.model import LeaseLost
from svc_kit.errors import Unavailable
from svc_kit.metrics import StreamMetrics

_log = logging.getLogger(__name__)
COMMIT_INTERVAL_S: Final = 0.02
GROUP_BYTES: Final = 8 * 1024 * 1024
"""Approximate maximum size of a transaction; after an outage much is buffered."""


class GroupCommitter:
    """Opens the writers of a process and commits their events."""

    def __init__(
        self,
        transactions: CrossProjectTransactions,
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
        """Open the writer of a stream, which continues after the committed events.

        Raises LeaseLost.
        """
        key = StreamKey(context.claim.project, stream_id)
        stream = await context.write(lambda tx: StreamQueries(tx).get(stream_id))
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
        """Commit the buffered events of all writers."""
        waiting = [writer for writer in self._writers if writer.is_waiting]
        for group in _groups(waiting, self._group_bytes):
            # Skip writers that began to change rows while earlier groups were written. The change
            # commits their events itself. Waiting for their locks would let other writers add
            # events that belong to a later change.
            unlocked = [writer for writer in group if writer.is_waiting]
            if unlocked:
                await self._write_group(unlocked)

    async def _write_group(self, group: Sequence[StreamWriter]) -> None:
        async with AsyncExitStack() as locks:
            for writer in group:  # does not block: no lock is taken
                await locks.enter_async_context(writer.lock)
            await self._write({writer: writer.seal() for writer in group})

    async def _write(self, additions: Mapping[StreamWriter, Addition]) -> None:
        try:
            with self._metrics.commit_seconds.time():
                appended = await self._transactions.write(lambda tx: self._append(tx, additions))
        except Unavailable as error:
            _log.warning("events are not committed yet: %s", error)
            await asyncio.sleep(retry_delay_s(error))
            self._ready.set()
        except Exception as error:  # a defect in one stream must not stop the others
            _log.exception("events cannot be committed")
            if len(additions) == 1:
                next(iter(additions)).fail(error)
                return
            for writer, addition in additions.items():
                await self._write({writer: addition})
        else:
            self._notify(additions, appended)

    async def _append(
        self, tx: CrossProjectTransaction, additions: Mapping[StreamWriter, Addition]
    ) -> set[StreamWriter]:
        """Append events; return the writers whose events were appended.

        A stream can briefly have two writers here: one that has lost its job without knowing, and
        its successor.
        """
        claims = await lock_claimed(tx, {writer.claim for writer in additions}, self._lease)
        valid = {writer: each for writer, each in additions.items() if writer.claim in claims}
        keys = (await EventLogQueries(tx).append(valid.values())).keys()
        return {writer for writer in valid if writer.key in keys}

    def _notify(
        self, additions: Mapping[StreamWriter, Addition], appended: Container[StreamWriter]
    ) -> None:
        num_events = 0
        for writer, addition in additions.items():
            if writer in appended:
                num_events += writer.mark_committed(addition)
            else:
                writer.fail(LeaseLost(f"job {writer.claim.job_id} or its stream has ended"))
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
