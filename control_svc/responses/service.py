"""CRUD and cancellation of stored responses; `worker.py` runs them."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from control_svc.agent.mcp import APPROVAL_KINDS
from control_svc.base.idempotency import IdempotencyRecord, record_request
from control_svc.base.ids import JOB, IdSource, creation_key
from control_svc.base.pagination import PAGE_BYTES, Page, PageRequest, PageTokens, Window
from control_svc.conversations.queries import ConversationQueries
from control_svc.db.cleanup import CleanupStep, Deleted
from control_svc.db.transaction import Clock, Transaction, Transactions
from control_svc.event_log.model import BEFORE_FIRST, Event
from control_svc.event_log.queries import StreamQueries
from control_svc.event_log.reader import StreamReader
from control_svc.inference.prefix_cleanup import PrefixCleanup
from control_svc.items.model import INPUT_ITEMS, Item, ItemFilter
from control_svc.items.queries import TimelineQueries
from control_svc.items.service import append_items, check_duplicates, resolve_items
from control_svc.jobs.model import JobPriority, NewJob
from control_svc.jobs.queries import JobQueries
from control_svc.responses.compaction import CALL_KINDS, check_calls
from control_svc.responses.context import Requests
from control_svc.responses.events import EventCodec, EventType, LifeEvent, ResponseEvent
from control_svc.responses.model import NewResponse, Response
from control_svc.responses.queries import ResponseQueries
from control_svc.responses.recorder import close_conversation
from control_svc.responses.tools import check_approvals_once
from control_svc.responses.transitions import Endings
from control_svc.responses.worker import KIND
from control_svc.tools.file_search_resources import check_tool_stores
from svc_kit.errors import InvalidField, PreviousResponseNotFound, ResponseNotFound
from svc_kit.errors.status import restore_error

CREATE: Final = "CreateResponse"
MAX_PAGE: Final = 100


@dataclass(frozen=True)
class Responses:
    """What callers do with stored responses."""

    transactions: Transactions
    followers: StreamReader
    requests: Requests
    endings: Endings
    codec: EventCodec
    ids: IdSource
    tokens: PageTokens
    clock: Clock
    prefix_cleanup: PrefixCleanup

    async def create(self, project: str, new: NewResponse) -> Response:
        """Begin a response.

        Raises what `Requests.make` does; RequestIdReused, PreviousResponseNotFound,
        PreviousResponseUnfinished, ConversationNotFound, ConversationLocked, ItemNotFound,
        FileNotFound, VectorStoreNotFound, ToolCallMissing or ToolOutputMissing; InvalidField for
        an item that the conversation has.
        """
        response = await self.requests.make(project, new)
        request = IdempotencyRecord.of(
            CREATE, new.request_id, response.id, response.created_at, new
        )

        async def add(tx: Transaction) -> Response:
            created = await record_request(tx, project, request)
            if created != response.id:
                return await ResponseQueries(tx).get(project, created)
            return await self._add(tx, project, new, response)

        return await self.transactions.write(add)

    async def _add(
        self, tx: Transaction, project: str, request: NewResponse, response: Response
    ) -> Response:
        await check_tool_stores(tx, project, request.settings.tools)
        before, response = await _what_was_said(tx, project, response)
        if response.conversation_id:  # which is to have each item once when the response ends
            await check_duplicates(tx, project, response.conversation_id, request.input, "input")
        items = await resolve_items(
            tx, project, request.input, self.ids, response.created_at, "input", before
        )
        check_calls(before, items)
        await check_approvals_once(tx, project, response, before, items, locks=True)
        await ResponseQueries(tx).add(project, response)
        await append_items(tx, project, response.id, request.input, items, "input")
        await StreamQueries(tx).create(
            project, response.id, [self.codec.encode(event) for event in _first_events(response)]
        )
        job = NewJob(
            id=self.ids.new(JOB), kind=KIND, subject=response.id, priority=JobPriority.INTERACTIVE
        )
        await JobQueries(tx).add(project, job)
        return response

    async def get(self, project: str, response_id: str) -> Response:
        """A response, with its output once it has ended. Raises ResponseNotFound."""

        async def read(tx: Transaction) -> Response:
            found = await ResponseQueries(tx).get(project, response_id)
            if not found.state.is_final:
                return found
            created = await TimelineQueries(tx).read(
                project, response_id, item_filter=ItemFilter(origin=response_id)
            )
            return replace(found, output=tuple(placed.item for placed in created))

        return await self.transactions.read(read)

    def follow(
        self, project: str, response_id: str, after: int = BEFORE_FIRST
    ) -> AsyncGenerator[Sequence[Event], None]:
        """The events of a response beyond a number, to its end.

        Raises ResponseNotFound, StreamExpired or OutOfRange.
        """
        missing = ResponseNotFound(response=response_id)
        return self.followers.follow(
            project, response_id, after, missing=missing, field="starting_after"
        )

    async def ended(self, project: str, response_id: str) -> Response:
        """A response once it has ended. Raises ResponseNotFound where it was deleted, and what it
        was refused with, if it was."""
        found = await self.get(project, response_id)
        if not found.state.is_final:
            async with aclosing(self.follow(project, response_id)) as events:
                async for _ in events:
                    pass
            found = await self.get(project, response_id)
        check_not_refused(found)
        return found

    async def delete(self, project: str, response_id: str) -> None:
        """Forget a response; one that is under way is given up. Raises ResponseNotFound."""

        async def forget(tx: Transaction) -> None:
            await ResponseQueries(tx).get(project, response_id)
            # Lock the job's row first, as the response's worker does.
            await JobQueries(tx).request_cancel(project, KIND, response_id)
            found = await ResponseQueries(tx).lock(project, response_id)
            is_running = not found.state.is_final
            if is_running:
                await close_conversation(tx, project, found)
            start = await ResponseQueries(tx).start(project, response_id)
            await ResponseQueries(tx).delete(project, response_id)
            if start is not None:
                await self.prefix_cleanup.enqueue(
                    tx, project, start.archive_name, is_running=is_running
                )

        await self.transactions.write(forget)

    async def cancel(self, project: str, response_id: str) -> Response:
        """Give a background response up; one that has ended stays as it is.

        Raises ResponseNotFound or ResponseNotCancellable.
        """

        async def give_up(tx: Transaction) -> None:
            (await ResponseQueries(tx).get(project, response_id)).check_cancellable()
            await JobQueries(tx).request_cancel(project, KIND, response_id)
            found = await ResponseQueries(tx).lock(project, response_id)
            if not found.state.is_final:
                await self.endings.end(
                    tx,
                    project,
                    found,
                    EventType.CANCELLED,
                    lambda work: found.cancelled(work.cost),
                )

        await self.transactions.write(give_up)
        return await self.get(project, response_id)

    async def input_items(
        self, project: str, response_id: str, page_request: PageRequest
    ) -> Page[Item]:
        """A page of what a response was asked. Raises ResponseNotFound, OutOfRange or
        InvalidField."""
        if page_request.after and not creation_key(page_request.after):
            raise InvalidField(field="after", problem="it is not the id of an item")
        binding = (project, "input items", response_id)
        window = self.tokens.window(page_request, binding, MAX_PAGE)

        async def read(tx: Transaction) -> list[Item]:
            await ResponseQueries(tx).get(project, response_id)
            found = await TimelineQueries(tx).page(project, response_id, window, INPUT_ITEMS)
            return [placed.item for placed in found]

        found = await self.transactions.read(read)
        return self.tokens.page(found, window, page_request, binding, PAGE_BYTES)


def check_not_refused(response: Response) -> None:
    """Raises the error with which a response was refused before its model began."""
    error = response.ended.error
    if error is not None and error.is_refusal:
        raise restore_error(error.reason, error.message, error.metadata)


async def _what_was_said(
    tx: Transaction, project: str, response: Response
) -> tuple[list[Item], Response]:
    """The open calls, and the response with its position in the history."""
    if response.previous_id:
        previous = await previous_of(tx, project, response)
        own = await TimelineQueries(tx).read(project, previous.id)
        changed = replace(response, context_start=previous.context_start)
        return [placed.item for placed in own], changed
    if not response.conversation_id:
        return [], response
    conversation = await ConversationQueries(tx).lock(project, response.conversation_id)
    await ConversationQueries(tx).update(project, conversation.claimed_by(response.id))
    last = await TimelineQueries(tx).page(project, conversation.id, Window(1))
    end = last[0].position + 1 if last else 0
    calls = await TimelineQueries(tx).read(
        project, conversation.id, item_filter=ItemFilter(kinds=(*CALL_KINDS, *APPROVAL_KINDS))
    )
    return [placed.item for placed in calls], replace(response, conversation_end=end)


async def previous_of(tx: Transaction, project: str, response: Response) -> Response:
    """The response that this one continues. Raises PreviousResponseNotFound or
    PreviousResponseUnfinished.
    """
    try:
        previous = await ResponseQueries(tx).get(project, response.previous_id)
    except ResponseNotFound:
        raise PreviousResponseNotFound(response=response.previous_id) from None
    previous.check_can_be_followed()
    return previous


def _first_events(response: Response) -> list[ResponseEvent]:
    created: list[ResponseEvent] = [LifeEvent(EventType.CREATED, response)]
    if response.settings.background:
        created.append(LifeEvent(EventType.QUEUED, response))
    return created


_RESPONSES_AT_ONCE: Final = 50
"""Fewer than other rows: each is deleted with its items and events."""


def delete_expired_responses(prefix_cleanup: PrefixCleanup) -> CleanupStep:
    """Return the step of the sweeper that deletes expired responses and what is stored for them."""

    async def delete_responses(tx: Transaction, now: datetime) -> Deleted:
        expired = await ResponseQueries(tx).drop_expired(now, _RESPONSES_AT_ONCE)
        for each in expired:
            if each.is_start:
                await prefix_cleanup.enqueue(tx, each.project, each.id)
        return Deleted(len(expired))

    return delete_responses
