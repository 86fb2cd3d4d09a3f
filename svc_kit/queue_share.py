"""The share of a project in a queue with a limit.

One project alone may fill a queue. While it is full, each project still gets its share: the limit
divided by the number of projects in the queue, and that by the number of priorities that the
project has there. A queue that one project after the other fills so has at most
`limit x (1 + 1/2 + 1/3 + ...)`, half as much more if each does so at two priorities; it returns to
its limit as it is served.
"""

from collections.abc import Iterable
from typing import NamedTuple

from svc_kit.errors import QueueFull


class QueueEntry(NamedTuple):
    """What waits in a queue. `amount` is in the unit of its limit."""

    project: str
    priority: int = 0
    amount: int = 1


def check_queue(
    bound: str,
    limit: int,
    waiting: Iterable[QueueEntry],
    new: QueueEntry,
    *,
    depth: int,
    retry_after: float = 1.0,
) -> None:
    """Raise QueueFull if a queue with `depth`, `new` included, exceeds its limit, and the project
    of `new` its share.

    `bound` is what is counted, and `waiting` is what waits already.
    """
    if depth <= limit:
        return
    queue = list(waiting)
    share = share_of(limit, queue, new)
    held = sum(each.amount for each in queue if each[:2] == new[:2])
    if held + new.amount > share:
        raise QueueFull(
            bound=bound, depth=depth, limit=limit, held=held, share=share, retry_after=retry_after
        )


def share_of(limit: int, waiting: Iterable[QueueEntry], new: QueueEntry) -> int:
    """The share of a project's priority in a queue. It is at least 1, unless nothing may wait."""
    classes = {each[:2] for each in waiting} | {new[:2]}
    num_projects = len({project for project, _ in classes})
    num_priorities = sum(project == new.project for project, _ in classes)
    return max(limit // (num_projects * num_priorities), min(limit, 1))
