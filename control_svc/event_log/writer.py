"""The writer of one stream: numbers events and hands them to the group commit.

Commits can be repeated: a writer knows how many segments there were before its own, so a commit
whose answer got lost is recognized.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Final, Protocol, TypeVar

from control_svc.db.transaction import Transaction
from control_svc.event_log.model import (
    MAX_CHUNK_EVENTS,
    Addition,
    Change,
    Chunk,
    Event,
    FinalEvents,
    Stream,
    StreamKey,
    in_chunks,
)
from control_svc.event_log.queries import EventLogQueries, StreamQueries
from control_svc.event_log.tail_cache import Tail
from control_svc.jobs.handler import JobContext
from control_svc.jobs.model import LeaseLost
from svc_kit.errors import Unavailable

_log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")
UNWRITTEN_BYTES: Final = 256 * 1024
"""A writer with more than this waits until some of it is committed."""
TOKEN_BYTES: Final = 4
_PAUSE_S: Final = 1.0


class _Write(Protocol):
    def __call__(self, work: Change[ResultT], /) -> Awaitable[ResultT]: ...


class StreamWriter:
    """The one writer of a stream, during one attempt of its job.

    Events become visible in the order in which they are written, committed together with those of
    other streams. While the database is unreachable, they are buffered. Methods raise LeaseLost
    once the job belongs to another worker, or the stream has ended.
    """

    def __init__(
        self,
        context: JobContext,
        key: StreamKey,
        stream: Stream,
        tail: Tail,
        ready: Callable[[], None],
    ) -> None:
        """`ready` is called when there is something to commit."""
        self.claim = context.claim
        self.key = key
        self.turn = asyncio.Lock()
        """Locked by commits of this stream: group commits and changes of rows."""
        self._context = context
        self._tail = tail
        self._ready = ready
        self._position = stream.num_chunks
        self._committed = stream.next_number
        self._next_number = stream.next_number
        self._unwritten: list[Chunk] = []
        self._num_sealed = 0
        self._num_bytes = 0
        self._num_changes = 0
        """Changes of rows that are under way or wait for their turn."""
        self._failure: Exception | None = None
        self._progress = asyncio.Event()

    # ---- what a handler does

    @property
    def next_number(self) -> int:
        """The number of the event that is added next, for events that contain it."""
        return self._next_number

    async def add(
        self, events: Sequence[bytes], token_ids: Sequence[int] = (), *, turn: int = 0
    ) -> None:
        """Append events, and tokens of a turn; they are visible after the next group commit.

        Returns at once, unless more than `UNWRITTEN_BYTES` is unwritten.
        """
        while self._num_bytes > UNWRITTEN_BYTES and self._failure is None:
            await self._progressed()
        self._check()
        self._next_number += len(events)
        self._num_bytes += sum(map(len, events)) + TOKEN_BYTES * len(token_ids)
        self._join(in_chunks(events, turn, token_ids))
        self._ready()

    async def flush(self) -> None:
        """Return once everything that was added is visible."""
        while self._unwritten and self._failure is None:
            await self._progressed()
        self._check()

    async def commit(self, change: Change[ResultT], *, progress: bool = False) -> ResultT:
        """Commit everything that was added, and a change of rows, in one transaction.

        The change is committed once, even if the database's reply is lost. `progress`: as for
        `JobContext.write`.
        """
        return await self._change(partial(self._context.write, progress=progress), change)

    async def finish(self, change: Change[None]) -> None:
        """As `commit`, and end the job and the stream."""

        async def last(tx: Transaction) -> FinalEvents:
            await change(tx)
            return FinalEvents((), is_end=True)

        await self.conclude(last)

    async def conclude(self, change: Change[FinalEvents]) -> None:
        """As `commit`, and end the job. The change returns the last events, which may depend on
        the rows that it reads.
        """
        said: list[FinalEvents] = []

        async def last(tx: Transaction) -> None:
            said[:] = [await change(tx)]
            events, is_end = said[0]
            if is_end:
                await StreamQueries(tx).end(*self.key, events)
            elif events:
                await StreamQueries(tx).append(*self.key, events)

        await self._change(self._context.finish, last, said=said)

    # ---- what a commit does, with `turn` held

    @property
    def is_waiting(self) -> bool:
        """Whether there are events to commit and no commit is running."""
        is_free = not self._num_changes and not self.turn.locked()
        return bool(self._unwritten) and is_free and self._failure is None

    @property
    def num_bytes(self) -> int:
        """How much is unwritten."""
        return self._num_bytes

    def addition(self) -> Addition:
        """Everything that is unwritten; from here on it is not put into other chunks."""
        self._num_sealed = len(self._unwritten)
        return Addition(self.key, self._position, tuple(self._unwritten))

    def written(self, addition: Addition, *, is_end: bool = False) -> int:
        """It has been committed; how many events it had."""
        texts = [text for chunk in addition.chunks for text in chunk.events]
        events = [Event(self._committed + index, text) for index, text in enumerate(texts)]
        del self._unwritten[: len(addition.chunks)]
        self._num_sealed = 0
        self._position += len(addition.chunks)
        self._committed += len(events)
        self._num_bytes = sum(map(_size, self._unwritten))
        self._tail.add(events, is_end=is_end)
        self._notify()
        return len(events)

    def fail(self, failure: Exception) -> None:
        """Fail the writer: later writes raise the error."""
        self._failure = failure
        self._notify()

    # ---- parts

    async def _change(
        self,
        write: _Write,
        change: Change[ResultT],
        *,
        said: Sequence[FinalEvents] = (),
    ) -> ResultT:
        """Commit a change with the events before it, retrying while the database is unreachable;
        `said` are the events of the change itself. Its segment, perhaps empty, shows whether it was
        committed.
        """
        results: list[ResultT] = []
        async with self._changing():
            self._check()
            if len(self._unwritten) == self._num_sealed:
                self._unwritten.append(Chunk())
            addition = self.addition()

            async def work(tx: Transaction) -> None:
                had = await EventLogQueries(tx).append([addition])
                if self.key not in had:
                    raise LeaseLost(f"the stream {self.key.stream_id} is closed")
                if had[self.key] < len(addition.chunks):
                    results[:] = [await change(tx)]

            await _as_soon_as_possible(partial(write, work), self.key)
            events, is_end = said[0] if said else FinalEvents((), is_end=False)
            own = in_chunks(events) if events else []
            self.written(replace(addition, chunks=(*addition.chunks, *own)), is_end=is_end)
        return results[0]

    @asynccontextmanager
    async def _changing(self) -> AsyncIterator[None]:
        """Wait for the lock of a change; the group commit skips this stream meanwhile."""
        self._num_changes += 1
        try:
            async with self.turn:
                yield
        finally:
            self._num_changes -= 1

    def _join(self, chunks: Sequence[Chunk]) -> None:
        """Put chunks behind the others; small ones of a turn become one."""
        first, *rest = chunks
        last = self._unwritten[-1] if len(self._unwritten) > self._num_sealed else None
        if last is not None and _fit(last, first):
            self._unwritten[-1] = Chunk(
                [*last.events, *first.events], last.turn, [*last.token_ids, *first.token_ids]
            )
        else:
            self._unwritten.append(first)
        self._unwritten.extend(rest)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _progressed(self) -> None:
        await self._progress.wait()

    def _notify(self) -> None:
        """Let those who wait look again."""
        self._progress.set()
        self._progress = asyncio.Event()


async def _as_soon_as_possible(write: Callable[[], Awaitable[None]], key: StreamKey) -> None:
    while True:
        try:
            return await write()
        except Unavailable as error:
            _log.warning("events of %s are not written yet: %s", key.stream_id, error)
            await asyncio.sleep(pause_after(error))


def pause_after(error: Unavailable) -> float:
    """How long to wait before the next try, in seconds."""
    return _PAUSE_S if error.retry_after is None else error.retry_after


def _fit(one: Chunk, other: Chunk) -> bool:
    return one.turn == other.turn and len(one.events) + len(other.events) <= MAX_CHUNK_EVENTS


def _size(chunk: Chunk) -> int:
    return sum(map(len, chunk.events)) + TOKEN_BYTES * len(chunk.token_ids)
