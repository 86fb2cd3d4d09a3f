"""Limits how many requests run at once, in all and of each project (`svc_kit/queue_share.py`)."""

from collections import Counter
from typing import Final

from starlette.types import Scope

from svc_kit.errors import QueueFull
from svc_kit.queue_share import QueueEntry, check_queue

_RUNNING: Final = "corral.running_requests"
_PROJECT: Final = "corral.project_of_request"


class RunningRequests:
    """The requests and WebSockets of a gateway that have not ended.

    Before its project is known, a request is only refused beyond twice the limit: the half above it
    is for projects that have less than their share.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._of_projects: Counter[str] = Counter()
        self.number = 0

    def add(self, scope: Scope) -> None:
        """Count a request, whatever becomes of it."""
        self.number += 1
        scope[_RUNNING] = self

    def check(self) -> None:
        """Raise QueueFull if there are too many, whosever the last one is."""
        if self.number > 2 * self._limit:
            raise QueueFull(bound="requests", depth=self.number - 1, limit=2 * self._limit)

    def add_to_project(self, scope: Scope, project: str) -> None:
        """Count a request for its project. Raises QueueFull."""
        if _PROJECT in scope:
            return
        check_queue(
            "requests",
            self._limit,
            (QueueEntry(name, 0, number) for name, number in self._of_projects.items()),
            QueueEntry(project),
            depth=self.number,
        )
        self._of_projects[project] += 1
        scope[_PROJECT] = project

    def remove(self, scope: Scope) -> None:
        """Remove a request that has ended."""
        self.number -= 1
        project = scope.pop(_PROJECT, None)
        if project is not None:
            self._of_projects[project] -= 1
            if not self._of_projects[project]:
                del self._of_projects[project]


def count_for_project(scope: Scope, project: str) -> None:
    """Count the request of a scope for its project. Raises QueueFull."""
    running: RunningRequests | None = scope.get(_RUNNING)
    if running is not None:
        running.add_to_project(scope, project)
