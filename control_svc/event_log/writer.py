"""The writer of one stream: numbers and buffers events for the group commit.

Commits can be retried: a writer knows the position of its chunks in the stream, so chunks whose
commit got no response are recognized.
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
    NOTHING_HELD,
    Addition,
    Change,
    Chunk,
    Event,
    FinalEvents,
    Held,
    Stream,
    StreamKey,
    in_chunks,
)
from control_svc.event_log.queries import StreamQueries
from control_svc.event_log.tail_cache import Tail
from control_svc.jobs.handler import JobContext
from control_svc.jobs.model import LeaseLost
from svc_kit.errors import Unavailable

_log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")
BUFFER_BYTES: Final = 256 * 1024
"""A writer that has buffered more than this waits for a commit."""
TOKEN_BYTES: Final = 4
_RETRY_DELAY_S: Final = 1.0


class _Write(Protocol):
    def __call__(self, work: Change[ResultT], /) -> Awaitable[ResultT]: ...


class StreamWriter:
    """The writer of a stream during one attempt of its job.

    Events become visible in the order in which they are added, committed together with those of
    other streams. They are buffered while the database is unavailable. Methods raise LeaseLost once
    the job belongs to another worker or the stream has ended.
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
        self.lock = asyncio.Lock()
        """Held by commits of this stream: group commits and changes of rows."""
        self._context = context
        self._tail = tail
        self._ready = ready
        self._position = stream.num_chunks
        self._num_committed = stream.next_number
        self._buffer: list[Chunk] = []
        self._num_sealed = 0
        """Chunks at the start of the buffer that a commit in progress contains."""
        self._num_bytes = 0
        self._num_changes = 0
        """Changes of rows that are in progress or wait for the lock."""
        self._failure: Exception | None = None
        self._progress = asyncio.Event()

    # ---- called by the job handler

    async def add(
        self,
        events: Sequence[bytes],
        token_ids: Sequence[int] = (),
        *,
        turn: int = 0,
        held: Held = NOTHING_HELD,
    ) -> None:
        """Append events and tokens of a turn, which the next group commit makes visible.

        Returns at once unless more than `BUFFER_BYTES` is buffered.
        """
        while self._num_bytes > BUFFER_BYTES and self._failure is None:
            await self._progress.wait()
        self._check()
        chunks = in_chunks(events, turn, token_ids, held)
        self._num_bytes += sum(map(_size, chunks))
        self._append(chunks)
        self._ready()

    async def flush(self) -> None:
        """Wait until everything that was added is visible."""
        while self._buffer and self._failure is None:
            await self._progress.wait()
        self._check()

    async def commit(self, change: Change[ResultT], *, progress: bool = False) -> ResultT:
        """Commit the buffered events and a change of rows in one transaction.

        The change is committed once, even if the database's response is lost. `progress` as in
        `JobContext.write`.
        """
        return await self._commit(partial(self._context.write, progress=progress), change)

    async def conclude(self, change: Change[FinalEvents]) -> None:
        """Commit like `commit`, and finish the job. `change` returns the last events, which may
        depend on the rows that it reads.
        """
        final: list[FinalEvents] = []

        async def change_and_append(tx: Transaction) -> None:
            final[:] = [await change(tx)]
            events, is_end = final[0]
            if is_end:
                await StreamQueries(tx).end(self.key.stream_id, events)
            elif events:
                await StreamQueries(tx).append(self.key.stream_id, events)

        await self._commit(self._context.finish, change_and_append, final=final)

    # ---- called by commits, which hold `lock`

    @property
    def is_waiting(self) -> bool:
        """Whether there are events to commit and no commit is in progress."""
        is_unlocked = not self._num_changes and not self.lock.locked()
        return bool(self._buffer) and is_unlocked and self._failure is None

    @property
    def num_bytes(self) -> int:
        """Size of the buffered events and tokens."""
        return self._num_bytes

    def seal(self) -> Addition:
        """Return all buffered chunks, which are not modified any more."""
        self._num_sealed = len(self._buffer)
        return Addition(self.key, self._position, tuple(self._buffer))

    def mark_committed(self, addition: Addition, *, is_end: bool = False) -> int:
        """Remove committed chunks from the buffer and pass their events to readers.

        Returns the number of events.
        """
        texts = [text for chunk in addition.chunks for text in chunk.events]
        events = [Event(self._num_committed + index, text) for index, text in enumerate(texts)]
        del self._buffer[: len(addition.chunks)]
        self._num_sealed = 0
        self._position += len(addition.chunks)
        self._num_committed += len(events)
        self._num_bytes = sum(map(_size, self._buffer))
        self._tail.add(events, is_end=is_end)
        self._notify()
        return len(events)

    def fail(self, failure: Exception) -> None:
        """Fail the writer: later calls raise the error."""
        self._failure = failure
        self._notify()

    # ----

    async def _commit(
        self, write: _Write, change: Change[ResultT], *, final: Sequence[FinalEvents] = ()
    ) -> ResultT:
        """Commit the buffered events and a change, retrying while the database is unavailable.

        There is always a chunk, if need be an empty one, that shows whether the change was
        committed. `final` has the events that the change itself has appended.
        """
        results: list[ResultT] = []
        async with self._lock_for_change():
            self._check()
            if len(self._buffer) == self._num_sealed:
                self._buffer.append(Chunk())
            addition = self.seal()

            async def append_and_change(tx: Transaction) -> None:
                stream_id = self.key.stream_id
                num_stored = await StreamQueries(tx).append_chunks(
                    stream_id, addition.position, addition.chunks
                )
                if num_stored is None:
                    raise LeaseLost(f"the stream {stream_id} is closed")
                if num_stored < len(addition.chunks):
                    results[:] = [await change(tx)]

            await _retry(partial(write, append_and_change), self.key)
            events, is_end = final[0] if final else FinalEvents((), is_end=False)
            final_chunks = in_chunks(events) if events else []
            committed = replace(addition, chunks=(*addition.chunks, *final_chunks))
            self.mark_committed(committed, is_end=is_end)
        return results[0]

    @asynccontextmanager
    async def _lock_for_change(self) -> AsyncIterator[None]:
        """Take the lock; the group commit skips this stream from now on."""
        self._num_changes += 1
        try:
            async with self.lock:
                yield
        finally:
            self._num_changes -= 1

    def _append(self, chunks: Sequence[Chunk]) -> None:
        """Append chunks to the buffer; merge the first with the last one of the same turn."""
        first, *rest = chunks
        last = self._buffer[-1] if len(self._buffer) > self._num_sealed else None
        if last is not None and _can_merge(last, first):
            self._buffer[-1] = last.extended(first)
        else:
            self._buffer.append(first)
        self._buffer.extend(rest)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _notify(self) -> None:
        """Wake the tasks that wait for progress."""
        self._progress.set()
        self._progress = asyncio.Event()


async def _retry(write: Callable[[], Awaitable[None]], key: StreamKey) -> None:
    """Write, retrying while the database is unavailable."""
    while True:
        try:
            return await write()
        except Unavailable as error:
            _log.warning("events of %s are not committed yet: %s", key.stream_id, error)
            await asyncio.sleep(retry_delay_s(error))


def retry_delay_s(error: Unavailable) -> float:
    """Delay before the next try."""
    return _RETRY_DELAY_S if error.retry_after is None else error.retry_after


def _can_merge(one: Chunk, other: Chunk) -> bool:
    return one.turn == other.turn and len(one.events) + len(other.events) <= MAX_CHUNK_EVENTS


def _size(chunk: Chunk) -> int:
    texts = (*chunk.events, *chunk.held.parts)
    return sum(map(len, texts)) + TOKEN_BYTES * len(chunk.token_ids)
