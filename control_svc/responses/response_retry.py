"""Retries responses whose job is dead, for operators."""

from control_svc.agent.recorder import items_of_open_turn
from control_svc.db.transaction import Transaction
from control_svc.event_log.model import encode_events
from control_svc.event_log.queries import StreamQueries
from control_svc.items.model import ItemFilter
from control_svc.items.queries import TimelineQueries
from control_svc.jobs.model import Job
from control_svc.responses.events import state_event
from control_svc.responses.model import Response, ResponseState
from control_svc.responses.queries import ResponseQueries
from control_svc.responses.recorder import claim_conversation
from svc_kit.errors import (
    ConversationLocked,
    ConversationNotFound,
    JobNotRetriable,
    ResponseNotFound,
)


async def retry_response(tx: Transaction, job: Job) -> str:
    """Queue a failed response again: completed turns stay, the turn that failed starts over.

    Its events follow those that clients have seen. Raises JobNotRetriable if the response is
    deleted, has not failed or is continued by another one, or if its conversation is in use.
    """
    response_id = job.subject
    try:
        failed = await ResponseQueries(tx).lock(response_id)
        await _check_unused(tx, failed)
        await claim_conversation(tx, failed)
    except (ResponseNotFound, ConversationNotFound, ConversationLocked, _InUse) as problem:
        raise JobNotRetriable(job=job.id, problem=str(problem)) from None
    timelines, item_filter = TimelineQueries(tx), ItemFilter(origin=response_id)
    placed = await timelines.read(response_id, item_filter=item_filter)
    output = [each.item for each in placed]
    for item in items_of_open_turn(output, awaits_client=failed.work.awaits_client):
        await timelines.remove(response_id, item.id)
    response = failed.reopen()
    await ResponseQueries(tx).update(response)
    await StreamQueries(tx).reopen(response_id, encode_events([state_event(response)]))
    return job.kind


class _InUse(Exception):
    """The response has another state, or others depend on its failure."""


async def _check_unused(tx: Transaction, response: Response) -> None:
    if response.state is not ResponseState.FAILED:
        raise _InUse(f"the response '{response.id}' is {response.state.value}.")
    if await ResponseQueries(tx).is_continued(response.id):
        raise _InUse(f"another response continues the response '{response.id}'.")
