"""Records a run while its model works: translates agent-loop events into Assistants stream events
and persists messages and steps.

Each message has a step; the calls of a turn share one. Rows are written in the transaction that
commits their events.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from control_svc.agent.drafts import Draft, DraftEvent, DraftKind, ItemAdded, ItemDone, TextDelta
from control_svc.agent.file_search import find_citations
from control_svc.agent.model import NO_USAGE, TurnResult, add_usage
from control_svc.assistants.message_model import ThreadMessage, start_message
from control_svc.assistants.queries import MessageQueries
from control_svc.base.ids import STEP, IdSource
from control_svc.db.transaction import Transaction
from control_svc.event_log.model import FinalEvents
from control_svc.event_log.writer import StreamWriter
from control_svc.inference.turns import Started, TurnUsage
from control_svc.items.model import FileSearchCall, Item, ItemStatus, Text
from control_svc.items.queries import TimelineQueries
from control_svc.runs.events import (
    CallDelta,
    MessageChanged,
    MessageDelta,
    ReasoningDelta,
    RunEvent,
    RunEventCodec,
    StepChanged,
)
from control_svc.runs.model import Run
from control_svc.runs.queries import RunQueries, RunStepQueries
from control_svc.runs.steps import (
    FileSearchStepCall,
    FunctionStepCall,
    MessageCreation,
    RunStep,
    StepCall,
    StepState,
    ToolCalls,
    started_step,
)
from control_svc.runs.transitions import texts_of

_CALLS = frozenset({DraftKind.FUNCTION, DraftKind.CUSTOM, DraftKind.HOSTED})
_Change = Callable[[Transaction], Awaitable[None]]
LastChange = Callable[[Transaction, Run], Awaitable[tuple[list[RunEvent], bool]]]
"""Ends a locked run, or lets it wait: the events of it, and whether the stream ends."""


@dataclass
class ResumeState:
    """What an earlier attempt has left open of a run."""

    drafts: list[Draft] = field(default_factory=list)
    """Of the open turn."""
    messages: list[ThreadMessage] = field(default_factory=list)
    steps: list[RunStep] = field(default_factory=list)
    searches: tuple[FileSearchCall, ...] = ()
    """All of the run's so far."""


class RunRecorder:
    """Records one run during one attempt."""

    def __init__(
        self,
        project: str,
        run: Run,
        writer: StreamWriter,
        codec: RunEventCodec,
        ids: IdSource,
        clock: Callable[[], datetime],
        left: ResumeState,
        num_tokens: int = 0,
    ) -> None:
        """The open turn has so many tokens."""
        self._project = project
        self._run = run
        self._writer = writer
        self._codec = codec
        self._ids = ids
        self._clock = clock
        self._drafts = list(left.drafts)
        self._messages = {message.id: message for message in left.messages}
        self._steps: dict[str, RunStep] = {}
        """Of messages, by their ids."""
        self._calls_step: RunStep | None = None
        for step in left.steps:
            if isinstance(step.details, MessageCreation):
                self._steps[step.details.message_id] = step
            else:
                self._calls_step = step
        self._searches = left.searches
        self._kept = _kept(left.drafts)
        self._whole: list[Draft] = []
        """Messages whose ends wait for a transaction."""
        self._changes: list[_Change] = []
        """Changes of rows that belong to events."""
        self._cost = TurnUsage(0, 0, num_tokens, 0)

    # ---- what the loop says

    async def turn_started(self, turn: int, started: Started) -> None:
        """Count prompt tokens; Assistants streams have no event for them."""
        shown = TurnUsage(started.prompt_tokens, started.cached_tokens, 0, 0)
        self._cost = add_usage(self._cost, shown)

    async def record(self, turn: int, said: Sequence[DraftEvent], token_ids: Sequence[int]) -> None:
        """Record output of the model."""
        self._cost = add_usage(self._cost, TurnUsage(0, 0, len(token_ids), 0))
        events = [event for each in said for event in self._told(each)]
        if events or token_ids:
            await self._writer.add(self._encoded(events), token_ids, turn=turn)
        if self._changes:
            await self._writer.commit(self._taken_changes())

    async def turn_ended(self, turn: TurnResult, *, awaits_client: bool) -> None:
        """A turn ended, and its hosted calls follow."""
        await self._writer.add(self._encoded(self._end_turn(turn.usage)), turn=turn.number)
        changes = self._taken_changes()

        async def keep(tx: Transaction) -> None:
            await changes(tx)
            await self._store_items(tx, turn)
            run = await RunQueries(tx).lock(self._project, self._run.id)
            await RunQueries(tx).update(self._project, run.after(turn, awaits_client=awaits_client))

        await self._writer.commit(keep, progress=True)
        self._drafts, self._kept, self._cost = [], set(), NO_USAGE

    async def call_started(self, item: Item) -> None:
        """Assistants streams have no such event."""

    async def call_ended(self, item: Item) -> None:
        """A search is done. Its step is, too, unless it has calls for the client."""
        search = item.content
        if not isinstance(search, FileSearchCall):
            raise TypeError(f"{item.id} is no search")
        self._searches += (search,)
        step, events = self._searched(search)

        async def keep(tx: Transaction) -> None:
            await TimelineQueries(tx).update(self._project, item)
            if step is not None:
                await RunStepQueries(tx).update(self._project, step)

        await self._writer.add(self._encoded(events))
        await self._writer.commit(keep, progress=True)

    async def conclude(self, turn: TurnResult | None, last: LastChange) -> None:
        """End the attempt, and keep its last turn. None: it failed, or none was open; what is known
        of its tokens is counted."""
        usage = self._cost if turn is None else turn.usage
        ends = self._end_turn(usage)
        changes = self._taken_changes()

        async def close(tx: Transaction) -> FinalEvents:
            run = await RunQueries(tx).lock(self._project, self._run.id)
            await changes(tx)
            if turn is None:
                run = run.broken_off(usage)
            else:
                await self._store_items(tx, turn)
                run = run.after(turn)
            events, is_end = await last(tx, run)
            return FinalEvents(self._encoded([*ends, *events]), is_end)

        await self._writer.conclude(close)

    def texts(self) -> dict[str, tuple[Text, ...]]:
        """The texts of the messages of the open turn."""
        return texts_of(self._drafts)

    # ---- from what is said to events

    def _told(self, said: DraftEvent) -> Iterator[RunEvent]:
        match said:
            case ItemAdded(draft=draft):
                yield from self._end_messages()
                self._drafts.append(draft)
                yield from self._begun(draft)
            case TextDelta(draft=draft, text=text):
                yield self._grown(draft, text)
            case ItemDone(draft=draft):
                if draft.kind is DraftKind.MESSAGE:
                    self._whole.append(draft)

    def _begun(self, draft: Draft) -> Iterator[RunEvent]:
        if draft.kind is DraftKind.MESSAGE:
            yield from self._begin_message(draft)
        elif draft.kind in _CALLS:
            yield from self._begin_call(draft)

    def _begin_message(self, draft: Draft) -> Iterator[RunEvent]:
        run = self._run
        message = start_message(draft.id, run.thread_id, run.id, run.assistant_id, draft.created_at)
        step = self._new_step(MessageCreation(message_id=message.id))
        thoughts = [
            thought.item(ItemStatus.COMPLETED)
            for thought in self._drafts
            if thought.kind is DraftKind.REASONING and thought.id not in self._kept
        ]
        self._kept |= {message.id, *(thought.id for thought in thoughts)}
        self._messages[message.id], self._steps[message.id] = message, step

        async def keep(tx: Transaction) -> None:
            await TimelineQueries(tx).append(self._project, run.thread_id, thoughts, origin=run.id)
            await MessageQueries(tx).add(self._project, [message])
            await RunStepQueries(tx).add(self._project, step)

        self._changes.append(keep)
        yield from _begun_step(step)
        yield MessageChanged(what="created", message=message)
        yield MessageChanged(what=ItemStatus.IN_PROGRESS.value, message=message)

    def _begin_call(self, draft: Draft) -> Iterator[RunEvent]:
        step = self._calls_step
        if step is None:
            step = self._calls_step = self._new_step(ToolCalls())
            self._changes.append(_added(self._project, step))
            yield from _begun_step(step)
        yield CallDelta(
            step_id=step.id,
            index=draft.call_index,
            tool=draft.kind,
            item_id=draft.id,
            call_id=draft.call_id,
            name=draft.name,
            created_at=draft.created_at,
        )

    def _grown(self, draft: Draft, text: str) -> RunEvent:
        if draft.kind is DraftKind.MESSAGE:
            return MessageDelta(message_id=draft.id, text=text)
        if draft.kind is DraftKind.REASONING:
            return ReasoningDelta(item_id=draft.id, text=text, created_at=draft.created_at)
        step = self._calls_step
        if step is None:
            raise TypeError(f"the call {draft.id} has no step")
        return CallDelta(step_id=step.id, index=draft.call_index, tool=draft.kind, arguments=text)

    # ---- ends

    def _end_messages(self) -> list[RunEvent]:
        """End the messages that are whole."""
        whole, self._whole = self._whole, []
        return [event for draft in whole for event in self._end_message(draft)]

    def _end_turn(self, usage: TurnUsage) -> list[RunEvent]:
        """End the messages, and write down the calls that were made and the turn's tokens."""
        calls = [draft for draft in self._drafts if draft.kind in _CALLS]
        if calls and self._calls_step is not None:
            step = self._calls_step.with_calls(tuple(map(_step_call, calls))).counted(usage)
            self._calls_step = step
            self._changes.append(_updated(self._project, step))
        elif self._steps:
            message_id, step = self._steps.popitem()
            self._steps[message_id] = step = step.counted(usage)
            if not self._whole:  # else it is written at its end
                self._changes.append(_updated(self._project, step))
        return self._end_messages()

    def _end_message(self, draft: Draft) -> Iterator[RunEvent]:
        now = self._clock()
        citations = find_citations(draft.text, self._searches)
        text = Text(text=draft.text, annotations=citations)
        message = self._messages.pop(draft.id).complete((text,), now)
        step = self._steps.pop(draft.id).ended(StepState.COMPLETED, now)

        async def keep(tx: Transaction) -> None:
            await MessageQueries(tx).update(self._project, message)
            await RunStepQueries(tx).update(self._project, step)

        self._changes.append(keep)
        if citations:
            yield MessageDelta(message_id=draft.id, text="", annotations=citations)
        yield MessageChanged(what=ItemStatus.COMPLETED.value, message=message)
        yield StepChanged(what=step.state.value, step=step)

    def _searched(self, search: FileSearchCall) -> tuple[RunStep | None, list[RunEvent]]:
        """The step of a search, and its events."""
        if self._calls_step is None:
            return None, []
        step = self._calls_step.with_search(search)
        if not step.is_searched:
            self._calls_step = step
            return step, []
        ended = step.ended(StepState.COMPLETED, self._clock())
        self._calls_step = None
        return ended, [StepChanged(what=ended.state.value, step=ended)]

    # ---- parts

    async def _store_items(self, tx: Transaction, turn: TurnResult) -> None:
        new = [item for item in turn.items if item.id not in self._kept]
        await TimelineQueries(tx).append(
            self._project, self._run.thread_id, new, origin=self._run.id
        )

    def _new_step(self, details: MessageCreation | ToolCalls) -> RunStep:
        return started_step(self._ids.new(STEP), self._run, details, self._clock())

    def _taken_changes(self) -> _Change:
        """The changes that wait, as one."""
        changes, self._changes = self._changes, []

        async def change(tx: Transaction) -> None:
            for each in changes:
                await each(tx)

        return change

    def _encoded(self, events: Sequence[RunEvent]) -> list[bytes]:
        return [self._codec.encode(event) for event in events]


def _kept(drafts: Sequence[Draft]) -> set[str]:
    """The drafts of an open turn whose items are in the timeline: messages, and the thoughts
    before them."""
    last = max((d.index for d in drafts if d.kind is DraftKind.MESSAGE), default=-1)
    return {draft.id for draft in drafts[: last + 1] if draft.kind not in _CALLS}


def _begun_step(step: RunStep) -> Iterator[RunEvent]:
    yield StepChanged(what="created", step=step)
    yield StepChanged(what=step.state.value, step=step)


def _step_call(draft: Draft) -> StepCall:
    if draft.kind is DraftKind.HOSTED:
        return FileSearchStepCall(call_id=draft.call_id)
    return FunctionStepCall(call_id=draft.call_id, name=draft.name, arguments=draft.text)


def _added(project: str, step: RunStep) -> _Change:
    return lambda tx: RunStepQueries(tx).add(project, step)


def _updated(project: str, step: RunStep) -> _Change:
    return lambda tx: RunStepQueries(tx).update(project, step)
