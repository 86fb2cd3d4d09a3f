"""Notifications of changes: by events within a process, by NOTIFY between processes.

Notifications are sent after the commit, not in the transaction, since PostgreSQL serializes the
commits of transactions that notify. Those of a few milliseconds are sent together. Delivery is not
guaranteed: listeners also poll.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any, Final, Protocol, TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine


class Notifications(Protocol):
    """Notifies listeners in every control process that a topic has changed.

    A notification can get lost, so listeners also poll. It has no content: they read what changed.
    """

    def send(self, topics: Collection[str]) -> None:
        """Notify listeners: at once in this process, soon in others."""

    def listen(self, topic: str) -> AbstractContextManager[asyncio.Event]:
        """Return an event that is set whenever the topic changes; the listener clears it."""


_log = logging.getLogger(__name__)
_CHANNEL: Final = "corral"
_COALESCE_S: Final = 0.02
_RECONNECT_S: Final = 1.0
_CLOSE_TIMEOUT_S: Final = 1.0
_TOPICS_PER_MESSAGE: Final = 100  # topics have at most 64 characters, a NOTIFY payload 8000


class LocalNotifications:
    """Notifications within a process, for databases that no other process uses."""

    def __init__(self) -> None:
        self._listeners: dict[str, set[asyncio.Event]] = defaultdict(set)

    def send(self, topics: Collection[str]) -> None:
        """Notify the listeners of these topics."""
        for topic in topics:
            for event in self._listeners.get(topic, ()):
                event.set()

    @contextmanager
    def listen(self, topic: str) -> Iterator[asyncio.Event]:
        """Return an event that is set whenever the topic changes; the listener clears it."""
        event = asyncio.Event()
        self._listeners[topic].add(event)
        try:
            yield event
        finally:
            self._listeners[topic].discard(event)
            if not self._listeners[topic]:
                del self._listeners[topic]

    def send_all(self) -> None:
        """Notify all listeners, since notifications were lost with the connection."""
        self.send(tuple(self._listeners))


class PostgresNotifications(LocalNotifications):
    """Notifications between all processes that use a PostgreSQL database, over one connection."""

    def __init__(self, engine: AsyncEngine) -> None:
        super().__init__()
        self._engine = engine
        self._unsent: set[str] = set()
        self._has_unsent = asyncio.Event()
        self._is_closing = False

    def send(self, topics: Collection[str]) -> None:
        """Notify the listeners in this process at once, and those in others soon."""
        super().send(topics)
        self._unsent.update(topics)
        if topics:
            self._has_unsent.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Stay connected while the context is open; at the end, send what is unsent."""
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            self._is_closing = True
            self._has_unsent.set()
            await asyncio.wait([task], timeout=_CLOSE_TIMEOUT_S)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        while not self._is_closing:
            try:
                await self._exchange()
            except Exception as error:  # lost connections raise many types; listeners poll
                _log.debug("no notifications from other processes: %s", error)
                await asyncio.sleep(_RECONNECT_S)

    async def _exchange(self) -> None:
        """Send and receive until the connection is lost."""
        async with self._engine.connect() as connection:
            raw: Any = (await connection.get_raw_connection()).driver_connection
            raw.add_termination_listener(lambda _: self._has_unsent.set())
            await raw.add_listener(_CHANNEL, self._on_message)
            self.send_all()
            try:
                while not raw.is_closed() and not self._is_closing:
                    await self._has_unsent.wait()
                    await asyncio.sleep(_COALESCE_S)
                    await self._send_unsent(raw)
            finally:
                await connection.invalidate()  # the pool must not reuse a connection that listens

    def _on_message(self, _connection: Any, _pid: int, _channel: str, topics: str) -> None:
        super().send(topics.split())

    async def _send_unsent(self, raw: Any) -> None:
        self._has_unsent.clear()
        topics = sorted(self._unsent)
        self._unsent.clear()
        for first in range(0, len(topics), _TOPICS_PER_MESSAGE):
            message = " ".join(topics[first : first + _TOPICS_PER_MESSAGE])
            await raw.execute("SELECT pg_notify($1, $2)", _CHANNEL, message)


async def wait_for_notification(changed: asyncio.Event, timeout_s: float) -> bool:
    """Wait for the next notification, or for the timeout, since notifications can get lost; return
    whether one came. `changed` comes from `Notifications.listen`.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await changed.wait()
    is_notified = changed.is_set()
    changed.clear()
    return is_notified


ObjectT = TypeVar("ObjectT")


async def follow(
    notifications: Notifications,
    topic: str,
    read: Callable[[], Awaitable[ObjectT]],
    is_final: Callable[[ObjectT], bool],
    interval_s: float,
) -> AsyncGenerator[ObjectT, None]:
    """Yield the object whenever it has changed, until it is final. Raises what `read` raises.

    `interval_s` is the poll interval, in case a notification gets lost.
    """
    with notifications.listen(topic) as changed:
        last: ObjectT | None = None
        while last is None or not is_final(last):
            changed.clear()
            current = await read()
            if current != last:
                yield current
                last = current
            if not is_final(current):
                await wait_for_notification(changed, interval_s)
