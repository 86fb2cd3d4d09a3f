"""A request with an id of the caller's is carried out once, whatever its client's retries."""

from control_svc.domain.ports import Repositories
from control_svc.domain.requests import REMEMBERED_FOR, RememberedRequest


async def once(repositories: Repositories, project: str, request: RememberedRequest) -> str:
    """The id of what the first such request made; `request.resource_id` where this is the first.

    Two at the same moment meet in a unique key: one of the transactions is run again, and finds the
    other. A request without an id is always the first. Raises RequestIdReused.
    """
    if not request.request_id:
        return request.resource_id
    since = request.created_at - REMEMBERED_FOR
    earlier = await repositories.requests.recall(project, request.method, request.request_id, since)
    if earlier is None:
        await repositories.requests.add(project, request)
        return request.resource_id
    earlier.check_same(request.fingerprint)
    return earlier.resource_id
