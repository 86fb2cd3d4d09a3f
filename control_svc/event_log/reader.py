"""Reads committed events of streams, in any process.

In the process of the writer, readers get new events from `tail_cache.py`. In other processes a
notification wakes them, and one query reads for all readers of the process.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from control_svc.db.notifications import Notifications, wait_for_notification
from control_svc.db.transaction import CrossProjectTransactions
from control_svc.event_log.model import (
    BEFORE_FIRST,
    Event,
    ReadResult,
    StreamKey,
    StreamPosition,
    StreamState,
)
from control_svc.event_log.queries import EventLogQueries
from control_svc.event_log.tail_cache import EventBatch, Tails
from svc_kit.errors import DomainError, OutOfRange, StreamExpired, Unavailable
from svc_kit.metrics import StreamMetrics

_log = logging.getLogger(__name__)
READ_INTERVAL_S: Final = 0.02


class GroupReader:
    """Combines the reads of all readers of a process."""

    def __init__(
        self,
        transactions: CrossProjectTransactions,
        metrics: StreamMetrics,
        *,
        interval_s: float = READ_INTERVAL_S,
    ) -> None:
        """`interval_s` is the minimum time between two reads."""
        self._transactions = transactions
        self._metrics = metrics
        self._interval_s = interval_s
        self._pending: dict[StreamPosition, asyncio.Future[ReadResult | None]] = {}
        self._has_pending = asyncio.Event()

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            await self._has_pending.wait()
            self._has_pending.clear()
            pending, self._pending = self._pending, {}
            await self._read_group(pending)
            await asyncio.sleep(self._interval_s)

    async def read(self, position: StreamPosition) -> ReadResult | None:
        """Read the next events; None if the stream does not exist. Raises Unavailable."""
        if position not in self._pending:
            self._pending[position] = asyncio.get_running_loop().create_future()
            self._has_pending.set()
        return await asyncio.shield(self._pending[position])

    async def _read_group(
        self, pending: Mapping[StreamPosition, asyncio.Future[ReadResult | None]]
    ) -> None:
        self._metrics.reads.inc()
        try:
            results = await self._transactions.read(
                lambda tx: EventLogQueries(tx).read(pending.keys())
            )
        except Exception as error:  # raised by `read`
            for future in pending.values():
                future.set_exception(error)
                future.exception()  # the reader may be gone: no warning then
        else:
            for position, future in pending.items():
                future.set_result(results.get(position))


@dataclass(frozen=True)
class StreamReader:
    """Follows streams, whichever process writes them."""

    reader: GroupReader
    tails: Tails
    notifications: Notifications
    metrics: StreamMetrics
    poll_interval_s: float
    """Maximum delay of an event whose notification was lost."""

    async def follow(
        self, project: str, stream_id: str, after: int, *, missing: DomainError, field: str
    ) -> AsyncGenerator[Sequence[Event], None]:
        """Yield the events with numbers greater than `after`, in batches, until the stream ends.
        Only the first batch may be empty: the stream exists, and has no such event yet.

        `after` is `BEFORE_FIRST` for all events. Raises `missing` if the stream does not exist or
        is deleted meanwhile, StreamExpired if its events have expired, and OutOfRange for `field`
        if `after` is not the number of an event.
        """
        key, number = StreamKey(project, stream_id), after + 1
        with (
            self.metrics.followed.track_inprogress(),
            self.notifications.listen(key.topic) as changed,
            self.tails.open_for_reader(key, changed) as tail,
        ):
            result = await self._read(StreamPosition(key, max(number, 0)), missing)
            newest = result.stream.next_number - 1
            if not BEFORE_FIRST <= after <= newest:
                raise OutOfRange(field=field, value=after, minimum=BEFORE_FIRST, maximum=newest)
            batch = _event_batch(result, number)
            yield batch.events
            while True:
                number += len(batch.events)
                if batch.is_end:
                    return
                is_poll = batch.is_newest and not await wait_for_notification(
                    changed, self.poll_interval_s
                )
                cached = None if is_poll else tail.read_from(number)
                batch = cached or await self._query(StreamPosition(key, number), missing)
                if batch.events:
                    yield batch.events

    async def _query(self, position: StreamPosition, missing: DomainError) -> EventBatch:
        """Read from the database; an empty batch while it is unavailable."""
        try:
            return _event_batch(await self._read(position, missing), position.number)
        except Unavailable as error:
            _log.debug("events of %s cannot be read: %s", position.key.stream_id, error)
            return EventBatch([], is_newest=True, is_end=False)

    async def _read(self, position: StreamPosition, missing: DomainError) -> ReadResult:
        result = await self.reader.read(position)
        if result is None:
            raise missing
        is_stored = position.number >= result.stream.next_number or (
            bool(result.events) and result.events[0].number == position.number
        )
        if result.stream.state is StreamState.SWEPT or not is_stored:
            raise StreamExpired(stream=position.key.stream_id)
        return result


def _event_batch(result: ReadResult, number: int) -> EventBatch:
    is_newest = number + len(result.events) >= result.stream.next_number
    is_end = is_newest and result.stream.state is StreamState.ENDED
    return EventBatch(result.events, is_newest, is_end)
