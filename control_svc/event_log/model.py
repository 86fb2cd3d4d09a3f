"""Event streams of runs and responses, stored for clients that read them now or later.

A stream is an append-only list of opaque events; its id is that of its run or response. Events are
numbered from 0 without gaps; the number is OpenAI's `sequence_number` and the `id:` of a
server-sent event. Readers see committed events only, so a reader that reconnects after a crash sees
the same bytes. A stream also stores the token ids that the model has sampled, by turn, so that a
worker that takes over continues behind them. Its one writer holds the fence of the object's job, in
a transaction that locks the job first, or, where there is no job, the lock of the object's row.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar

from control_svc.db.transaction import Transaction

BEFORE_FIRST: Final = -1
"""The position of a reader that has seen no event."""
MAX_CHUNK_EVENTS: Final = 256
"""The most events of a chunk: a reader knows from it how far it has to look for the next one."""


class StreamClosed(Exception):
    """The stream has ended or does not exist, so nothing can be appended. Internal: the object was
    ended or deleted by another worker.
    """


class StreamState(StrEnum):
    """Where a stream is."""

    OPEN = "open"
    ENDED = "ended"
    """No event will follow."""
    SWEPT = "swept"
    """Its events are gone; its object is not."""


class StreamKey(NamedTuple):
    """A stream among those of all projects."""

    project: str
    stream_id: str

    @property
    def topic(self) -> str:
        """What is announced when events of the stream have been committed, or it has ended."""
        return f"events/{self.stream_id}"


class StreamPosition(NamedTuple):
    """A place in a stream: before the event of a number."""

    key: StreamKey
    number: int


class Event(NamedTuple):
    """An event with its number."""

    number: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Chunk:
    """What is appended at once: events, and the tokens of a turn that they were made from.

    Either may be empty: the text of a token may be held back for a while.
    """

    events: Sequence[bytes] = ()
    turn: int = 0
    token_ids: Sequence[int] = ()


def in_chunks(events: Sequence[bytes], turn: int = 0, token_ids: Sequence[int] = ()) -> list[Chunk]:
    """Events and tokens as chunks of at most `MAX_CHUNK_EVENTS`; at least one chunk."""
    first, rest = events[:MAX_CHUNK_EVENTS], range(MAX_CHUNK_EVENTS, len(events), MAX_CHUNK_EVENTS)
    return [
        Chunk(first, turn, token_ids),
        *(Chunk(events[start : start + MAX_CHUNK_EVENTS], turn) for start in rest),
    ]


@dataclass(frozen=True, slots=True)
class Stream:
    """How far a stream is."""

    next_number: int
    """Of the event that comes next: the number of those that are there."""
    num_chunks: int
    state: StreamState


@dataclass(frozen=True, slots=True)
class Addition:
    """What a writer appends to a stream whose state it knows."""

    key: StreamKey
    position: int
    """How many chunks there are before. A chunk that is there already was committed by a try whose
    answer got lost, and is not appended again."""
    chunks: Sequence[Chunk]


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The next events of a stream, and where the stream was when they were read."""

    stream: Stream
    events: Sequence[Event]


ResultT = TypeVar("ResultT")
Change = Callable[[Transaction], Awaitable[ResultT]]
"""A change of rows. It may be run again from its start, as in every transaction."""


class FinalEvents(NamedTuple):
    """The last events of an attempt."""

    events: Sequence[bytes]
    is_end: bool
    """Whether they are the stream's last, too."""
