"""Answers requests. The events of a stored response are read while its job runs; with
`store: false` the agent loop runs within the call.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final

from control_svc.agent.model import NO_USAGE, Context
from control_svc.agent.prompt import is_user_message, turn_messages
from control_svc.agent.recorder import NullSink
from control_svc.agent.turn import ToolSet, turn_request
from control_svc.base.ids import IdSource
from control_svc.conversations.queries import ConversationQueries
from control_svc.db.transaction import Transaction
from control_svc.event_log.model import Event, encode_events
from control_svc.inference.turns import TurnClient, TurnRequest, TurnUsage
from control_svc.items.model import Item, McpCall
from control_svc.items.service import call_parts, resolve_items
from control_svc.jobs.model import EngineDied, JobPriority
from control_svc.responses.compaction import check_calls
from control_svc.responses.context import (
    prompt_items,
    read_conversation,
    read_history,
)
from control_svc.responses.events import CREATED, event_name, state_event
from control_svc.responses.model import NewResponse, Response, ResponseState, Summary
from control_svc.responses.recorder import ResponseRecorder
from control_svc.responses.service import Responses, get_previous, raise_if_refused
from control_svc.responses.tools import check_new_approvals
from control_svc.responses.worker import ResponseWorker, StartState
from control_svc.tools.file_search_resources import check_tool_stores
from svc_kit.errors import ContextLengthExceeded, DomainError
from svc_kit.tasks import end_tasks

_QUEUE_SIZE: Final = 256
"""Groups of events that are buffered for a slow client before the loop waits."""


@dataclass(frozen=True)
class EphemeralResponses:
    """Answers requests, counts their tokens, prefills and compacts them."""

    responses: Responses
    worker: ResponseWorker
    turns: TurnClient
    ids: IdSource

    async def answer(
        self, project: str, request: NewResponse, priority: JobPriority = JobPriority.INTERACTIVE
    ) -> Response:
        """Return the response when it has ended; at once if it runs in the background.

        Raises the errors of `Responses.create`, and errors of a request that the model rejects.
        """
        if request.settings.store:
            response = await self.responses.create(project, request)
            if request.settings.background:
                return await self.responses.get(project, response.id)
            return await self.responses.wait(project, response.id)
        recorder, start = await self._prepare(project, request, _discard)
        await self._run(recorder, replace(start, priority=priority), _has_mcp_call)
        raise_if_refused(recorder.response)
        return recorder.response

    async def stream(
        self, project: str, request: NewResponse
    ) -> AsyncGenerator[Sequence[Event], None]:
        """Yield all events.

        Raises the errors of `answer` before the first event, which is sent when the model has
        started.
        """
        if not request.settings.store:
            source = self._run_unstored(project, request)
        else:
            response = await self.responses.create(project, request)
            source = self._follow_stored(project, response)
        held: list[Event] = []
        async with aclosing(source) as groups:
            async for group in groups:
                held += group
                is_started = len(held) > 1 or event_name(held[0].data) != CREATED
                if request.settings.background or is_started:
                    yield held
                    held = []

    async def _follow_stored(
        self, project: str, response: Response
    ) -> AsyncGenerator[Sequence[Event], None]:
        async with aclosing(self.responses.follow(project, response.id)) as groups:
            async for group in groups:
                if event_name(group[-1].data) == ResponseState.FAILED:
                    raise_if_refused(await self.responses.get(project, response.id))
                yield group

    async def _run_unstored(
        self, project: str, request: NewResponse
    ) -> AsyncGenerator[Sequence[Event], None]:
        queue: asyncio.Queue[Sequence[bytes]] = asyncio.Queue(_QUEUE_SIZE)
        recorder, start = await self._prepare(project, request, queue.put)
        queue.put_nowait(encode_events([state_event(recorder.response, CREATED)]))
        is_closed = asyncio.Event()

        async def run() -> None:
            try:
                await self._run(recorder, start, lambda each: each.has_begun)
            finally:
                if not is_closed.is_set():  # otherwise a full queue would block for ever
                    await queue.put([])

        task, number = asyncio.create_task(run()), 0
        try:
            while events := await queue.get():
                raise_if_refused(recorder.response)
                yield [Event(number + index, data) for index, data in enumerate(events)]
                number += len(events)
            await task
        finally:
            is_closed.set()
            await end_tasks(task)

    async def count(self, project: str, new: NewResponse) -> int:
        """Count the tokens of the prompt of a response. Raises the errors of `answer`."""
        request, _ = await self._first_turn(project, new)
        return await self.worker.counter.count(request)

    async def prefill(self, project: str, new: NewResponse) -> TurnUsage:
        """Compute the prompt of a response into the prefix cache. Raises the errors of `answer`."""
        request, context = await self._first_turn(project, new)
        try:
            return await self._prefill(request)
        except ContextLengthExceeded as error:
            items = await context.shortened(request, await context.items(), error)
            if items is None:
                raise
        messages = turn_messages(new.settings.instructions or "", items)
        return await self._prefill(replace(request, messages=messages))

    async def _prefill(self, request: TurnRequest) -> TurnUsage:
        usage = NO_USAGE
        try:
            async with aclosing(self.turns.run(replace(request, max_tokens=0))) as events:
                async for event in events:
                    usage = event if isinstance(event, TurnUsage) else usage
        except EngineDied as died:
            raise died.error from died
        return usage

    async def _first_turn(self, project: str, request: NewResponse) -> tuple[TurnRequest, Context]:
        """Return the first turn of a response, and the context that can truncate it."""
        recorder, start = await self._prepare(project, request, _discard)
        work = self.worker.work(recorder, start)
        tools = ToolSet(work.settings, work.hosted)
        items = await work.context.items()
        return turn_request(work.settings, work.progress, tools, items), work.context

    async def compact(self, project: str, request: NewResponse) -> Response:
        """Return a response whose output are the user messages and a summary of all items. Raises
        the errors of `answer`.
        """
        recorder, start = await self._prepare(project, request, _discard)
        response = recorder.response
        items = prompt_items(project, response, start.items, self.worker.cipher)
        try:
            text, usage = await self.worker.compactor.summarize(project, response, items)
        except EngineDied as died:
            raise died.error from died
        summary = Summary(text=text, replaces_all=False)
        user_messages = [item for item in start.items if is_user_message(item)]
        output = (*user_messages, self.worker.compactor.new_item(project, summary))
        return replace(response.complete(usage, self.worker.clock()), output=output)

    async def _prepare(
        self,
        project: str,
        request: NewResponse,
        send: Callable[[Sequence[bytes]], Awaitable[None]],
    ) -> tuple[ResponseRecorder, StartState]:
        """Create a response that is not stored, and read its history."""
        response = await self.responses.factory.create(project, request)

        async def read(tx: Transaction) -> tuple[str, StartState]:
            await check_tool_stores(tx, response.settings.tools)
            context_start, history = await _read_history(tx, response)
            parts, now = call_parts(history), response.created_at
            items = await resolve_items(tx, request.input, self.ids, now, "input", parts)
            check_calls(parts, items)
            await check_new_approvals(tx, response, parts, items, lock=False)
            return context_start, StartState([*history, *items], items)

        context_start, start = await self.worker.transactions.of(project).read(read)
        response = replace(response, context_start=context_start)
        return ResponseRecorder(project, response, (), NullSink(send), self.worker.cipher), start

    async def _run(
        self,
        recorder: ResponseRecorder,
        start: StartState,
        has_effects: Callable[[ResponseRecorder], bool],
    ) -> None:
        """Run a response. A retryable error is raised, unless the response `has_effects`, so that
        the request must not be retried; then it ends the response.
        """
        try:
            prepared = self.worker.prepare(recorder, start)
            await self.worker.execute(recorder, prepared, asyncio.Event())
        except (EngineDied, DomainError) as raised:
            error = raised.error if isinstance(raised, EngineDied) else raised
            if not has_effects(recorder):
                raise error from None
            await self.worker.fail(recorder, error)


async def _discard(_events: Sequence[bytes]) -> None:
    """Ignore events."""


def _has_mcp_call(recorder: ResponseRecorder) -> bool:
    """Whether an MCP server may have executed a call, which a retry would repeat."""
    return any(isinstance(item.content, McpCall) for item in recorder.output)


async def _read_history(tx: Transaction, response: Response) -> tuple[str, list[Item]]:
    """Return the `context_start` of a response and its history."""
    if response.previous_id:
        previous = await get_previous(tx, response)
        history = await read_history(tx, previous.id)
        return previous.context_start, history.items
    if not response.conversation_id:
        return "", []
    await ConversationQueries(tx).get(response.conversation_id)
    placed = await read_conversation(tx, response.conversation_id)
    return "", [each.item for each in placed]
