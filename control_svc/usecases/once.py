"""A request with an id of the caller's is carried out once, whatever its client's retries."""

from control_svc.domain.requests import REMEMBERED_FOR, RememberedRequest
from control_svc.storage.repositories.requests import SqlRequests
from control_svc.storage.unit_of_work import Transaction


async def once(tx: Transaction, project: str, request: RememberedRequest) -> str:
    """The id of what the first such request made; `request.resource_id` where this is the first.

    Raises RequestIdReused.
    """
    first = await earlier(tx, project, request)
    return (first or request).resource_id


async def earlier(
    tx: Transaction, project: str, request: RememberedRequest
) -> RememberedRequest | None:
    """The same request, carried out before; None: this is the first, and is remembered.

    Two at the same moment meet in a unique key: one of the transactions is run again, and finds the
    other. A request without an id is always the first. Raises RequestIdReused.
    """
    if not request.request_id:
        return None
    since = request.created_at - REMEMBERED_FOR
    found = await SqlRequests(tx).recall(project, request.method, request.request_id, since)
    if found is None:
        await SqlRequests(tx).add(project, request)
        return None
    found.check_same(request.fingerprint)
    return found
