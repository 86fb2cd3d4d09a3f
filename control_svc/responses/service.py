"""Creates and reads stored responses. `worker.py` runs them."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final

from control_svc.base.idempotency import IdempotencyRecord, record_request
from control_svc.base.ids import JOB, IdSource
from control_svc.db.transaction import Transaction, Transactions, read_transaction
from control_svc.event_log.model import BEFORE_FIRST, Event, encode_events
from control_svc.event_log.queries import StreamQueries
from control_svc.event_log.reader import StreamReader
from control_svc.items.model import CallPart, ItemFilter
from control_svc.items.queries import TimelineQueries
from control_svc.items.service import append_items, check_duplicates, resolve_items
from control_svc.jobs.model import JobPriority, NewJob
from control_svc.jobs.queries import JobQueries
from control_svc.responses.compaction import check_calls
from control_svc.responses.context import ResponseFactory
from control_svc.responses.events import CREATED, state_event
from control_svc.responses.model import NewResponse, Response
from control_svc.responses.queries import ResponseQueries
from control_svc.responses.recorder import claim_conversation
from control_svc.responses.tools import check_new_approvals
from control_svc.responses.worker import KIND
from control_svc.tools.file_search_resources import check_tool_stores
from svc_kit.errors import PreviousResponseNotFound, ResponseNotFound
from svc_kit.errors.status import restore_error

CREATE: Final = "CreateResponse"


@dataclass(frozen=True)
class Responses:
    """Creates, reads and follows stored responses."""

    transactions: Transactions
    reader: StreamReader
    factory: ResponseFactory
    ids: IdSource

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


def raise_if_refused(response: Response) -> None:
    """Raise the error of a request that was rejected before the model started."""
    error = response.result.error
    if error is not None and error.is_refusal:
        raise restore_error(error.reason, error.message, error.metadata)


async def _place_response(tx: Transaction, response: Response) -> tuple[list[CallPart], Response]:
    """Lock the conversation, if any. Return what earlier items have of calls and approvals, and the
    response with its position in the history.
    """
    if response.previous_id:
        previous = await get_previous(tx, response)
        response = replace(response, context_start=previous.context_start)
        return await TimelineQueries(tx).call_parts(previous.id), response
    if not response.conversation_id:
        return [], response
    await claim_conversation(tx, response)
    end = await TimelineQueries(tx).end(response.conversation_id)
    calls = await TimelineQueries(tx).call_parts(response.conversation_id)
    return calls, replace(response, conversation_end=end)


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
