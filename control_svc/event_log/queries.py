"""Tables and SQL of event streams."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    Select,
    String,
    bindparam,
    column,
    delete,
    func,
    insert,
    select,
    tuple_,
    update,
    values,
)
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from control_svc.base.ids import creation_key
from control_svc.db.cleanup import ROWS_AT_ONCE, CleanupStep, Deleted
from control_svc.db.tables import (
    Instant,
    Key,
    Project,
    Table,
    pack_ints,
    pack_texts,
    unpack_ints,
    unpack_texts,
)
from control_svc.db.transaction import Transaction
from control_svc.event_log.model import (
    MAX_CHUNK_EVENTS,
    Addition,
    Chunk,
    Event,
    ReadResult,
    Stream,
    StreamClosed,
    StreamKey,
    StreamPosition,
    StreamState,
    in_chunks,
)


class StreamRow(Table):
    """The events of an object, as a whole; its id is the object's."""

    __tablename__ = "streams"
    __table_args__ = (Index(None, "state", "ended_at"),)

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)
    # how far it is
    next_number: Mapped[int] = mapped_column(BigInteger)
    num_chunks: Mapped[int] = mapped_column(BigInteger)
    # its life
    state: Mapped[str] = mapped_column(String(16))
    ended_at: Mapped[datetime | None] = mapped_column(Instant)


class StreamChunkRow(Table):
    """What one commit added to a stream.

    The key begins with the number behind the chunk's events, so that a reader's next events are a
    range of it, wherever the chunks begin. Chunks without events have the number of the one before.
    """

    __tablename__ = "stream_chunks"
    __table_args__ = (
        ForeignKeyConstraint(
            ["project", "stream_id"], ["streams.project", "streams.id"], ondelete="CASCADE"
        ),
    )

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    stream_id: Mapped[str] = mapped_column(Key, primary_key=True)
    past: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    position: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    num_events: Mapped[int] = mapped_column(Integer)
    events: Mapped[bytes] = mapped_column(LargeBinary)
    turn: Mapped[int] = mapped_column(Integer)
    token_ids: Mapped[bytes] = mapped_column(LargeBinary)


_PLACES_AT_ONCE: Final = 100
"""A longer query would take too long to be put together."""


class StreamQueries:
    """The streams of a project, in one transaction."""

    def __init__(self, tx: Transaction) -> None:
        self._session = tx.session
        self._now = tx.now
        self._announce = tx.announce

    async def create(self, project: str, stream_id: str, events: Sequence[bytes] = ()) -> None:
        """Open a stream, with its first events."""
        await self._session.execute(
            insert(StreamRow).values(
                project=project, id=stream_id, next_number=0, num_chunks=0, state=StreamState.OPEN
            )
        )
        if events:
            await self.append(project, stream_id, events)

    async def get(self, project: str, stream_id: str) -> Stream | None:
        """How far a stream is; None: there is none."""
        key = StreamKey(project, stream_id)
        return (await _streams(self._session, [key])).get(key)

    async def oldest_open(self, project: str) -> str:
        """The age of the stream that has been open longest; empty: none is."""
        oldest = (
            select(func.min(StreamRow.id))
            .where(StreamRow.project == project, StreamRow.state == StreamState.OPEN)
            .group_by(func.length(StreamRow.id))  # ids of one prefix are of one length
        )
        return min(map(creation_key, await self._session.scalars(oldest)), default="")

    async def append(
        self,
        project: str,
        stream_id: str,
        events: Sequence[bytes],
        *,
        turn: int = 0,
        token_ids: Sequence[int] = (),
    ) -> int:
        """Append events; the number of the first. Until the end of the transaction nobody else
        appends. Raises StreamClosed."""
        key = StreamKey(project, stream_id)
        stream = await self._locked(key)
        if stream.state is not StreamState.OPEN:
            raise StreamClosed(stream_id)
        await _append(self._session, [(key, stream, in_chunks(events, turn, token_ids))])
        self._announce(key.topic)
        return stream.next_number

    async def end(self, project: str, stream_id: str, events: Sequence[bytes] = ()) -> None:
        """Append the last events. What has ended is left as it is: the work that ends an object may
        run again. Raises StreamClosed where there is no stream."""
        key = StreamKey(project, stream_id)
        if (await self._locked(key)).state is not StreamState.OPEN:
            return
        if events:
            await self.append(project, stream_id, events)
        await self._session.execute(
            update(StreamRow)
            .where(StreamRow.project == project, StreamRow.id == stream_id)
            .values(state=StreamState.ENDED, ended_at=await self._now())
        )
        self._announce(key.topic)

    async def read(
        self, project: str, stream_id: str, after: int, limit: int = MAX_CHUNK_EVENTS
    ) -> list[Event]:
        """At most `limit` events beyond the one of a number. Empty: none yet, or none any more."""
        past = StreamChunkRow.past
        query = _events_of(project, stream_id).where(
            past > after + 1, past <= after + limit + MAX_CHUNK_EVENTS
        )
        events = _unpacked(await self._session.execute(query))
        return [event for event in events if event.number > after][:limit]

    async def tokens(self, project: str, stream_id: str, turn: int) -> list[int]:
        """The tokens of a turn, in their order."""
        packed = await self._session.scalars(
            select(StreamChunkRow.token_ids)
            .where(
                StreamChunkRow.project == project,
                StreamChunkRow.stream_id == stream_id,
                StreamChunkRow.turn == turn,
            )
            .order_by(StreamChunkRow.past, StreamChunkRow.position)
        )
        return unpack_ints(b"".join(packed))

    async def events_of_turn(self, project: str, stream_id: str, turn: int) -> list[Event]:
        """The events that were appended for a turn, to rebuild from them what its writer knew."""
        query = _events_of(project, stream_id).where(StreamChunkRow.turn == turn)
        return _unpacked(await self._session.execute(query))

    async def drop(self, project: str, stream_id: str) -> None:
        """Forget a stream, with its object; one that is not there is no error."""
        await self._session.execute(
            delete(StreamRow).where(StreamRow.project == project, StreamRow.id == stream_id)
        )
        self._announce(StreamKey(project, stream_id).topic)

    async def _locked(self, key: StreamKey) -> Stream:
        found = await _streams(self._session, [key], locked=True)
        if key not in found:
            raise StreamClosed(key.stream_id)
        return found[key]


class EventLogQueries:
    """The streams of all projects, for what writes and reads many of them at once."""

    def __init__(self, tx: Transaction) -> None:
        self._session = tx.session
        self._announce = tx.announce

    async def append(self, additions: Collection[Addition]) -> dict[StreamKey, int]:
        """Append events and return the number of the first; the stream stays locked until the end
        of the transaction. Raises StreamClosed.
        """
        streams = await _streams(self._session, [each.key for each in additions], locked=True)
        had: dict[StreamKey, int] = {}
        missing = []
        for addition in additions:
            stream = streams.get(addition.key)
            if stream is None or not _suits(addition, stream):
                continue
            had[addition.key] = stream.num_chunks - addition.position
            missing.append((addition.key, stream, addition.chunks[had[addition.key] :]))
            self._announce(addition.key.topic)
        await _append(self._session, missing)
        return had

    async def read(self, wanted: Collection[StreamPosition]) -> dict[StreamPosition, ReadResult]:
        """What comes next at places in streams; those in streams that do not exist are left out.

        At most `MAX_CHUNK_EVENTS` events each, and at least one where there is one.
        """
        # Others are not asked for: a database may refuse them, and all that is read beside them.
        places = [place for place in wanted if place.key.stream_id.isprintable()]
        streams = await _streams(self._session, {place.key for place in places})
        found = {
            place: ReadResult(streams[place.key], []) for place in places if place.key in streams
        }
        behind = [
            place for place, reading in found.items() if place.number < reading.stream.next_number
        ]
        for first in range(0, len(behind), _PLACES_AT_ONCE):
            some = behind[first : first + _PLACES_AT_ONCE]
            for place, events in (await self._next_events(some)).items():
                found[place] = ReadResult(streams[place.key], events)
        return found

    async def _next_events(
        self, places: Sequence[StreamPosition]
    ) -> dict[StreamPosition, list[Event]]:
        rows = await self._session.execute(_chunks_at(places))
        found: dict[StreamPosition, list[Event]] = {place: [] for place in places}
        for project, stream_id, number, past, num_events, packed in rows:
            first = past - num_events
            place = StreamPosition(StreamKey(project, stream_id), number)
            found[place].extend(
                Event(first + index, data)
                for index, data in enumerate(unpack_texts(packed, num_events))
                if first + index >= number
            )
        return found


def _suits(addition: Addition, stream: Stream) -> bool:
    had = stream.num_chunks - addition.position
    return stream.state is StreamState.OPEN and 0 <= had <= len(addition.chunks)


async def _streams(
    session: AsyncSession, keys: Collection[StreamKey], *, locked: bool = False
) -> dict[StreamKey, Stream]:
    """The existing streams, locked in one order to avoid deadlocks."""
    row = StreamRow
    query = (
        select(row.project, row.id, row.next_number, row.num_chunks, row.state)
        .where(tuple_(row.project, row.id).in_([tuple(key) for key in keys]))
        .order_by(row.project, row.id)
    )
    rows = await session.execute(query.with_for_update() if locked else query)
    return {
        StreamKey(project, stream_id): Stream(next_number, num_chunks, StreamState(state))
        for project, stream_id, next_number, num_chunks, state in rows
    }


async def _append(
    session: AsyncSession, additions: Sequence[tuple[StreamKey, Stream, Sequence[Chunk]]]
) -> None:
    """Append chunks to locked streams, each named once."""
    chunks: list[dict[str, Any]] = []
    streams: list[dict[str, Any]] = []
    for key, stream, added in additions:
        number, position = stream.next_number, stream.num_chunks
        for chunk in added:
            number += len(chunk.events)
            chunks.append(_chunk_row(key, number, position, chunk))
            position += 1
        if added:
            streams.append(
                {"of": key.project, "named": key.stream_id, "number": number, "chunks": position}
            )
    if chunks:
        await session.execute(insert(StreamChunkRow), chunks)
        connection = await session.connection()  # many rows at once are no business of the session
        await connection.execute(_ADVANCE, streams)


_ADVANCE: Final = (
    update(StreamRow)
    .where(StreamRow.project == bindparam("of"), StreamRow.id == bindparam("named"))
    .values(next_number=bindparam("number"), num_chunks=bindparam("chunks"))
)


def _chunk_row(key: StreamKey, past: int, position: int, chunk: Chunk) -> dict[str, Any]:
    return {
        "project": key.project,
        "stream_id": key.stream_id,
        "past": past,
        "position": position,
        "num_events": len(chunk.events),
        "events": pack_texts(chunk.events),
        "turn": chunk.turn,
        "token_ids": pack_ints(chunk.token_ids),
    }


def _events_of(project: str, stream_id: str) -> Select[int, int, bytes]:
    chunk = StreamChunkRow
    return (
        select(chunk.past, chunk.num_events, chunk.events)
        .where(chunk.project == project, chunk.stream_id == stream_id)
        .order_by(chunk.past, chunk.position)
    )


def _unpacked(rows: Any) -> list[Event]:
    return [
        Event(past - num_events + index, data)
        for past, num_events, packed in rows
        for index, data in enumerate(unpack_texts(packed, num_events))
    ]


def _chunks_at(places: Sequence[StreamPosition]) -> Select[Any]:
    """The chunks with the next events at places, with the places.

    No chunk has more than `MAX_CHUNK_EVENTS`, so the one with the next event is within as many
    numbers.
    """
    wanted = (
        values(
            column("project", Project),
            column("stream_id", Key),
            column("number", BigInteger),
            name="wanted",
        )
        .data([(*place.key, place.number) for place in places])
        .cte("wanted")
    )
    chunk = StreamChunkRow
    return (
        select(
            chunk.project,
            chunk.stream_id,
            wanted.c.number,
            chunk.past,
            chunk.num_events,
            chunk.events,
        )
        .join(
            wanted,
            (chunk.project == wanted.c.project)
            & (chunk.stream_id == wanted.c.stream_id)
            & (chunk.past > wanted.c.number)
            & (chunk.past <= wanted.c.number + MAX_CHUNK_EVENTS),
        )
        .order_by(chunk.past, chunk.position)
    )


def delete_streams_ended_before(age: timedelta, limit: int = ROWS_AT_ONCE) -> CleanupStep:
    """Return the step of the sweeper that deletes the events of streams that ended more than `age`
    ago, in transactions of about `limit` chunks.
    """

    async def delete_events(tx: Transaction, now: datetime) -> Deleted:
        ended = await tx.session.execute(
            select(StreamRow.project, StreamRow.id, StreamRow.num_chunks)
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
        chunk = tuple_(StreamChunkRow.project, StreamChunkRow.stream_id)
        await tx.session.execute(delete(StreamChunkRow).where(chunk.in_(keys)))
        await tx.session.execute(
            update(StreamRow)
            .where(tuple_(StreamRow.project, StreamRow.id).in_(keys))
            .values(state=StreamState.SWEPT)
        )
        return Deleted(len(keys))

    return delete_events
