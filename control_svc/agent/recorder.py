"""Records the output of the agent loop. Runs and responses extend `TurnRecorder` by their events
and rows, and choose the sink that stores them.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import takewhile
from typing import Final, NamedTuple, Protocol

from google.protobuf.message import Message as Proto

from control_svc.agent.drafts import Draft, DraftEvent, ItemAdded
from control_svc.agent.model import NO_USAGE, TurnResult, add_usage
from control_svc.db.transaction import Transaction
from control_svc.event_log.model import NOTHING_HELD, Change, FinalEvents, Held, encode_events
from control_svc.event_log.queries import StreamQueries
from control_svc.inference.turns import Started, TurnUsage
from control_svc.items.model import CustomToolCall, FunctionCall, Item, Message, Reasoning


class EventSink(Protocol):
    """Stores events and rows; the `StreamWriter` of a job is one. Methods may raise LeaseLost."""

    async def add(
        self,
        events: Sequence[bytes],
        token_ids: Sequence[int] = (),
        *,
        turn: int = 0,
        held: Held = NOTHING_HELD,
    ) -> None:
        """Append events, the tokens of a turn from which they result, and what is held back."""

    async def commit(self, change: Change[None], *, progress: bool = False) -> None:
        """Commit the events and a change of rows in one transaction."""

    async def conclude(self, change: Change[FinalEvents]) -> None:
        """Like `commit`, for the last change, which returns the last events."""


class TransactionSink:
    """Stores in a transaction that has locked the job or the row of the object."""

    def __init__(self, tx: Transaction, stream_id: str) -> None:
        self._tx = tx
        self._stream_id = stream_id
        self._events: list[bytes] = []

    async def add(
        self,
        events: Sequence[bytes],
        token_ids: Sequence[int] = (),
        *,
        turn: int = 0,
        held: Held = NOTHING_HELD,
    ) -> None:
        """Collect events for `conclude`."""
        self._events += events

    async def commit(self, change: Change[None], *, progress: bool = False) -> None:
        await change(self._tx)

    async def conclude(self, change: Change[FinalEvents]) -> None:
        """Change rows and end the stream."""
        last_events, _ = await change(self._tx)
        await StreamQueries(self._tx).end(self._stream_id, [*self._events, *last_events])


class NullSink:
    """Sends events to the client and stores nothing."""

    def __init__(self, send: Callable[[Sequence[bytes]], Awaitable[None]]) -> None:
        self._send = send

    async def add(
        self,
        events: Sequence[bytes],
        token_ids: Sequence[int] = (),
        *,
        turn: int = 0,
        held: Held = NOTHING_HELD,
    ) -> None:
        if events:
            await self._send(events)

    async def commit(self, change: Change[None], *, progress: bool = False) -> None:
        """Do nothing: there are no rows."""

    async def conclude(self, change: Change[FinalEvents]) -> None:
        """Do nothing: there are no rows."""


class OpenTurn(NamedTuple):
    """What earlier attempts recorded of a turn that has not ended."""

    drafts: Sequence[Draft]
    token_ids: Sequence[int]
    held: Sequence[bytes] = ()
    """The log probabilities that are held back behind the tokens, as they were recorded."""


NO_TURN: Final = OpenTurn((), ())


async def read_open_turn(
    tx: Transaction,
    stream_id: str,
    number: int,
    restore_drafts: Callable[[Iterable[bytes]], Sequence[Draft]],
) -> OpenTurn:
    """Read the open turn with this number. `restore_drafts` restores its drafts from its events."""
    streams = StreamQueries(tx)
    events = await streams.events_of_turn(stream_id, number)
    token_ids = await streams.tokens(stream_id, number)
    held = await streams.held(stream_id, number)
    return OpenTurn(restore_drafts(event.data for event in events), token_ids, held)


def items_of_open_turn(output: Sequence[Item], *, awaits_client: bool) -> list[Item]:
    """The items of a turn that failed, at the end of the output of a run or response.

    A turn that was completed ends with calls that were carried out, or ends the object.
    `awaits_client`: the last turn was completed, and its other calls are the client's.
    """
    if awaits_client:
        return []
    return list(takewhile(lambda item: isinstance(item.content, _SAMPLED), reversed(output)))


_SAMPLED: Final = (Message, Reasoning, FunctionCall, CustomToolCall)
"""What the model writes, without the calls that the service carries out."""


class TurnRecorder(ABC):
    """Publishes and stores the output of one attempt: counts the open turn, and stores rows with
    their events.

    Events of `record` become visible soon after; the other methods return after their commit. The
    events of a turn suffice to restore its drafts. Each method may raise LeaseLost.
    """

    def __init__(
        self, sink: EventSink, open_turn: OpenTurn = NO_TURN, ignored: tuple[str, ...] = ()
    ) -> None:
        """`ignored` are the ignored parameters of earlier attempts."""
        self.sink = sink
        self.ignored_parameters = ignored
        self.open_turn = open_turn
        """The turn that the attempt continues."""
        self._drafts = list(open_turn.drafts)
        self.usage = TurnUsage(0, 0, len(open_turn.token_ids), 0)
        """Usage of the open turn."""
        self._changes: list[Change[None]] = []
        """Changes of rows, to commit with the next events."""

    async def turn_started(self, turn: int, started: Started) -> None:
        """Count the tokens of the prompt. Called again when a turn is resumed."""
        prompt = TurnUsage(started.prompt_tokens, started.cached_tokens, 0, 0)
        self.usage = add_usage(self.usage, prompt)
        names = dict.fromkeys((*self.ignored_parameters, *started.ignored))
        self.ignored_parameters = tuple(names)

    async def record(
        self,
        turn: int,
        changes: Sequence[DraftEvent],
        token_ids: Sequence[int],
        held: Held = NOTHING_HELD,
    ) -> None:
        """Record output, with the log probabilities of its tokens that are held back. `changes` is
        empty while the text of the tokens is."""
        self.usage = add_usage(self.usage, TurnUsage(0, 0, len(token_ids), 0))
        self._drafts += [each.draft for each in changes if isinstance(each, ItemAdded)]
        events = self._translate(changes)
        if events is None:
            return
        if events or token_ids:
            await self.sink.add(encode_events(events), token_ids, turn=turn, held=held)
        if self._changes:
            await self.sink.commit(self._pop_changes())

    @abstractmethod
    async def turn_ended(self, turn: TurnResult, *, awaits_client: bool) -> None:
        """Store a turn after which hosted calls follow: its items, usage and number, and whether
        the loop ends after these calls because the client has calls to answer.
        """

    @abstractmethod
    async def call_started(self, item: Item) -> None:
        """Record that the execution of a hosted call starts."""

    @abstractmethod
    async def call_ended(self, item: Item) -> None:
        """Store the item of a hosted call that was executed."""

    @abstractmethod
    def _translate(self, changes: Sequence[DraftEvent]) -> Sequence[Proto] | None:
        """Return the events of changes; None if these are only recorded at the end of the turn."""

    async def _commit(self, turn: int, events: Sequence[Proto], change: Change[None]) -> None:
        """Commit events of a turn, all pending changes of rows, and another change."""
        self._changes.append(change)
        await self.sink.add(encode_events(events), turn=turn)
        await self.sink.commit(self._pop_changes(), progress=True)

    def _close_turn(self) -> None:
        """Start to count the next turn."""
        self._drafts, self.usage = [], NO_USAGE

    def _pop_changes(self) -> Change[None]:
        """Combine the pending changes into one, and clear them."""
        changes, self._changes = self._changes, []

        async def apply(tx: Transaction) -> None:
            for change in changes:
                await change(tx)

        return apply
