"""Hints that something has changed: within a process by events, between processes by NOTIFY.

A notice is sent after the commit, never in it: PostgreSQL commits transactions that notify one
after the other. Those of some milliseconds travel together. What gets lost on the way is found by
polling.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any, Final, Protocol, TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine


class Notifications(Protocol):
    """Hints, in every control process, that something has changed; one may get lost.

    Who listens looks for itself what it is, and now and then without a hint.
    """

    def send(self, topics: Collection[str]) -> None:
        """Notify listeners: at once in this process, soon in others."""

    def listen(self, topic: str) -> AbstractContextManager[asyncio.Event]:
        """An event that is set whenever the topic is announced; the listener clears it."""


_log = logging.getLogger(__name__)
_CHANNEL: Final = "corral"
_COALESCED_S: Final = 0.02
_RECONNECT_S: Final = 1.0
_FAREWELL_S: Final = 1.0
_TOPICS_AT_ONCE: Final = 100  # of at most 64 characters: a notification holds 8000


class LocalNotifications:
    """Notices within a process: enough where no other one uses the database."""

    def __init__(self) -> None:
        self._listeners: dict[str, set[asyncio.Event]] = defaultdict(set)

    def send(self, topics: Collection[str]) -> None:
        """Wake who listens."""
        for topic in topics:
            for event in self._listeners.get(topic, ()):
                event.set()

    @contextmanager
    def listen(self, topic: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever the topic is announced; the listener clears it."""
        event = asyncio.Event()
        self._listeners[topic].add(event)
        try:
            yield event
        finally:
            self._listeners[topic].discard(event)
            if not self._listeners[topic]:
                del self._listeners[topic]

    def send_all(self) -> None:
        """Wake all listeners after a lost connection."""
        self.send(tuple(self._listeners))


class PostgresNotifications(LocalNotifications):
    """Notices between all processes on a PostgreSQL, over one connection."""

    def __init__(self, engine: AsyncEngine) -> None:
        super().__init__()
        self._engine = engine
        self._unsent: set[str] = set()
        self._has_unsent = asyncio.Event()
        self._is_closing = False

    def send(self, topics: Collection[str]) -> None:
        """Wake who listens here at once, and who listens elsewhere soon."""
        super().send(topics)
        self._unsent.update(topics)
        if topics:
            self._has_unsent.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Stay connected meanwhile; what is unsent at the end is sent, if that is soon."""
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            self._is_closing = True
            self._has_unsent.set()
            await asyncio.wait([task], timeout=_FAREWELL_S)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        while not self._is_closing:
            try:
                await self._pass_on()
            except Exception as error:  # a cut connection raises many things; polling goes on
                _log.debug("no notices from other processes: %s", error)
                await asyncio.sleep(_RECONNECT_S)

    async def _pass_on(self) -> None:
        """Until the connection is lost."""
        async with self._engine.connect() as connection:
            raw: Any = (await connection.get_raw_connection()).driver_connection
            raw.add_termination_listener(lambda _: self._has_unsent.set())
            await raw.add_listener(_CHANNEL, self._received)
            self.send_all()
            try:
                while not raw.is_closed() and not self._is_closing:
                    await self._has_unsent.wait()
                    await asyncio.sleep(_COALESCED_S)
                    await self._send_unsent(raw)
            finally:
                await connection.invalidate()  # nobody else should get one that listens

    def _received(self, _connection: Any, _pid: int, _channel: str, topics: str) -> None:
        super().send(topics.split())

    async def _send_unsent(self, raw: Any) -> None:
        self._has_unsent.clear()
        topics = sorted(self._unsent)
        self._unsent.clear()
        for first in range(0, len(topics), _TOPICS_AT_ONCE):
            part = " ".join(topics[first : first + _TOPICS_AT_ONCE])
            await raw.execute("SELECT pg_notify($1, $2)", _CHANNEL, part)


async def wait_for_notification(changed: asyncio.Event, at_most_s: float) -> bool:
    """Wait for the next notification, at most so many seconds, since one may get lost; return
    whether one came. `changed` comes from `Notifications.listen`.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(at_most_s):
            await changed.wait()
    was_noticed = changed.is_set()
    changed.clear()
    return was_noticed


ObjectT = TypeVar("ObjectT")


async def follow(
    notifications: Notifications,
    topic: str,
    read: Callable[[], Awaitable[ObjectT]],
    is_final: Callable[[ObjectT], bool],
    interval_s: float,
) -> AsyncGenerator[ObjectT, None]:
    """The object whenever it is another, until it is final; raises what `read` raises.

    `interval_s` is how long a notice that got lost is missed.
    """
    with notifications.listen(topic) as changed:
        seen: ObjectT | None = None
        while seen is None or not is_final(seen):
            changed.clear()
            found = await read()
            if found != seen:
                yield found
                seen = found
            if not is_final(found):
                with suppress(TimeoutError):
                    async with asyncio.timeout(interval_s):
                        await changed.wait()
