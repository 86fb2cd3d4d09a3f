"""Records a response while it runs: in the database and the event log, in a caller's transaction,
or, with `store: false`, only as events for the client.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from corral.control.v1.response_event_pb2 import ResponseEvent

from control_svc.agent.drafts import Draft, DraftEvent, DraftKind
from control_svc.agent.file_search import find_citations
from control_svc.agent.model import TurnResult, add_usage
from control_svc.agent.recorder import NO_TURN, EventSink, OpenTurn, TurnRecorder
from control_svc.conversations.queries import ConversationQueries
from control_svc.db.transaction import Transaction
from control_svc.event_log.model import Change, FinalEvents, encode_events
from control_svc.inference.turns import Started, TurnUsage
from control_svc.items.input_items import Include, apply_include
from control_svc.items.model import (
    INPUT_ITEMS,
    FileSearchCall,
    Item,
    ItemStatus,
    Message,
    Reasoning,
    Text,
)
from control_svc.items.queries import TimelineQueries
from control_svc.responses.content_cipher import ContentCipher
from control_svc.responses.events import (
    TurnProjection,
    call_ended_events,
    call_started_events,
    state_event,
)
from control_svc.responses.model import Response, ResponseState
from control_svc.responses.queries import ResponseQueries

FinishResponse = Callable[[Response, TurnUsage], Response]
"""Returns the ended response, given its total usage."""
_ANSWERED = (ResponseState.COMPLETED, ResponseState.INCOMPLETE)


async def claim_conversation(tx: Transaction, response: Response) -> None:
    """Lock the conversation, if any. Raises ConversationNotFound or ConversationLocked."""
    if response.conversation_id:
        conversation = await ConversationQueries(tx).lock(response.conversation_id)
        await ConversationQueries(tx).update(conversation.claimed_by(response.id))


async def close_conversation(tx: Transaction, response: Response) -> None:
    """Unlock the conversation; add the input and output of the response if it has an answer."""
    if not response.conversation_id:
        return
    conversation = await ConversationQueries(tx).lock(response.conversation_id)
    if response.state in _ANSWERED:
        timelines = TimelineQueries(tx)
        await timelines.link(conversation.id, await timelines.refs(response.id, INPUT_ITEMS))
        await timelines.link(conversation.id, response.output, origin=response.id)
    await ConversationQueries(tx).update(conversation.released_by(response.id))


class ResponseRecorder(TurnRecorder):
    """Records the progress of a response and holds its current state."""

    def __init__(
        self,
        project: str,
        response: Response,
        output: Sequence[Item],
        sink: EventSink,
        cipher: ContentCipher,
        open_turn: OpenTurn = NO_TURN,
    ) -> None:
        """`output` are the items of completed turns."""
        super().__init__(sink, open_turn, response.ignored_parameters)
        self.project = project
        self.response = response
        self.output = list(output)
        self._cipher = cipher
        self._held_events: list[ResponseEvent] = []
        self._projection = self._new_projection(open_turn.drafts)

    @property
    def has_begun(self) -> bool:
        """Whether the event `in_progress` has been recorded."""
        return self.response.state is not ResponseState.QUEUED

    async def begin(self) -> None:
        """Record that the response is in progress. Idempotent."""
        if not self.has_begun:
            self.response = self.response.start()
            await self._store([state_event(self.response)])

    async def turn_started(self, turn: int, started: Started) -> None:
        """Record that the model processes the prompt."""
        await super().turn_started(turn, started)
        self.response = replace(self.response, ignored_parameters=self.ignored_parameters)
        await self.begin()

    async def turn_ended(self, turn: TurnResult, *, awaits_client: bool) -> None:
        """Store a completed turn, after which hosted calls follow."""
        items, events = self._turn_output(turn)
        work = self.response.work.add_turn(turn, awaits_client=awaits_client)
        self.response = replace(self.response, work=work)
        await self._store(events, items, turn=turn.number)
        self._close_turn()
        self._held_events = []
        self._projection = self._new_projection()

    async def call_started(self, item: Item) -> None:
        events = call_started_events(item, self._output_index(item))
        await self.sink.add(encode_events(events), turn=self._turn)

    async def call_ended(self, item: Item) -> None:
        """Store the result of a hosted call."""
        events = call_ended_events(item, self._visible(item), self._output_index(item))
        self.output = [item if old.id == item.id else old for old in self.output]
        self._changes.append(lambda tx: TimelineQueries(tx).update(item))
        await self._store(events)

    async def add_compaction(self, item: Item, usage: TurnUsage) -> None:
        """Store a compaction item, which replaces earlier items."""
        work = self.response.work
        work = replace(work, summaries=add_usage(work.summaries, usage))
        self.response = replace(self.response, work=work, is_compacted=True)
        await self.add_items(item)

    async def add_items(self, *items: Item) -> None:
        """Store items that the server creates between two turns."""
        await self._store(self._new_projection().end(items), items)
        self._projection = self._new_projection()

    async def set_context_start(self, item_id: str) -> None:
        """Store the id of the first item in further prompts."""
        self.response = replace(self.response, context_start=item_id)
        await self._store([])

    async def end(self, turn: TurnResult | None, finish: FinishResponse) -> None:
        """Store the last turn and the end of the response."""
        number, work = self._turn, self.response.work
        items, events = ([], []) if turn is None else self._turn_output(turn)
        if turn is not None:
            work = work.add_turn(turn)
        self.output += items
        ended = finish(self.response, work.total_usage)
        response = self.response = replace(ended, work=work, output=tuple(self.output))
        visible = tuple(map(self._visible, self.output))
        events.append(state_event(replace(response, output=visible)))

        async def store(tx: Transaction) -> FinalEvents:
            await self._write(items)(tx)
            await close_conversation(tx, response)
            return FinalEvents((), is_end=True)

        await self.sink.add(encode_events(events), turn=number)
        await self.sink.conclude(store)

    def interrupted_turn(self) -> TurnResult | None:
        """Return the open turn with its incomplete items; None if no turn is open."""
        if not self._drafts and not any(self.usage):
            return None
        items = [
            draft.item(ItemStatus.COMPLETED if draft.is_done else ItemStatus.INCOMPLETE)
            for draft in self._drafts
            if draft.kind is not DraftKind.HOSTED
        ]
        return TurnResult(number=self._turn, items=tuple(items), usage=self.usage)

    @property
    def _turn(self) -> int:
        return self.response.work.num_turns

    def _translate(self, changes: Sequence[DraftEvent]) -> list[ResponseEvent] | None:
        events = self._projection.record(changes)
        if not self._projection.is_held:
            return events
        self._held_events += events
        return None

    def _turn_output(self, turn: TurnResult) -> tuple[list[Item], list[ResponseEvent]]:
        """Return the items of a turn and its events that have not been recorded yet."""
        items = [self._complete(item) for item in turn.items]
        return items, [*self._held_events, *self._projection.end(items)]

    async def _store(
        self, events: Sequence[ResponseEvent], items: Sequence[Item] = (), turn: int | None = None
    ) -> None:
        """Store the response with new output items and events of a turn; None for the open one."""
        self.output += items
        await self._commit(self._turn if turn is None else turn, events, self._write(items))

    def _write(self, items: Sequence[Item]) -> Change[None]:
        response = self.response

        async def write(tx: Transaction) -> None:
            timelines = TimelineQueries(tx)
            await timelines.append(response.id, items, origin=response.id)
            await ResponseQueries(tx).update(response)

        return write

    def _new_projection(self, drafts: Sequence[Draft] = ()) -> TurnProjection:
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
                sealed = self._cipher.seal_reasoning(self.project, reasoning.text)
                return replace(item, content=replace(reasoning, sealed=sealed))
            case Message(content=(Text(annotations=()) as text,)) as message:
                contents = (other.content for other in self.output)
                searches = [each for each in contents if isinstance(each, FileSearchCall)]
                cited = replace(text, annotations=find_citations(text.text, searches))
                return replace(item, content=replace(message, content=(cited,)))
            case _:
                return item
