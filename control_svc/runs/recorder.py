"""Records a run while its model works: translates agent-loop events into Assistants stream events
and stores messages and steps.

Each message has a step; the calls of a turn share one. Rows are written in the transaction that
commits their events.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from corral.control.v1.run_event_pb2 import CallDelta, ReasoningDelta, RunEvent

from control_svc.agent.drafts import Draft, DraftEvent, DraftKind, ItemAdded, ItemDone, TextDelta
from control_svc.agent.file_search import find_citations
from control_svc.agent.model import TurnResult
from control_svc.agent.recorder import NO_TURN, EventSink, OpenTurn, TurnRecorder
from control_svc.assistants.message_model import ThreadMessage, start_message
from control_svc.assistants.queries import MessageQueries
from control_svc.base.ids import STEP, IdSource
from control_svc.db.transaction import Clock, Transaction
from control_svc.event_log.model import FinalEvents, encode_events
from control_svc.inference.turns import TurnUsage
from control_svc.items.model import FileSearchCall, Item, ItemStatus, Text
from control_svc.items.queries import TimelineQueries
from control_svc.runs.events import (
    CREATED,
    message_changed,
    message_delta,
    requires_action,
    step_changed,
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
)
from svc_kit.rpc.message_mapper import encode_timestamp

_CALLS = frozenset({DraftKind.FUNCTION, DraftKind.CUSTOM, DraftKind.HOSTED})
FinishRun = Callable[[Transaction, Run], Awaitable[Sequence[RunEvent]]]
"""Ends a locked run, or makes it wait for outputs; returns the last events."""


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """What earlier attempts committed."""

    open_turn: OpenTurn = NO_TURN
    messages: Sequence[ThreadMessage] = ()
    steps: Sequence[RunStep] = ()
    """Steps in progress."""
    searches: Sequence[Item] = ()
    """All searches of the run."""


class RunRecorder(TurnRecorder):
    """Records one attempt of a run."""

    def __init__(
        self,
        project: str,
        run: Run,
        sink: EventSink,
        ids: IdSource,
        clock: Clock,
        progress: RunProgress,
    ) -> None:
        super().__init__(sink, progress.open_turn, run.ignored_parameters)
        self.project = project
        self.run = run
        """The run when the attempt started."""
        self.searches = list(progress.searches)
        self._ids = ids
        self._clock = clock
        self._messages = {message.id: message for message in progress.messages}
        self._message_steps: dict[str, RunStep] = {}
        """Steps in progress of kind message creation, by message id."""
        self._calls_step: RunStep | None = None
        for step in progress.steps:
            if isinstance(step.details, MessageCreation):
                self._message_steps[step.details.message_id] = step
            else:
                self._calls_step = step
        self._stored_ids = _stored_ids(self._drafts)
        self._done_messages: list[Draft] = []
        """Complete messages whose end is not stored yet."""

    # ---- what the loop calls

    async def turn_ended(self, turn: TurnResult, *, awaits_client: bool) -> None:
        """Store a turn after which hosted calls follow."""

        async def store(tx: Transaction) -> None:
            await self._store_items(tx, turn)
            run = await RunQueries(tx).lock(self.run.id)
            run = self._with_ignored(run.add_turn(turn, awaits_client=awaits_client))
            await RunQueries(tx).update(run)

        await self._commit(turn.number, self._end_turn(turn.usage), store)
        self._close_turn()
        self._stored_ids.clear()

    async def call_started(self, item: Item) -> None:
        """Assistants streams have no such event."""

    async def call_ended(self, item: Item) -> None:
        """Store a search. Its step ends with it, unless that has other calls to complete."""
        search = item.content
        if not isinstance(search, FileSearchCall):
            raise TypeError(f"{item.id} is not a file search")
        self.searches.append(item)
        await self._commit(
            0,
            self._end_search(search),
            lambda tx: TimelineQueries(tx).update(item),
        )

    async def conclude(self, turn: TurnResult | None, finish: FinishRun) -> None:
        """End the attempt and store its last turn.

        `turn` is None when the attempt failed or no turn was open; usage recorded so far is still
        counted.
        """
        usage = self.usage if turn is None else turn.usage
        turn_events = self._end_turn(usage)
        changes = self._pop_changes()

        async def store(tx: Transaction) -> FinalEvents:
            run = await RunQueries(tx).lock(self.run.id)
            await changes(tx)
            if turn is None:
                run = run.add_usage(usage)
            else:
                await self._store_items(tx, turn)
                run = run.add_turn(turn)
            events = [*turn_events, *await finish(tx, self._with_ignored(run))]
            return FinalEvents(encode_events(events), is_end=not requires_action(events[-1]))

        await self.sink.conclude(store)

    def texts(self) -> dict[str, tuple[Text, ...]]:
        """The texts of the messages of the open turn, by message id."""
        messages = (draft for draft in self._drafts if draft.kind is DraftKind.MESSAGE)
        return {draft.id: (Text(text=draft.text),) for draft in messages}

    # ---- translation of draft events

    def _translate(self, changes: Sequence[DraftEvent]) -> list[RunEvent]:
        return [event for change in changes for event in self._events(change)]

    def _events(self, change: DraftEvent) -> Iterator[RunEvent]:
        match change:
            case ItemAdded(draft=draft):
                yield from self._end_messages()
                if draft.kind is DraftKind.MESSAGE:
                    yield from self._start_message(draft)
                elif draft.kind in _CALLS:
                    yield from self._start_call(draft)
            case TextDelta(draft=draft, text=text):
                yield self._text_event(draft, text)
            case ItemDone(draft=draft):
                if draft.kind is DraftKind.MESSAGE:
                    self._done_messages.append(draft)

    def _start_message(self, draft: Draft) -> Iterator[RunEvent]:
        run = self.run
        message = start_message(draft.id, run.thread_id, run.id, run.assistant_id, draft.created_at)
        step = self._new_step(MessageCreation(message_id=message.id))
        reasoning = [
            other.item(ItemStatus.COMPLETED)
            for other in self._drafts[: draft.index]
            if other.kind is DraftKind.REASONING and other.id not in self._stored_ids
        ]
        self._stored_ids |= {message.id, *(item.id for item in reasoning)}
        self._messages[message.id], self._message_steps[message.id] = message, step

        async def store(tx: Transaction) -> None:
            timelines = TimelineQueries(tx)
            await timelines.append(run.thread_id, reasoning, origin=run.id)
            await MessageQueries(tx).add([message])
            await RunStepQueries(tx).add(step)

        self._changes.append(store)
        yield from _step_started(step)
        yield message_changed(message, CREATED)
        yield message_changed(message)

    def _start_call(self, draft: Draft) -> Iterator[RunEvent]:
        step = self._calls_step
        if step is None:
            step = new_step = self._calls_step = self._new_step(ToolCalls())
            self._changes.append(lambda tx: RunStepQueries(tx).add(new_step))
            yield from _step_started(step)
        yield _call_delta(
            step,
            draft,
            call_id=draft.call_id,
            name=draft.name,
            item_id=draft.id,
            create_time=encode_timestamp(draft.created_at),
        )

    def _text_event(self, draft: Draft, text: str) -> RunEvent:
        if draft.kind is DraftKind.MESSAGE:
            return message_delta(draft.id, text)
        if draft.kind is DraftKind.REASONING:
            created = encode_timestamp(draft.created_at)
            delta = ReasoningDelta(item_id=draft.id, text=text, create_time=created)
            return RunEvent(reasoning_delta=delta)
        step = self._calls_step
        if step is None:
            raise TypeError(f"the call {draft.id} has no step")
        return _call_delta(step, draft, arguments_json=text)

    # ---- ends of turns, messages and searches

    def _end_messages(self) -> list[RunEvent]:
        """End the complete messages."""
        drafts, self._done_messages = self._done_messages, []
        return [event for draft in drafts for event in self._end_message(draft)]

    def _end_turn(self, usage: TurnUsage) -> list[RunEvent]:
        """End the complete messages, and store the turn's calls and usage in its last step."""
        calls = [draft for draft in self._drafts if draft.kind in _CALLS]
        if calls and self._calls_step is not None:
            step = self._calls_step.with_calls(tuple(map(_step_call, calls)))
            step = self._calls_step = replace(step, usage=usage)
            self._update(step)
        elif self._message_steps:
            message_id, open_step = self._message_steps.popitem()
            self._message_steps[message_id] = step = replace(open_step, usage=usage)
            if not self._done_messages:  # otherwise `_end_message` stores the step
                self._update(step)
        return self._end_messages()

    def _end_message(self, draft: Draft) -> Iterator[RunEvent]:
        now = self._clock()
        contents = (item.content for item in self.searches)
        searches = [each for each in contents if isinstance(each, FileSearchCall)]
        citations = find_citations(draft.text, searches)
        text = Text(text=draft.text, annotations=citations)
        message = self._messages.pop(draft.id).complete((text,), now)
        step = self._message_steps.pop(draft.id).end(StepState.COMPLETED, now)
        self._changes.append(lambda tx: MessageQueries(tx).update(message))
        self._update(step)
        if citations:
            yield message_delta(draft.id, "", citations)
        yield message_changed(message)
        yield step_changed(step)

    def _end_search(self, search: FileSearchCall) -> list[RunEvent]:
        """Store the results of a search in its step, which ends with its last search."""
        if self._calls_step is None:
            return []
        step = self._calls_step.with_search(search)
        is_done = step.all_searches_done
        if is_done:
            step = step.end(StepState.COMPLETED, self._clock())
        self._calls_step = None if is_done else step
        self._update(step)
        return [step_changed(step)] if is_done else []

    # ---- helpers

    async def _store_items(self, tx: Transaction, turn: TurnResult) -> None:
        items = [item for item in turn.items if item.id not in self._stored_ids]
        await TimelineQueries(tx).append(self.run.thread_id, items, origin=self.run.id)

    def _with_ignored(self, run: Run) -> Run:
        return replace(run, ignored_parameters=self.ignored_parameters)

    def _update(self, step: RunStep) -> None:
        """Store a changed step with the next events."""
        self._changes.append(lambda tx: RunStepQueries(tx).update(step))

    def _new_step(self, details: MessageCreation | ToolCalls) -> RunStep:
        return RunStep(
            id=self._ids.new(STEP),
            run_id=self.run.id,
            thread_id=self.run.thread_id,
            assistant_id=self.run.assistant_id,
            details=details,
            created_at=self._clock(),
        )


def _stored_ids(drafts: Sequence[Draft]) -> set[str]:
    """Ids of the drafts whose items are stored: messages, and the reasoning before them."""
    last = max((d.index for d in drafts if d.kind is DraftKind.MESSAGE), default=-1)
    return {draft.id for draft in drafts[: last + 1] if draft.kind not in _CALLS}


def _step_started(step: RunStep) -> Iterator[RunEvent]:
    yield step_changed(step, CREATED)
    yield step_changed(step)


def _call_delta(step: RunStep, draft: Draft, **fields: Any) -> RunEvent:
    is_hosted = draft.kind is DraftKind.HOSTED
    delta = CallDelta(step_id=step.id, index=draft.call_index, is_hosted=is_hosted, **fields)
    return RunEvent(call_delta=delta)


def _step_call(draft: Draft) -> StepCall:
    if draft.kind is DraftKind.HOSTED:
        return FileSearchStepCall(call_id=draft.call_id)
    return FunctionStepCall(call_id=draft.call_id, name=draft.name, arguments=draft.text)
