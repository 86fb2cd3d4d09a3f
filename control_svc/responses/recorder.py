"""Records a response while it runs: in the database and the event log, in a caller's transaction,
or, with `store: false`, only as events for the client.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from control_svc.agent.drafts import Draft, DraftEvent, DraftKind, ItemAdded
from control_svc.agent.file_search import find_citations
from control_svc.agent.model import NO_USAGE, TurnResult, add_usage
from control_svc.conversations.queries import ConversationQueries
from control_svc.db.transaction import Transaction
from control_svc.event_log.queries import StreamQueries
from control_svc.event_log.writer import StreamWriter
from control_svc.inference.turns import Started, TurnUsage
from control_svc.items.input_items import Include, apply_include
from control_svc.items.model import FileSearchCall, Item, ItemStatus, Message, Reasoning, Text
from control_svc.items.queries import TimelineQueries
from control_svc.responses.content_cipher import ContentCipher
from control_svc.responses.events import (
    EventCodec,
    EventType,
    ResponseEvent,
    StateEvent,
    TurnProjection,
    call_ended_events,
    call_started_events,
)
from control_svc.responses.model import Response, ResponseState, Work
from control_svc.responses.queries import ResponseQueries

SendEvents = Callable[[Sequence[ResponseEvent]], Awaitable[None]]
"""Sends events to the client."""
_ANSWERED = (ResponseState.COMPLETED, ResponseState.INCOMPLETE)


class Update(NamedTuple):
    """A new state of a response, with its events and items."""

    turn: int
    response: Response
    events: Sequence[ResponseEvent]
    new_items: Sequence[Item] = ()
    changed_items: Sequence[Item] = ()


class EventSink(Protocol):
    """Stores a response. Each method may raise LeaseLost."""

    async def record(
        self, turn: int, events: Sequence[ResponseEvent], token_ids: Sequence[int] = ()
    ) -> None:
        """Record events and the token ids from which they result."""

    async def store(self, update: Update) -> None:
        """Record the events of an update and store its response and items."""

    async def end(self, update: Update) -> None:
        """Like `store`, for the last update."""


class StoredSink:
    """Stores a response with the writer of its stream."""

    def __init__(self, project: str, writer: StreamWriter, codec: EventCodec) -> None:
        self._project = project
        self._writer = writer
        self._encode = codec.encode

    async def record(
        self, turn: int, events: Sequence[ResponseEvent], token_ids: Sequence[int] = ()
    ) -> None:
        """Append events, which become visible with the next group commit."""
        await self._writer.add(list(map(self._encode, events)), token_ids, turn=turn)

    async def store(self, update: Update) -> None:
        """Commit the update with all events recorded before, in one transaction."""
        await self.record(update.turn, update.events)
        await self._writer.commit(lambda tx: _write_rows(tx, self._project, update), progress=True)

    async def end(self, update: Update) -> None:
        """End the response, its stream and its job in one transaction."""

        async def change(tx: Transaction) -> None:
            await _write_rows(tx, self._project, update)
            await close_conversation(tx, self._project, update.response)

        await self.record(update.turn, update.events)
        await self._writer.finish(change)


class TransactionSink:
    """Stores a response in a transaction that has locked its job and its row."""

    def __init__(self, project: str, tx: Transaction, codec: EventCodec) -> None:
        self._project = project
        self._tx = tx
        self._encode = codec.encode
        self._events: list[ResponseEvent] = []

    async def record(
        self, turn: int, events: Sequence[ResponseEvent], token_ids: Sequence[int] = ()
    ) -> None:
        """Collect events, which are stored by `end`."""
        self._events += events

    async def store(self, update: Update) -> None:
        """Collect the events and write the rows."""
        await self.record(update.turn, update.events)
        await _write_rows(self._tx, self._project, update)

    async def end(self, update: Update) -> None:
        """Write the rows and end the stream."""
        await self.store(update)
        await close_conversation(self._tx, self._project, update.response)
        encoded = list(map(self._encode, self._events))
        await StreamQueries(self._tx).end(self._project, update.response.id, encoded)


class NullSink:
    """Sends events to the client and stores nothing."""

    def __init__(self, send: SendEvents) -> None:
        self._send = send

    async def record(
        self, turn: int, events: Sequence[ResponseEvent], token_ids: Sequence[int] = ()
    ) -> None:
        """Send events."""
        if events:
            await self._send(events)

    async def store(self, update: Update) -> None:
        """Send the events of an update."""
        await self.record(update.turn, update.events)

    end = store


async def close_conversation(tx: Transaction, project: str, response: Response) -> None:
    """Unlock the conversation; add the input and output of the response if it has an answer."""
    if not response.conversation_id:
        return
    conversation = await ConversationQueries(tx).lock(project, response.conversation_id)
    if response.state in _ANSWERED:
        timelines = TimelineQueries(tx)
        output_ids = {item.id for item in response.output}
        items = [placed.item for placed in await timelines.read(project, response.id)]
        input_items = [item for item in items if item.id not in output_ids]
        await timelines.link(project, conversation.id, input_items)
        await timelines.link(project, conversation.id, response.output, origin=response.id)
    await ConversationQueries(tx).update(project, conversation.released_by(response.id))


async def _write_rows(tx: Transaction, project: str, update: Update) -> None:
    response = update.response
    for item in update.changed_items:
        await TimelineQueries(tx).update(project, item)
    await TimelineQueries(tx).append(project, response.id, update.new_items, origin=response.id)
    await ResponseQueries(tx).update(project, response)


class ResponseRecorder:
    """Records the progress of a response and holds its current state."""

    def __init__(
        self,
        project: str,
        response: Response,
        output: Sequence[Item],
        sink: EventSink,
        cipher: ContentCipher,
        drafts: Sequence[Draft] = (),
    ) -> None:
        """`output` are the items of completed turns, `drafts` those of the open turn."""
        self.response = response
        self.output = list(output)
        self._project = project
        self._sink = sink
        self._cipher = cipher
        self._held_events: list[ResponseEvent] = []
        self._projection = self._new_projection(drafts)
        self._drafts = list(drafts)
        self._turn_usage = NO_USAGE

    @property
    def has_begun(self) -> bool:
        """Whether the event `in_progress` has been recorded."""
        return self.response.state is not ResponseState.QUEUED

    async def begin(self) -> None:
        """Record that the response is in progress. Idempotent."""
        if not self.has_begun:
            self.response = self.response.start()
            await self._store(self._turn, [StateEvent(EventType.IN_PROGRESS, self.response)])

    async def turn_started(self, turn: int, started: Started) -> None:
        """Record that the model processes the prompt."""
        self._turn_usage = TurnUsage(started.prompt_tokens, started.cached_tokens, 0, 0)
        await self.begin()

    async def record(
        self, turn: int, changes: Sequence[DraftEvent], token_ids: Sequence[int]
    ) -> None:
        """Record output of the model."""
        self._drafts += [each.draft for each in changes if isinstance(each, ItemAdded)]
        self._turn_usage = add_usage(self._turn_usage, TurnUsage(0, 0, len(token_ids), 0))
        events = self._projection.record(changes)
        if self._projection.is_held:
            self._held_events += events
        else:
            await self._sink.record(turn, events, token_ids)

    async def turn_ended(self, turn: TurnResult, *, awaits_client: bool) -> None:
        """Store a completed turn, after which hosted calls follow."""
        items, events = self._turn_output(turn)
        work = _add_turn(self.response.work, turn, awaits_client=awaits_client)
        self.response = replace(self.response, work=work)
        await self._store(turn.number, events, items)
        self._held_events, self._drafts, self._turn_usage = [], [], NO_USAGE
        self._projection = self._new_projection(())

    async def call_started(self, item: Item) -> None:
        """Record the start of a hosted call."""
        await self._sink.record(self._turn, call_started_events(item, self._output_index(item)))

    async def call_ended(self, item: Item) -> None:
        """Store the result of a hosted call."""
        events = call_ended_events(item, self._visible(item), self._output_index(item))
        self.output = [item if old.id == item.id else old for old in self.output]
        update = Update(self._turn, self.response, events, changed_items=[item])
        await self._sink.store(update)

    async def add_compaction(self, item: Item, usage: TurnUsage) -> None:
        """Store a compaction item, which replaces earlier items."""
        work = self.response.work
        work = replace(work, summaries=add_usage(work.summaries, usage))
        self.response = replace(self.response, work=work, is_compacted=True)
        await self.add_items(item)

    async def add_items(self, *items: Item) -> None:
        """Store items that the server creates between two turns."""
        await self._store(self._turn, self._new_projection(()).end(items), items)
        self._projection = self._new_projection(())

    async def set_context_start(self, item_id: str) -> None:
        """Store the id of the first item in further prompts."""
        self.response = replace(self.response, context_start=item_id)
        await self._store(self._turn, [])

    async def end(
        self, turn: TurnResult | None, event_type: EventType, finish: Callable[[Work], Response]
    ) -> None:
        """Store the last turn and the end of the response. `finish` returns the final response."""
        number, work = self._turn, self.response.work
        items, events = ([], []) if turn is None else self._turn_output(turn)
        if turn is not None:
            work = _add_turn(work, turn, awaits_client=False)
        self.output += items
        self.response = replace(finish(work), work=work, output=tuple(self.output))
        visible = tuple(map(self._visible, self.output))
        last = StateEvent(event_type, replace(self.response, output=visible))
        await self._sink.end(Update(number, self.response, [*events, last], items))

    def interrupted_turn(self) -> TurnResult | None:
        """Return the open turn with its incomplete items; None if no turn is open."""
        if not self._drafts and not any(self._turn_usage):
            return None
        items = [
            draft.item(ItemStatus.COMPLETED if draft.is_done else ItemStatus.INCOMPLETE)
            for draft in self._drafts
            if draft.kind is not DraftKind.HOSTED
        ]
        return TurnResult(number=self._turn, items=tuple(items), usage=self._turn_usage)

    @property
    def _turn(self) -> int:
        return self.response.work.num_turns

    def _turn_output(self, turn: TurnResult) -> tuple[list[Item], list[ResponseEvent]]:
        """Return the items of a turn and its events that have not been recorded yet."""
        items = [self._complete(item) for item in turn.items]
        return items, [*self._held_events, *self._projection.end(items)]

    async def _store(
        self, turn: int, events: Sequence[ResponseEvent], items: Sequence[Item] = ()
    ) -> None:
        self.output += items
        await self._sink.store(Update(turn, self.response, events, items))

    def _new_projection(self, drafts: Sequence[Draft]) -> TurnProjection:
        return TurnProjection(len(self.output), self._visible, drafts)

    def _output_index(self, item: Item) -> int:
        return next(index for index, other in enumerate(self.output) if other.id == item.id)

    def _visible(self, item: Item) -> Item:
        """Return an item as the client sees it."""
        return apply_include(self._complete(item), self.response.settings.include)

    def _complete(self, item: Item) -> Item:
        """Add encrypted reasoning, if requested, or citations. Deterministic."""
        match item.content:
            case Reasoning(sealed="") as reasoning if (
                Include.SEALED_REASONING in self.response.settings.include
            ):
                sealed = self._cipher.seal_reasoning(self._project, reasoning.text)
                return replace(item, content=replace(reasoning, sealed=sealed))
            case Message(content=(Text(annotations=()) as text,)) as message:
                contents = (other.content for other in self.output)
                searches = [each for each in contents if isinstance(each, FileSearchCall)]
                cited = replace(text, annotations=find_citations(text.text, searches))
                return replace(item, content=replace(message, content=(cited,)))
            case _:
                return item


def _add_turn(work: Work, turn: TurnResult, *, awaits_client: bool) -> Work:
    return replace(
        work,
        num_turns=work.num_turns + 1,
        usage=add_usage(work.usage, turn.usage),
        num_hosted_calls=work.num_hosted_calls + turn.num_hosted_calls,
        awaits_client=awaits_client,
    )
