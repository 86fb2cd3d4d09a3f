"""Durable event streams of runs and responses.

A stream is an append-only list of opaque events; its id is that of its run or response. Events are
numbered from 0 without gaps; the number is OpenAI's `sequence_number` and the `id:` of a
server-sent event. Readers see committed events only, so a reader that reconnects after a crash sees
the same bytes. A stream also stores the sampled token ids of each turn, so that a worker that takes
over can continue the turn. A stream has one writer: the worker that has the object's job, or, if
there is no job, the transaction that has locked the object's row.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar

from google.protobuf.message import Message

from control_svc.db.transaction import Transaction

BEFORE_FIRST: Final = -1
"""`after` of a reader that reads from the first event."""
MAX_CHUNK_EVENTS: Final = 256
"""Maximum number of events in a chunk. Bounds the range in which a query finds the next event."""


class StreamClosed(Exception):
    """The stream has ended or does not exist, so nothing can be appended.

    Internal: another worker has ended or deleted the object.
    """


class StreamState(StrEnum):
    OPEN = "open"
    ENDED = "ended"
    """Complete."""
    SWEPT = "swept"
    """Its events have been deleted, but its object exists."""


class StreamKey(NamedTuple):
    """Primary key of a stream."""

    project: str
    stream_id: str

    @property
    def topic(self) -> str:
        """Topic of notifications that events have been committed or the stream has ended."""
        return f"events/{self.stream_id}"


class StreamPosition(NamedTuple):
    """A reader's position: the number of the next event to read."""

    key: StreamKey
    number: int


class Event(NamedTuple):
    number: int
    data: bytes


class Held(NamedTuple):
    """What is held back behind tokens of a turn, in opaque parts."""

    parts: Sequence[bytes] = ()
    """Those of the tokens, each once."""
    num_held: int = 0
    """How many are held back: these, and before them the last ones of earlier tokens."""

    def then(self, later: "Held") -> "Held":
        """What is held back behind these tokens and later ones."""
        parts = (*self.parts, *later.parts)
        return Held(parts[max(0, len(parts) - later.num_held) :], later.num_held)


NOTHING_HELD: Final = Held()


@dataclass(frozen=True, slots=True)
class Chunk:
    """Events that are stored in one row, with the tokens of a turn that produced them.

    Either may be empty, since the text of a token may be held back.
    """

    events: Sequence[bytes] = ()
    turn: int = 0
    token_ids: Sequence[int] = ()
    held: Held = NOTHING_HELD

    def extended(self, later: "Chunk") -> "Chunk":
        """Both as one, of the same turn. Events without tokens change nothing of what is held."""
        return Chunk(
            [*self.events, *later.events],
            self.turn,
            [*self.token_ids, *later.token_ids],
            self.held.then(later.held) if later.token_ids else self.held,
        )


def in_chunks(
    events: Sequence[bytes],
    turn: int = 0,
    token_ids: Sequence[int] = (),
    held: Held = NOTHING_HELD,
) -> list[Chunk]:
    """Split events into chunks of at most `MAX_CHUNK_EVENTS`; at least one chunk."""
    first, rest = events[:MAX_CHUNK_EVENTS], range(MAX_CHUNK_EVENTS, len(events), MAX_CHUNK_EVENTS)
    return [
        Chunk(first, turn, token_ids, held),
        *(Chunk(events[start : start + MAX_CHUNK_EVENTS], turn) for start in rest),
    ]


@dataclass(frozen=True, slots=True)
class Stream:
    """Length and state of a stream."""

    next_number: int
    """Number of the next event, which is the count of events so far."""
    num_chunks: int
    state: StreamState


@dataclass(frozen=True, slots=True)
class Addition:
    """Chunks that a writer appends at a known position."""

    key: StreamKey
    position: int
    """Number of chunks before these. Chunks that are stored already were committed by a transaction
    whose response got lost; they are not appended again."""
    chunks: Sequence[Chunk]


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The next events of a stream, and the stream when they were read."""

    stream: Stream
    events: Sequence[Event]


def encode_events(events: Iterable[Message]) -> list[bytes]:
    """Serialize protos as events of a stream; equal protos have equal bytes."""
    return [event.SerializeToString(deterministic=True) for event in events]


ResultT = TypeVar("ResultT")
Change = Callable[[Transaction], Awaitable[ResultT]]
"""A change of rows in a transaction, which may be retried from its start."""


class FinalEvents(NamedTuple):
    """The last events of an attempt."""

    events: Sequence[bytes]
    is_end: bool
    """Whether the stream ends with them."""
