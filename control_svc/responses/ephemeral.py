"""Answers requests: stored responses are read while their job runs; with `store: false` the loop
runs in the call.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from control_svc.agent.model import NO_USAGE, Progress
from control_svc.agent.prompt import turn_messages
from control_svc.agent.turn import ToolSet, turn_request
from control_svc.base.ids import IdSource
from control_svc.conversations.queries import ConversationQueries
from control_svc.db.transaction import Clock, Transaction, Transactions
from control_svc.event_log.model import Event
from control_svc.inference.turn_client import TokenCounter
from control_svc.inference.turns import Done, TurnClient, TurnRequest, TurnUsage
from control_svc.items.model import Item, McpCall
from control_svc.items.service import resolve_items
from control_svc.jobs.model import EngineDied, JobPriority
from control_svc.responses.compaction import AutoCompaction, Compactor, check_calls, is_users
from control_svc.responses.content_cipher import ContentCipher
from control_svc.responses.context import (
    Requests,
    ResponseContext,
    read_conversation,
    read_past,
    visible,
)
from control_svc.responses.events import EventCodec, EventType, LifeEvent, ResponseEvent
from control_svc.responses.model import NewResponse, Response, Summary
from control_svc.responses.recorder import NullSink, ResponseRecorder, Say
from control_svc.responses.service import Responses, check_not_refused, previous_of
from control_svc.responses.tools import ResponseTools, check_approvals_once
from control_svc.responses.worker import ResponseWorker, ResumeState, fail, loop_settings
from control_svc.tools.file_search_resources import check_tool_stores
from svc_kit.errors import ContextLengthExceeded, DomainError

_CREATED: Final = LifeEvent(EventType.CREATED, None)
_FAILED: Final = LifeEvent(EventType.FAILED, None)
_EVENTS_AHEAD: Final = 256
"""How many groups of events a slow reader may be behind before the work waits for it."""


@dataclass(frozen=True, kw_only=True)
class Compacted:
    """The compaction."""

    id: str
    created_at: datetime
    output: Sequence[Item]
    usage: TurnUsage


@dataclass(frozen=True)
class EphemeralResponses:
    """Answers, counts, reads and sums up."""

    transactions: Transactions
    responses: Responses
    requests: Requests
    worker: ResponseWorker
    turns: TurnClient
    counter: TokenCounter
    compactor: Compactor
    cipher: ContentCipher
    tools: ResponseTools
    codec: EventCodec
    ids: IdSource
    clock: Clock

    async def answer(
        self, project: str, request: NewResponse, priority: JobPriority = JobPriority.INTERACTIVE
    ) -> Response:
        """The response once it has ended, or at once where it runs in the background.

        Raises what `Responses.create` does, and what the response was refused with.
        """
        if request.settings.store:
            response = await self.responses.create(project, request)
            if request.settings.background:
                return await self.responses.get(project, response.id)
            return await self.responses.ended(project, response.id)
        recorder, started = await self._begin(project, request, _silence)
        try:
            await self.worker.work(project, recorder, started, asyncio.Event(), priority)
        except EngineDied as died:
            await _break_off(recorder, died.error, is_known=_has_called(recorder))
        except DomainError as error:
            await _break_off(recorder, error, is_known=_has_called(recorder))
        check_not_refused(recorder.response)
        return recorder.response

    async def stream(
        self, project: str, request: NewResponse
    ) -> AsyncGenerator[Sequence[Event], None]:
        """Yield all events. Raises as `answer`, before the first event, which is sent once the
        model has started.
        """
        if not request.settings.store:
            telling = self._record(project, request)
        else:
            response = await self.responses.create(project, request)
            telling = self._followed(project, response)
        held: list[Event] = []
        async with aclosing(telling) as groups:
            async for group in groups:
                held += group
                if request.settings.background or self._has_begun(held):
                    yield held
                    held = []

    def _has_begun(self, events: Sequence[Event]) -> bool:
        """Whether the first turn has produced events."""
        return len(events) > 1 or self.codec.decode(events[0].data) != _CREATED

    async def _followed(
        self, project: str, response: Response
    ) -> AsyncGenerator[Sequence[Event], None]:
        """The events of a stored response. Raises what it was refused with."""
        async with aclosing(self.responses.follow(project, response.id)) as groups:
            async for group in groups:
                if self.codec.decode(group[-1].data) == _FAILED:
                    check_not_refused(await self.responses.get(project, response.id))
                yield group

    async def _record(
        self, project: str, request: NewResponse
    ) -> AsyncGenerator[Sequence[Event], None]:
        """The events of a response of which nothing is left. Raises what it was refused with."""
        queue: asyncio.Queue[Sequence[ResponseEvent]] = asyncio.Queue(_EVENTS_AHEAD)
        recorder, started = await self._begin(project, request, queue.put)
        queue.put_nowait([LifeEvent(EventType.CREATED, recorder.response)])

        left = asyncio.Event()

        async def work() -> None:
            try:
                await self._work(project, recorder, started)
            finally:
                if not left.is_set():  # else nobody would make room for the end
                    await queue.put([])

        working, number = asyncio.create_task(work()), 0
        try:
            while events := await queue.get():
                check_not_refused(recorder.response)
                encoded = [self.codec.encode(event) for event in events]
                yield [Event(number + place, data) for place, data in enumerate(encoded)]
                number += len(encoded)
            await working
        finally:
            left.set()
            working.cancel()
            await asyncio.wait([working])

    async def count(self, project: str, new: NewResponse) -> int:
        """The tokens of the prompt that a response would have. Raises as `answer`."""
        request, _ = await self._first_turn(project, new)
        return await self.counter.count(request)

    async def prepare(self, project: str, new: NewResponse) -> TurnUsage:
        """Have the model read the prompt that a response would have: its cells stay behind, and
        what begins with it begins sooner. Raises as `answer`."""
        request, context = await self._first_turn(project, new)
        try:
            return await self._read(request)
        except ContextLengthExceeded as error:
            shorter = await context.shortened(request, await context.items(), error)
            if shorter is None:
                raise
        messages = turn_messages(new.settings.instructions or "", shorter)
        return await self._read(replace(request, messages=messages))

    async def _read(self, request: TurnRequest) -> TurnUsage:
        usage = NO_USAGE
        try:
            async with aclosing(self.turns.run(replace(request, max_tokens=0))) as events:
                async for event in events:
                    usage = event.usage if isinstance(event, Done) else usage
        except EngineDied as died:
            raise died.error from died
        return usage

    async def _first_turn(
        self, project: str, request: NewResponse
    ) -> tuple[TurnRequest, ResponseContext]:
        """The first turn that a response would have, and what chooses less for it to be shown."""
        recorder, started = await self._begin(project, request, _silence)
        settings = loop_settings(project, recorder.response, JobPriority.INTERACTIVE)
        items = visible(project, recorder.response, started.items, self.cipher)
        hosted = self.tools.hosted(settings.tools, [*started.items, *items])
        toolbox = ToolSet(settings.tools, hosted)
        thresholds = AutoCompaction(self.compactor, self.counter)
        context = ResponseContext(items, started.own, recorder, self.counter, thresholds)
        return turn_request(settings, Progress(), toolbox, items), context

    async def compact(self, project: str, request: NewResponse) -> Compacted:
        """The user's messages as they were, and a summary of everything. Raises as `answer`."""
        recorder, started = await self._begin(project, request, _silence)
        response = recorder.response
        seen = visible(project, response, started.items, self.cipher)
        try:
            text, usage = await self.compactor.sum_up(project, response, seen)
        except EngineDied as died:
            raise died.error from died
        summary = Summary(text=text, replaces_all=False)
        said = [each for each in started.items if is_users(each)]
        return Compacted(
            id=response.id,
            created_at=response.created_at,
            output=[*said, self.compactor.item(project, summary)],
            usage=usage,
        )

    async def _begin(
        self, project: str, request: NewResponse, say: Say
    ) -> tuple[ResponseRecorder, ResumeState]:
        """A response that is not stored, and its history. Raises as `answer`."""
        response = await self.requests.make(project, request)

        async def read(tx: Transaction) -> tuple[str, ResumeState]:
            await check_tool_stores(tx, project, response.settings.tools)
            context_start, past = await _past(tx, project, response)
            items = await resolve_items(
                tx, project, request.input, self.ids, response.created_at, "input", past
            )
            check_calls(past, items)
            await check_approvals_once(tx, project, response, past, items, locks=False)
            return context_start, ResumeState([*past, *items], items)

        context_start, started = await self.transactions.read(read)
        response = replace(response, context_start=context_start)
        sink = NullSink(say)
        return ResponseRecorder(project, response, (), sink, self.cipher), started

    async def _work(self, project: str, recorder: ResponseRecorder, started: ResumeState) -> None:
        """Until the end. What broke off a response of which readers have heard is its end."""
        try:
            await self.worker.work(project, recorder, started, asyncio.Event())
        except EngineDied as died:
            await _break_off(recorder, died.error, is_known=recorder.has_begun)
        except DomainError as error:
            await _break_off(recorder, error, is_known=recorder.has_begun)


async def _silence(_events: Sequence[ResponseEvent]) -> None:
    """Ignore events."""


async def _break_off(recorder: ResponseRecorder, error: DomainError, *, is_known: bool) -> None:
    """Raise a retryable error if no event has been sent yet; otherwise end the response with it."""
    if not is_known:
        raise error
    await fail(recorder, error)


def _has_called(recorder: ResponseRecorder) -> bool:
    """Whether a remote server may know of the response: another attempt, which clients begin by
    themselves, would make its calls again."""
    return any(isinstance(item.content, McpCall) for item in recorder.output)


async def _past(tx: Transaction, project: str, response: Response) -> tuple[str, list[Item]]:
    """The item with which the model's view of the past begins (empty: all of it), and the past."""
    if response.previous_id:
        previous = await previous_of(tx, project, response)
        past = await read_past(tx, project, previous.id)
        return previous.context_start, past.items
    if not response.conversation_id:
        return "", []
    await ConversationQueries(tx).get(project, response.conversation_id)
    placed = await read_conversation(tx, project, response.conversation_id)
    return "", [each.item for each in placed]
