"""Tables and SQL of event streams."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from functools import reduce
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from control_svc.base.ids import creation_key
from control_svc.db.cleanup import ROWS_AT_ONCE, CleanupStep, Deleted
from control_svc.db.tables import (
    Instant,
    Key,
    OwnedRow,
    Project,
    pack_ints,
    pack_texts,
    unpack_ints,
    unpack_texts,
)
from control_svc.db.transaction import (
    CrossProjectQueries,
    CrossProjectTransaction,
    Queries,
    Transaction,
)
from control_svc.event_log.model import (
    MAX_CHUNK_EVENTS,
    NOTHING_HELD,
    Addition,
    Chunk,
    Event,
    Held,
    ReadResult,
    Stream,
    StreamClosed,
    StreamKey,
    StreamPosition,
    StreamState,
    in_chunks,
)


class StreamRow(OwnedRow):
    """A stream. Its id is that of its object."""

    __tablename__ = "streams"
    __table_args__ = (sa.Index(None, "state", "ended_at"),)

    id: Mapped[str] = mapped_column(Key, primary_key=True)
    next_number: Mapped[int] = mapped_column(sa.BigInteger)
    num_chunks: Mapped[int] = mapped_column(sa.BigInteger)
    # state
    state: Mapped[str] = mapped_column(sa.String(16))
    ended_at: Mapped[datetime | None] = mapped_column(Instant)


class StreamChunkRow(OwnedRow):
    """Events and tokens that one commit added to a stream.

    `past` is the number after the last event of the chunk. It precedes `position` in the key, so
    that the next events of a reader are a range of the key, wherever chunks begin. A chunk without
    events has the `past` of the one before.
    """

    __tablename__ = "stream_chunks"
    __table_args__ = (
        sa.ForeignKeyConstraint(
            ["project", "stream_id"], ["streams.project", "streams.id"], ondelete="CASCADE"
        ),
    )

    stream_id: Mapped[str] = mapped_column(Key, primary_key=True)
    past: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True)
    position: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True)
    num_events: Mapped[int] = mapped_column(sa.Integer)
    events: Mapped[bytes] = mapped_column(sa.LargeBinary)
    """`num_events` texts, and behind them, where release 0.2 reads nothing, `_pack_held`."""
    turn: Mapped[int] = mapped_column(sa.Integer)
    token_ids: Mapped[bytes] = mapped_column(sa.LargeBinary)


_POSITIONS_PER_QUERY: Final = 100
"""Longer queries take too long to compile."""


class StreamQueries(Queries):
    """Streams of a project, in the transactions that change their objects. The group commit and
    the readers use `EventLogQueries`."""

    async def create(self, stream_id: str, events: Sequence[bytes] = ()) -> None:
        """Create a stream with its first events."""
        row = {"id": stream_id, "next_number": 0, "num_chunks": 0, "state": StreamState.OPEN}
        await self._insert(StreamRow, row)
        if events:
            await self.append(stream_id, events)

    async def get(self, stream_id: str) -> Stream | None:
        """Return a stream; None if it does not exist."""
        key = StreamKey(self._project, stream_id)
        return (await _streams(self._session, [key])).get(key)

    async def oldest_open(self) -> str:
        """The creation key of the stream that has been open longest; empty if none is open."""
        oldest = (
            sa.select(sa.func.min(StreamRow.id))
            .where(self._mine(StreamRow), StreamRow.state == StreamState.OPEN)
            .group_by(sa.func.length(StreamRow.id))  # ids with the same prefix have the same length
        )
        return min(map(creation_key, await self._session.scalars(oldest)), default="")

    async def append(
        self,
        stream_id: str,
        events: Sequence[bytes],
        *,
        turn: int = 0,
        token_ids: Sequence[int] = (),
    ) -> None:
        """Lock the stream and append events. Raises StreamClosed."""
        key, stream = await self._lock(stream_id)
        if stream.state is not StreamState.OPEN:
            raise StreamClosed(stream_id)
        await _append(self._session, [(key, stream, in_chunks(events, turn, token_ids))])
        self._tx.announce(key.topic)

    async def append_chunks(
        self, stream_id: str, position: int, chunks: Sequence[Chunk]
    ) -> int | None:
        """Lock the stream and append the chunks that are not stored already; `position` as in
        `Addition`. Returns how many are; None if the stream has ended or another writer has
        appended to it."""
        addition = Addition(StreamKey(self._project, stream_id), position, chunks)
        num_stored = await _append_missing(self._tx, [addition])
        return num_stored.get(addition.key)

    async def end(self, stream_id: str, events: Sequence[bytes] = ()) -> None:
        """End a stream with its last events. Does nothing if it has ended already, since the
        transaction may be a retry. Raises StreamClosed if the stream does not exist.
        """
        key, stream = await self._lock(stream_id)
        if stream.state is not StreamState.OPEN:
            return
        if events:
            await self.append(stream_id, events)
        ended = {"state": StreamState.ENDED, "ended_at": await self._tx.now()}
        await self._session.execute(
            self._update(StreamRow, StreamRow.id == stream_id).values(ended)
        )
        self._tx.announce(key.topic)

    async def reopen(self, stream_id: str, events: Sequence[bytes]) -> None:
        """Continue a stream that has ended, with new events. Readers get them after the last one;
        those before may have expired. Raises StreamClosed if the stream does not exist.
        """
        await self._lock(stream_id)
        opened = {"state": StreamState.OPEN, "ended_at": None}
        await self._session.execute(
            self._update(StreamRow, StreamRow.id == stream_id).values(opened)
        )
        await self.append(stream_id, events)

    async def tokens(self, stream_id: str, turn: int) -> list[int]:
        """Read the token ids of a turn, in order."""
        packed = await self._session.scalars(
            sa.select(StreamChunkRow.token_ids)
            .where(*self._in_turn(stream_id, turn))
            .order_by(StreamChunkRow.past, StreamChunkRow.position)
        )
        return unpack_ints(b"".join(packed))

    async def held(self, stream_id: str, turn: int) -> Sequence[bytes]:
        """Read what is held back behind the tokens of a turn."""
        chunk = StreamChunkRow
        rows = await self._session.execute(
            sa.select(chunk.num_events, chunk.events)
            .where(*self._in_turn(stream_id, turn), chunk.token_ids != b"")
            .order_by(chunk.past, chunk.position)
        )
        return reduce(Held.then, (_unpack_held(*row) for row in rows), NOTHING_HELD).parts

    async def events_of_turn(self, stream_id: str, turn: int) -> list[Event]:
        """Read the events of a turn, from which a worker restores the turn."""
        chunk = StreamChunkRow
        query = (
            sa.select(chunk.past, chunk.num_events, chunk.events)
            .where(*self._in_turn(stream_id, turn))
            .order_by(chunk.past, chunk.position)
        )
        return _unpack_rows(await self._session.execute(query))

    async def drop(self, stream_id: str) -> None:
        """Delete a stream if it exists."""
        await self._session.execute(self._delete(StreamRow, StreamRow.id == stream_id))
        self._tx.announce(StreamKey(self._project, stream_id).topic)

    async def _lock(self, stream_id: str) -> tuple[StreamKey, Stream]:
        key = StreamKey(self._project, stream_id)
        streams = await _streams(self._session, [key], locked=True)
        if key not in streams:
            raise StreamClosed(stream_id)
        return key, streams[key]

    def _in_turn(self, stream_id: str, turn: int) -> tuple[sa.ColumnElement[bool], ...]:
        chunk = StreamChunkRow
        return (self._mine(chunk), chunk.stream_id == stream_id, chunk.turn == turn)


class EventLogQueries(CrossProjectQueries):
    """The streams of all projects, for batched writes and reads."""

    async def append(self, additions: Collection[Addition]) -> dict[StreamKey, int]:
        """Append chunks to streams, which stay locked until the end of the transaction.

        Returns for each stream how many of the chunks were stored already. Streams that have ended
        or that another writer has appended to are left out.
        """
        return await _append_missing(self._tx, additions)

    async def read(self, positions: Collection[StreamPosition]) -> dict[StreamPosition, ReadResult]:
        """Read the next events at positions; those of streams that do not exist are left out.

        Returns at most `MAX_CHUNK_EVENTS` events per position, and at least one if there is one.
        """
        # PostgreSQL refuses some characters, and with them the whole query.
        valid = [each for each in positions if each.key.stream_id.isprintable()]
        streams = await _streams(self._session, {each.key for each in valid})
        results = {each: ReadResult(streams[each.key], []) for each in valid if each.key in streams}
        unread = [each for each in results if each.number < streams[each.key].next_number]
        for first in range(0, len(unread), _POSITIONS_PER_QUERY):
            group = unread[first : first + _POSITIONS_PER_QUERY]
            for position, events in (await self._next_events(group)).items():
                results[position] = ReadResult(streams[position.key], events)
        return results

    async def _next_events(
        self, positions: Sequence[StreamPosition]
    ) -> dict[StreamPosition, list[Event]]:
        rows = await self._session.execute(_select_next_chunks(positions))
        events: dict[StreamPosition, list[Event]] = {position: [] for position in positions}
        for project, stream_id, number, *chunk in rows:
            position = StreamPosition(StreamKey(project, stream_id), number)
            events[position] += [each for each in _unpack_rows([chunk]) if each.number >= number]
        return events


async def _streams(
    session: AsyncSession, keys: Collection[StreamKey], *, locked: bool = False
) -> dict[StreamKey, Stream]:
    """Select streams by key, in key order, to avoid deadlocks."""
    row = StreamRow
    query = (
        sa.select(row.project, row.id, row.next_number, row.num_chunks, row.state)
        .where(sa.tuple_(row.project, row.id).in_([tuple(key) for key in keys]))
        .order_by(row.project, row.id)
    )
    rows = await session.execute(query.with_for_update() if locked else query)
    return {
        StreamKey(project, stream_id): Stream(next_number, num_chunks, StreamState(state))
        for project, stream_id, next_number, num_chunks, state in rows
    }


async def _append_missing(
    tx: Transaction | CrossProjectTransaction, additions: Collection[Addition]
) -> dict[StreamKey, int]:
    """Append the chunks that are not stored already; see `EventLogQueries.append`."""
    streams = await _streams(tx.session, [each.key for each in additions], locked=True)
    num_stored: dict[StreamKey, int] = {}
    missing = []
    for addition in additions:
        key, stream = addition.key, streams.get(addition.key)
        if stream is None or stream.state is not StreamState.OPEN:
            continue
        num_chunks = stream.num_chunks - addition.position
        if not 0 <= num_chunks <= len(addition.chunks):
            continue
        num_stored[key] = num_chunks
        missing.append((key, stream, addition.chunks[num_chunks:]))
        tx.announce(key.topic)
    await _append(tx.session, missing)
    return num_stored


async def _append(
    session: AsyncSession, additions: Sequence[tuple[StreamKey, Stream, Sequence[Chunk]]]
) -> None:
    """Append chunks to locked streams; each stream occurs once."""
    chunk_rows: list[dict[str, Any]] = []
    stream_updates: list[dict[str, Any]] = []
    for key, stream, chunks in additions:
        number, position = stream.next_number, stream.num_chunks
        for chunk in chunks:
            number += len(chunk.events)
            chunk_rows.append(_chunk_row(key, number, position, chunk))
            position += 1
        if chunks:
            stream_updates.append(
                {"key_project": key.project, "key_id": key.stream_id}
                | {"number": number, "chunks": position}
            )
    if chunk_rows:
        await session.execute(sa.insert(StreamChunkRow), chunk_rows)
        connection = await session.connection()  # the session has no executemany for this update
        await connection.execute(_UPDATE_STREAM, stream_updates)


_UPDATE_STREAM: Final = (
    sa.update(StreamRow)
    .where(StreamRow.project == sa.bindparam("key_project"), StreamRow.id == sa.bindparam("key_id"))
    .values(next_number=sa.bindparam("number"), num_chunks=sa.bindparam("chunks"))
)


def _chunk_row(key: StreamKey, past: int, position: int, chunk: Chunk) -> dict[str, Any]:
    return {
        "project": key.project,
        "stream_id": key.stream_id,
        "past": past,
        "position": position,
        "num_events": len(chunk.events),
        "events": pack_texts(chunk.events) + _pack_held(chunk.held),
        "turn": chunk.turn,
        "token_ids": pack_ints(chunk.token_ids),
    }


def _pack_held(held: Held) -> bytes:
    """How many are held back, how many parts follow, and these; nothing if nothing is held."""
    return (
        pack_ints([held.num_held, len(held.parts)]) + pack_texts(held.parts)
        if held.num_held
        else b""
    )


def _unpack_held(num_events: int, packed: bytes) -> Held:
    start = 4 * num_events + sum(map(len, unpack_texts(packed, num_events)))
    if start == len(packed):
        return NOTHING_HELD
    count, num_parts = unpack_ints(packed[start : start + 8])
    return Held(unpack_texts(packed[start + 8 :], num_parts), count)


def _unpack_rows(rows: Any) -> list[Event]:
    return [
        Event(past - num_events + index, data)
        for past, num_events, packed in rows
        for index, data in enumerate(unpack_texts(packed, num_events))
    ]


def _select_next_chunks(positions: Sequence[StreamPosition]) -> sa.Select[Any]:
    """Select the chunks with the next events at positions.

    The `past` of the chunk with event n is at most n + `MAX_CHUNK_EVENTS`.
    """
    position = (
        sa.values(
            sa.column("project", Project),
            sa.column("stream_id", Key),
            sa.column("number", sa.BigInteger),
            name="positions",
        )
        .data([(*each.key, each.number) for each in positions])
        .cte("positions")
    )
    chunk = StreamChunkRow
    return (
        sa.select(
            chunk.project,
            chunk.stream_id,
            position.c.number,
            chunk.past,
            chunk.num_events,
            chunk.events,
        )
        .join(
            position,
            (chunk.project == position.c.project)
            & (chunk.stream_id == position.c.stream_id)
            & (chunk.past > position.c.number)
            & (chunk.past <= position.c.number + MAX_CHUNK_EVENTS),
        )
        .order_by(chunk.past, chunk.position)
    )


def delete_streams_ended_before(age: timedelta, limit: int = ROWS_AT_ONCE) -> CleanupStep:
    """Return the step of the sweeper that deletes the events of streams that ended more than `age`
    ago, in transactions of about `limit` chunks.
    """

    async def delete_events(tx: CrossProjectTransaction, now: datetime) -> Deleted:
        ended = await tx.session.execute(
            sa.select(StreamRow.project, StreamRow.id, StreamRow.num_chunks)
            .where(StreamRow.state == StreamState.ENDED, StreamRow.ended_at < now - age)
            .order_by(StreamRow.ended_at)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        keys: list[tuple[str, str]] = []
        total = 0
        for project, stream_id, num_chunks in ended:
            total += num_chunks
            if keys and total > limit:
                break
            keys.append((project, stream_id))
        chunk = sa.tuple_(StreamChunkRow.project, StreamChunkRow.stream_id)
        await tx.session.execute(sa.delete(StreamChunkRow).where(chunk.in_(keys)))
        await tx.session.execute(
            sa.update(StreamRow)
            .where(sa.tuple_(StreamRow.project, StreamRow.id).in_(keys))
            .values(state=StreamState.SWEPT)
        )
        return Deleted(len(keys))

    return delete_events
