"""CRUD and cancellation of stored responses. `worker.py` runs them."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from control_svc.agent.mcp import APPROVAL_KINDS
from control_svc.base.idempotency import IdempotencyRecord, record_request
from control_svc.base.ids import JOB, RESPONSE, IdSource, creation_key
from control_svc.base.pagination import PAGE_BYTES, Page, PageRequest, PageTokens, Window
from control_svc.conversations.queries import ConversationQueries
from control_svc.db.cleanup import CleanupStep, Deleted
from control_svc.db.transaction import (
    CrossProjectTransaction,
    Transaction,
    Transactions,
    delete_transaction,
    read_transaction,
    write_transaction,
)
from control_svc.event_log.model import BEFORE_FIRST, Event, encode_events
from control_svc.event_log.queries import StreamQueries
from control_svc.event_log.reader import StreamReader
from control_svc.inference.prefix_cleanup import PrefixCleanup
from control_svc.items.model import CALL_KINDS, INPUT_ITEMS, Item, ItemFilter
from control_svc.items.queries import TimelineQueries
from control_svc.items.service import (
    append_items,
    check_duplicates,
    resolve_items,
)
from control_svc.jobs.model import JobPriority, NewJob
from control_svc.jobs.queries import JobQueries
from control_svc.responses.compaction import check_calls
from control_svc.responses.content_cipher import ContentCipher
from control_svc.responses.context import ResponseFactory
from control_svc.responses.events import CREATED, state_event
from control_svc.responses.model import NewResponse, Response
from control_svc.responses.queries import ResponseQueries, ResponseSweepQueries
from control_svc.responses.recorder import close_conversation
from control_svc.responses.tools import check_new_approvals
from control_svc.responses.worker import KIND, end_response
from control_svc.tools.file_search_resources import check_tool_stores
from svc_kit.errors import InvalidField, PreviousResponseNotFound, ResponseNotFound
from svc_kit.errors.status import restore_error

CREATE: Final = "CreateResponse"
MAX_PAGE: Final = 100


@dataclass(frozen=True)
class Responses:
    """Creates, reads, cancels and deletes stored responses."""

    transactions: Transactions
    reader: StreamReader
    factory: ResponseFactory
    cipher: ContentCipher
    ids: IdSource
    tokens: PageTokens
    prefix_cleanup: PrefixCleanup

    async def create(self, project: str, new: NewResponse) -> Response:
        """Create a response and queue its job.

        Raises the errors of `ResponseFactory.create`; RequestIdReused, PreviousResponseNotFound,
        PreviousResponseUnfinished, ConversationNotFound, ConversationLocked, ItemNotFound,
        FileNotFound, VectorStoreNotFound, ToolCallMissing or ToolOutputMissing; InvalidField for
        an item that is already in the conversation.
        """
        response = await self.factory.create(project, new)
        request = IdempotencyRecord.of(
            CREATE, new.request_id, response.id, response.created_at, new
        )

        async def add(tx: Transaction) -> Response:
            response_id = await record_request(tx, request)
            if response_id != response.id:
                return await ResponseQueries(tx).get(response_id)
            return await self._add(tx, new, response)

        return await self.transactions.of(project).write(add)

    async def _add(self, tx: Transaction, request: NewResponse, response: Response) -> Response:
        await check_tool_stores(tx, request.settings.tools)
        history, response = await _place_response(tx, response)
        if response.conversation_id:
            # The input is added to the conversation when the response ends.
            await check_duplicates(tx, response.conversation_id, request.input, "input")
        items = await resolve_items(
            tx, request.input, self.ids, response.created_at, "input", history
        )
        check_calls(history, items)
        await check_new_approvals(tx, response, history, items, lock=True)
        await ResponseQueries(tx).add(response)
        await append_items(tx, response.id, request.input, items, "input")
        events = [state_event(response, CREATED)]
        if response.settings.background:
            events.append(state_event(response))
        await StreamQueries(tx).create(response.id, encode_events(events))
        job = NewJob(
            id=self.ids.new(JOB), kind=KIND, subject=response.id, priority=JobPriority.INTERACTIVE
        )
        await JobQueries(tx).add(job)
        return response

    @read_transaction
    async def get(self, tx: Transaction, response_id: str) -> Response:
        """Return a response, with its output if it has ended. Raises ResponseNotFound."""
        response = await ResponseQueries(tx).get(response_id)
        if not response.state.is_final:
            return response
        output = await TimelineQueries(tx).read(
            response_id, item_filter=ItemFilter(origin=response_id)
        )
        return replace(response, output=tuple(placed.item for placed in output))

    @read_transaction
    async def page(self, tx: Transaction, page_request: PageRequest) -> Page[Response]:
        """A page of the project's responses, without their output.

        Raises OutOfRange or InvalidField.
        """
        page_request.check_cursors(RESPONSE, "a response")
        window = self.tokens.window(page_request, (tx.project, "responses"), MAX_PAGE)
        return window.page(await ResponseQueries(tx).page(window))

    def follow(
        self, project: str, response_id: str, after: int = BEFORE_FIRST
    ) -> AsyncGenerator[Sequence[Event], None]:
        """Yield the events of a response after a sequence number, until it ends.

        Raises ResponseNotFound, StreamExpired or OutOfRange.
        """
        missing = ResponseNotFound(response=response_id)
        return self.reader.follow(
            project, response_id, after, missing=missing, field="starting_after"
        )

    async def wait(self, project: str, response_id: str) -> Response:
        """Wait for the end of a response and return it.

        Raises ResponseNotFound if it is deleted meanwhile, and the error of a rejected request.
        """
        response = await self.get(project, response_id)
        if not response.state.is_final:
            async with aclosing(self.follow(project, response_id)) as events:
                async for _ in events:
                    pass
            response = await self.get(project, response_id)
        raise_if_refused(response)
        return response

    @delete_transaction
    async def delete(self, tx: Transaction, response_id: str) -> None:
        """Delete a response; cancel it if it is running. Raises ResponseNotFound."""
        await ResponseQueries(tx).get(response_id)
        # Lock the row of the job first, as the worker does.
        await JobQueries(tx).request_cancel(KIND, response_id)
        response = await ResponseQueries(tx).lock(response_id)
        is_running = not response.state.is_final
        if is_running:
            await close_conversation(tx, response)
        start = await ResponseQueries(tx).start(response_id)
        await ResponseQueries(tx).delete(response_id)
        if start is not None:
            await self.prefix_cleanup.enqueue(tx, start.object_id, is_running=is_running)

    async def cancel(self, project: str, response_id: str) -> Response:
        """Cancel a background response; one that has ended does not change.

        Raises ResponseNotFound or ResponseNotCancellable.
        """
        await self._cancel(project, response_id)
        return await self.get(project, response_id)

    @write_transaction
    async def _cancel(self, tx: Transaction, response_id: str) -> None:
        (await ResponseQueries(tx).get(response_id)).check_cancellable()
        await JobQueries(tx).request_cancel(KIND, response_id)
        response = await ResponseQueries(tx).lock(response_id)
        if not response.state.is_final:
            await end_response(tx, response, self.cipher, Response.cancel)

    @read_transaction
    async def input_items(
        self, tx: Transaction, response_id: str, page_request: PageRequest
    ) -> Page[Item]:
        """List the input items. Raises ResponseNotFound, OutOfRange or InvalidField."""
        if page_request.after and not creation_key(page_request.after):
            raise InvalidField(field="after", problem="must be the id of an item")
        window = self.tokens.window(
            page_request, (tx.project, "input items", response_id), MAX_PAGE
        )
        await ResponseQueries(tx).get(response_id)
        rows = await TimelineQueries(tx).page(response_id, window, INPUT_ITEMS)
        return window.page([placed.item for placed in rows], PAGE_BYTES)


def raise_if_refused(response: Response) -> None:
    """Raise the error of a request that was rejected before the model started."""
    error = response.result.error
    if error is not None and error.is_refusal:
        raise restore_error(error.reason, error.message, error.metadata)


async def _place_response(tx: Transaction, response: Response) -> tuple[list[Item], Response]:
    """Lock the conversation, if any. Return earlier items, which include all open calls, and the
    response with its position in the history.
    """
    if response.previous_id:
        previous = await get_previous(tx, response)
        own = await TimelineQueries(tx).read(previous.id)
        response = replace(response, context_start=previous.context_start)
        return [placed.item for placed in own], response
    if not response.conversation_id:
        return [], response
    conversation = await ConversationQueries(tx).lock(response.conversation_id)
    await ConversationQueries(tx).update(conversation.claimed_by(response.id))
    last = await TimelineQueries(tx).page(conversation.id, Window(1))
    end = last[0].position + 1 if last else 0
    calls = await TimelineQueries(tx).read(
        conversation.id, item_filter=ItemFilter(kinds=(*CALL_KINDS, *APPROVAL_KINDS))
    )
    return [placed.item for placed in calls], replace(response, conversation_end=end)


async def get_previous(tx: Transaction, response: Response) -> Response:
    """Return the response that this one continues.

    Raises PreviousResponseNotFound or PreviousResponseUnfinished.
    """
    try:
        previous = await ResponseQueries(tx).get(response.previous_id)
    except ResponseNotFound:
        raise PreviousResponseNotFound(response=response.previous_id) from None
    previous.check_final()
    return previous


_EXPIRED_PER_BATCH: Final = 50
"""Fewer than of other rows: each is deleted with its items and events."""


def delete_expired_responses(prefix_cleanup: PrefixCleanup) -> CleanupStep:
    """Return the step of the sweeper that deletes expired responses and what is stored for them."""

    async def delete_responses(tx: CrossProjectTransaction, now: datetime) -> Deleted:
        expired = await ResponseSweepQueries(tx).delete_expired(now, _EXPIRED_PER_BATCH)
        for response in expired:
            if response.is_start:
                await prefix_cleanup.enqueue(tx.of(response.project), response.id)
        return Deleted(len(expired))

    return delete_responses
