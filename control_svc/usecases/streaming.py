"""What the work behind a run or a response says to its readers, and how they hear of it.

Those who do the work see a writer, those who serve it see followers; neither knows how events are
gathered into commits, or from where they are read. A response that is not stored has a writer of
its own, which keeps nothing.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol, TypeVar

from control_svc.domain.streams import Event
from control_svc.storage.unit_of_work import Transaction
from control_svc.usecases.working import JobContext
from svc_kit.errors import DomainError

ResultT = TypeVar("ResultT")
Change = Callable[[Transaction], Awaitable[ResultT]]
"""A change of rows. It may be run again from its start, as in every transaction."""


class LastWords(NamedTuple):
    """The last events of an attempt."""

    events: Sequence[bytes]
    is_end: bool
    """Whether they are the stream's last, too."""


class StreamWriter(Protocol):
    """The one writer of a stream, for the time of one attempt of its job.

    Everything becomes visible in the order in which it was said. While the database is away, events
    are kept, and waited for: nothing that was computed is lost. Each method raises LeaseLost once
    the job is somebody else's, or the stream has been ended or dropped; nothing is written then.
    """

    @property
    def next_number(self) -> int:
        """The number of the event that is added next, for events that contain it."""

    async def add(
        self, events: Sequence[bytes], token_ids: Sequence[int] = (), *, turn: int = 0
    ) -> None:
        """Append events, and tokens of a turn; they are visible after the next group commit.

        Returns at once, unless too much is unwritten.
        """

    async def flush(self) -> None:
        """Return once everything that was added is visible."""

    async def commit(self, change: Change[ResultT], *, progress: bool = False) -> ResultT:
        """Commit everything that was added, and a change of rows, in one transaction.

        It happens once, also where the database's answer gets lost. `progress`: as for
        `JobContext.write`.
        """

    async def finish(self, change: Change[None]) -> None:
        """As `commit`, and the job and the stream are done with it."""

    async def conclude(self, change: Change[LastWords]) -> None:
        """As `commit`, and the job is done with it. The change says the last events, which can tell
        what it found, such as that the object was to be cancelled meanwhile."""


class StreamWriters(Protocol):
    """Opens writers."""

    def writer(
        self, context: JobContext, stream_id: str
    ) -> AbstractAsyncContextManager[StreamWriter]:
        """The writer of a stream that exists, which goes on behind what is committed.

        What is not committed when it is left is not written. Raises LeaseLost.
        """


class Followers(Protocol):
    """Reads streams, from any process."""

    def follow(
        self, project: str, stream_id: str, after: int, *, missing: DomainError, field: str
    ) -> AsyncGenerator[Sequence[Event], None]:
        """The events beyond the one numbered `after`, those of a commit together, until the end.

        `BEFORE_FIRST`: all. Raises `missing` where there is no such stream, or it is dropped
        meanwhile, StreamExpired for one whose events are gone, and OutOfRange, naming `field`, for
        a number that no event has yet.
        """
