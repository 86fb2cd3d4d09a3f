"""Records a response while it runs: in the database and the event log, in a caller's transaction,
or, with `store: false`, not at all.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Protocol

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
    LifeEvent,
    ResponseEvent,
    TurnProjection,
    call_begins,
    call_ended,
)
from control_svc.responses.model import Response, ResponseState, Work
from control_svc.responses.queries import ResponseQueries

Say = Callable[[Sequence[ResponseEvent]], Awaitable[None]]
"""Sends events to a reader."""
_KEPT_BY_CONVERSATIONS = (ResponseState.COMPLETED, ResponseState.INCOMPLETE)


class StoredSink:
    """Keeps a response by the writer of its stream."""

    def __init__(self, project: str, writer: StreamWriter, codec: EventCodec) -> None:
        self._project = project
        self._writer = writer
        self._encode = codec.encode

    async def record(
        self, turn: int, events: Sequence[ResponseEvent], token_ids: Sequence[int] = ()
    ) -> None:
        """Visible after the next group commit."""
        await self._writer.add(list(map(self._encode, events)), token_ids, turn=turn)

    async def keep(
        self,
        turn: int,
        response: Response,
        events: Sequence[ResponseEvent],
        items: Sequence[Item] = (),
        changed: Sequence[Item] = (),
    ) -> None:
        """One transaction, with all events recorded before."""

        async def change(tx: Transaction) -> None:
            await _write(tx, self._project, response, items, changed)

        await self.record(turn, events)
        await self._writer.commit(change, progress=True)

    async def end(
        self,
        turn: int,
        response: Response,
        events: Sequence[ResponseEvent],
        items: Sequence[Item] = (),
    ) -> None:
        """The response's end, its stream's and its job's are one transaction."""

        async def change(tx: Transaction) -> None:
            await _write(tx, self._project, response, items)
            await close_conversation(tx, self._project, response)

        await self.record(turn, events)
        await self._writer.finish(change)


class TransactionSink:
    """Stores events in a caller's transaction, which has locked the job and the row."""

    def __init__(self, project: str, tx: Transaction, codec: EventCodec) -> None:
        self._project = project
        self._tx = tx
        self._encode = codec.encode
        self._told: list[ResponseEvent] = []

    async def record(
        self, turn: int, events: Sequence[ResponseEvent], token_ids: Sequence[int] = ()
    ) -> None:
        """With the end."""
        self._told += events

    async def keep(
        self,
        turn: int,
        response: Response,
        events: Sequence[ResponseEvent],
        items: Sequence[Item] = (),
        changed: Sequence[Item] = (),
    ) -> None:
        """With the commit of the transaction."""
        await self.record(turn, events)
        await _write(self._tx, self._project, response, items, changed)

    async def end(
        self,
        turn: int,
        response: Response,
        events: Sequence[ResponseEvent],
        items: Sequence[Item] = (),
    ) -> None:
        """With the commit of the transaction."""
        await self.keep(turn, response, events, items)
        await close_conversation(self._tx, self._project, response)
        encoded = list(map(self._encode, self._told))
        await StreamQueries(self._tx).end(self._project, response.id, encoded)


class NullSink:
    """Stores nothing: events are only sent."""

    def __init__(self, say: Say) -> None:
        self._say = say

    async def record(
        self, turn: int, events: Sequence[ResponseEvent], token_ids: Sequence[int] = ()
    ) -> None:
        """Send events to the caller."""
        if events:
            await self._say(events)

    async def keep(
        self,
        turn: int,
        response: Response,
        events: Sequence[ResponseEvent],
        items: Sequence[Item] = (),
        changed: Sequence[Item] = (),
    ) -> None:
        """As `record`."""
        await self.record(turn, events)

    async def end(
        self,
        turn: int,
        response: Response,
        events: Sequence[ResponseEvent],
        items: Sequence[Item] = (),
    ) -> None:
        """As `record`."""
        await self.record(turn, events)


async def close_conversation(tx: Transaction, project: str, response: Response) -> None:
    """Let the conversation go, with the response's input and output where there is an answer."""
    if not response.conversation_id:
        return
    found = await ConversationQueries(tx).lock(project, response.conversation_id)
    if response.state in _KEPT_BY_CONVERSATIONS:
        placed = await TimelineQueries(tx).read(project, response.id)
        own = {item.id for item in response.output}
        given = [each.item for each in placed if each.item.id not in own]
        await TimelineQueries(tx).link(project, found.id, given)
        await TimelineQueries(tx).link(project, found.id, response.output, origin=response.id)
    await ConversationQueries(tx).update(project, found.released_by(response.id))


async def _write(
    tx: Transaction,
    project: str,
    response: Response,
    items: Sequence[Item],
    changed: Sequence[Item] = (),
) -> None:
    for item in changed:
        await TimelineQueries(tx).update(project, item)
    await TimelineQueries(tx).append(project, response.id, items, origin=response.id)
    await ResponseQueries(tx).update(project, response)


class EventSink(Protocol):
    """Keeps a response. Each method may raise LeaseLost."""

    async def record(
        self, turn: int, events: Sequence[ResponseEvent], token_ids: Sequence[int] = ()
    ) -> None:
        """Record events with the token ids behind them."""

    async def keep(
        self,
        turn: int,
        response: Response,
        events: Sequence[ResponseEvent],
        items: Sequence[Item] = (),
        changed: Sequence[Item] = (),
    ) -> None:
        """Record events, the response, and its new and changed items."""

    async def end(
        self,
        turn: int,
        response: Response,
        events: Sequence[ResponseEvent],
        items: Sequence[Item] = (),
    ) -> None:
        """As `keep`, for the last time."""


class ResponseRecorder:
    """Records a response, and has its current state."""

    def __init__(
        self,
        project: str,
        response: Response,
        output: Sequence[Item],
        sink: EventSink,
        cipher: ContentCipher,
        drafts: Sequence[Draft] = (),
    ) -> None:
        """`output` has its items so far, `drafts` those of the open turn."""
        self.response = response
        self.output = list(output)
        self._project = project
        self._sink = sink
        self._cipher = cipher
        self._held: tuple[list[ResponseEvent], list[int]] = ([], [])
        self._telling = self._new_telling(drafts)
        self._drafts = list(drafts)
        self._cost = NO_USAGE

    @property
    def has_begun(self) -> bool:
        """Whether readers have heard that the response is being worked on."""
        return self.response.state is not ResponseState.QUEUED

    async def begin(self) -> None:
        """Record that the response is in progress, once."""
        if not self.has_begun:
            self.response = self.response.started()
            await self._keep(self._turn, [LifeEvent(EventType.IN_PROGRESS, self.response)])

    async def turn_started(self, turn: int, started: Started) -> None:
        """The model computes."""
        self._cost = TurnUsage(started.prompt_tokens, started.cached_tokens, 0, 0)
        await self.begin()

    async def record(self, turn: int, said: Sequence[DraftEvent], token_ids: Sequence[int]) -> None:
        """Record output of the model."""
        self._drafts += [each.draft for each in said if isinstance(each, ItemAdded)]
        self._cost = add_usage(self._cost, TurnUsage(0, 0, len(token_ids), 0))
        events = self._telling.record(said)
        if self._telling.is_held:
            held_events, held_tokens = self._held
            held_events += events
            held_tokens += token_ids
        else:
            await self._sink.record(turn, events, token_ids)

    async def turn_ended(self, turn: TurnResult, *, awaits_client: bool) -> None:
        """A turn ended, and its hosted calls follow."""
        items, events = self._told(turn)
        work = _after(self.response.work, turn, awaits_client=awaits_client)
        self.response = replace(self.response, work=work)
        await self._keep(turn.number, events, items)
        self._held, self._drafts, self._cost = ([], []), [], NO_USAGE
        self._telling = self._new_telling(())

    async def call_started(self, item: Item) -> None:
        """A hosted tool begins to work."""
        await self._sink.record(self._turn, call_begins(item, self._place(item)))

    async def call_ended(self, item: Item) -> None:
        """A hosted tool has done its work."""
        events = call_ended(item, self._show(item), self._place(item))
        self.output = [item if old.id == item.id else old for old in self.output]
        await self._sink.keep(self._turn, self.response, events, changed=[item])

    async def compacted(self, item: Item, usage: TurnUsage) -> None:
        """Record a compaction, which replaces earlier items."""
        work = self.response.work
        work = replace(work, summaries=add_usage(work.summaries, usage))
        self.response = replace(self.response, work=work, is_compacted=True)
        await self.made(item)

    async def made(self, *items: Item) -> None:
        """The server made items of its own, between two turns."""
        await self._keep(self._turn, self._new_telling(()).end(items), items)
        self._telling = self._new_telling(())

    async def cut(self, first_item: str) -> None:
        """Items before this one are not shown to the model any more."""
        self.response = replace(self.response, context_start=first_item)
        await self._keep(self._turn, [])

    async def end(
        self, turn: TurnResult | None, moment: EventType, ended: Callable[[Work], Response]
    ) -> None:
        """The response has ended, with its last turn; `ended` makes of the work done what it is."""
        number, work = self._turn, self.response.work
        items, events = ([], []) if turn is None else self._told(turn)
        if turn is not None:
            work = _after(work, turn, awaits_client=False)
        self.output += items
        self.response = replace(ended(work), work=work, output=tuple(self.output))
        last = LifeEvent(moment, self.as_shown())
        await self._sink.end(number, self.response, [*events, last], items)

    def broken_turn(self) -> TurnResult | None:
        """The open turn, as far as it has come; None: there is none."""
        if not self._drafts and not any(self._cost):
            return None
        written = [draft for draft in self._drafts if draft.kind is not DraftKind.HOSTED]
        items = [
            draft.item(ItemStatus.COMPLETED if draft.is_done else ItemStatus.INCOMPLETE)
            for draft in written
        ]
        return TurnResult(number=self._turn, items=tuple(items), usage=self._cost)

    def as_shown(self) -> Response:
        """The response as its caller sees it."""
        output = tuple(self._show(item) for item in self.response.output)
        return replace(self.response, output=output)

    @property
    def _turn(self) -> int:
        return self.response.work.num_turns

    def _told(self, turn: TurnResult) -> tuple[list[Item], list[ResponseEvent]]:
        """Record the items of a turn and their remaining events."""
        items = [self._finished(item) for item in turn.items]
        events = [*self._held[0], *self._telling.end(items)]
        return items, events

    async def _keep(
        self, turn: int, events: Sequence[ResponseEvent], items: Sequence[Item] = ()
    ) -> None:
        self.output += items
        await self._sink.keep(turn, self.response, events, items)

    def _new_telling(self, drafts: Sequence[Draft]) -> TurnProjection:
        return TurnProjection(len(self.output), self._show, drafts)

    def _place(self, item: Item) -> int:
        return next(place for place, other in enumerate(self.output) if other.id == item.id)

    def _show(self, item: Item) -> Item:
        return apply_include(self._finished(item), self.response.settings.include)

    def _finished(self, item: Item) -> Item:
        """An item with what we add to it, always the same."""
        match item.content:
            case Reasoning(sealed="") as thought if self._seals_thoughts:
                sealed = self._cipher.seal_thought(self._project, thought.text)
                return replace(item, content=replace(thought, sealed=sealed))
            case Message(content=(Text(annotations=()) as text,)) as said:
                cited = replace(text, annotations=find_citations(text.text, self._searches()))
                return replace(item, content=replace(said, content=(cited,)))
            case _:
                return item

    @property
    def _seals_thoughts(self) -> bool:
        """Whether the caller keeps thoughts himself, and gives them back."""
        return Include.SEALED_REASONING in self.response.settings.include

    def _searches(self) -> Sequence[FileSearchCall]:
        """Those whose passages the model names."""
        return [item.content for item in self.output if isinstance(item.content, FileSearchCall)]


def _after(work: Work, turn: TurnResult, *, awaits_client: bool) -> Work:
    return replace(
        work,
        num_turns=work.num_turns + 1,
        usage=add_usage(work.usage, turn.usage),
        num_hosted_calls=work.num_hosted_calls + turn.num_hosted_calls,
        awaits_client=awaits_client,
    )
