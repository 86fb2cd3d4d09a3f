"""Reads streams as far as they are committed, in any process.

In the process of the writer, readers are fed from `tail_cache.py`. Elsewhere a notification wakes
them, and one query reads for all readers of the process.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Final

from control_svc.db.notifications import Notifications, wait_for_notification
from control_svc.db.transaction import Transactions
from control_svc.event_log.model import (
    Event,
    ReadResult,
    Stream,
    StreamKey,
    StreamPosition,
    StreamState,
)
from control_svc.event_log.queries import EventLogQueries
from control_svc.event_log.tail_cache import NewEvents, Tails
from svc_kit.errors import DomainError, OutOfRange, StreamExpired, Unavailable
from svc_kit.metrics import StreamMetrics

_log = logging.getLogger(__name__)
READ_INTERVAL_S: Final = 0.02


class GroupReader:
    """Reads streams for all who ask at about the same time."""

    def __init__(
        self,
        transactions: Transactions,
        metrics: StreamMetrics,
        *,
        interval_s: float = READ_INTERVAL_S,
    ) -> None:
        """`interval_s` is the least time between two reads."""
        self._transactions = transactions
        self._metrics = metrics
        self._interval_s = interval_s
        self._wanted: dict[StreamPosition, asyncio.Future[ReadResult | None]] = {}
        self._is_wanted = asyncio.Event()

    async def run(self) -> None:
        """Answer until cancelled."""
        while True:
            await self._is_wanted.wait()
            self._is_wanted.clear()
            wanted, self._wanted = self._wanted, {}
            await self._answer(wanted)
            await asyncio.sleep(self._interval_s)

    async def read(self, place: StreamPosition) -> ReadResult | None:
        """What comes next at a place; None: there is no such stream. Raises Unavailable."""
        if place not in self._wanted:
            self._wanted[place] = asyncio.get_running_loop().create_future()
            self._is_wanted.set()
        return await asyncio.shield(self._wanted[place])

    async def _answer(
        self, wanted: Mapping[StreamPosition, asyncio.Future[ReadResult | None]]
    ) -> None:
        self._metrics.reads.inc()
        try:
            found = await self._transactions.read(
                lambda each: EventLogQueries(each).read(wanted.keys())
            )
        except Exception as error:  # it is theirs who asked, if they are still there
            for future in wanted.values():
                future.set_exception(error)
                future.exception()
        else:
            for place, future in wanted.items():
                future.set_result(found.get(place))


class StreamReader:
    """Reads streams, whichever process writes them."""

    def __init__(
        self,
        reader: GroupReader,
        tails: Tails,
        notifications: Notifications,
        metrics: StreamMetrics,
        poll_interval_s: float,
    ) -> None:
        """`poll_interval_s` is how late an event may be whose notice got lost."""
        self._reader = reader
        self._tails = tails
        self._notifications = notifications
        self._metrics = metrics
        self._poll_interval_s = poll_interval_s

    async def follow(
        self, project: str, stream_id: str, after: int, *, missing: DomainError, field: str
    ) -> AsyncGenerator[Sequence[Event], None]:
        """The events beyond the one numbered `after`, those of a commit together, until the end.

        `BEFORE_FIRST`: all. Raises `missing` if there is no such stream or it is deleted meanwhile,
        StreamExpired if its events have expired, and OutOfRange, naming `field`, for a number that
        no event has yet.
        """
        key, number = StreamKey(project, stream_id), after + 1
        with (
            self._metrics.followed.track_inprogress(),
            self._notifications.listen(key.topic) as changed,
            self._tails.open_for_reader(key, changed) as tail,
        ):
            reading = await self._read(StreamPosition(key, number), missing)
            _check_number(after, reading.stream, field)
            news = _news(reading, number)
            while True:
                if news.events:
                    yield news.events
                    number += len(news.events)
                if news.is_end:
                    return
                is_poll = news.is_newest and not await wait_for_notification(
                    changed, self._poll_interval_s
                )
                known = None if is_poll else tail.read_from(number)
                news = known or await self._look(StreamPosition(key, number), missing)

    async def _look(self, place: StreamPosition, missing: DomainError) -> NewEvents:
        """What the database has; nothing new, while it is away."""
        try:
            return _news(await self._read(place, missing), place.number)
        except Unavailable as error:
            _log.debug("events of %s cannot be read: %s", place.key.stream_id, error)
            return NewEvents([], is_newest=True, is_end=False)

    async def _read(self, place: StreamPosition, missing: DomainError) -> ReadResult:
        reading = await self._reader.read(place)
        if reading is None:
            raise missing
        if reading.stream.state is StreamState.SWEPT:
            raise StreamExpired(stream=place.key.stream_id)
        return reading


def _check_number(after: int, stream: Stream, field: str) -> None:
    newest = stream.next_number - 1
    if not -1 <= after <= newest:
        raise OutOfRange(field=field, value=after, minimum=-1, maximum=newest)


def _news(reading: ReadResult, number: int) -> NewEvents:
    is_newest = number + len(reading.events) >= reading.stream.next_number
    is_end = is_newest and reading.stream.state is StreamState.ENDED
    return NewEvents(reading.events, is_newest, is_end)
