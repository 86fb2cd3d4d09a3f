"""What operators see of the jobs of all projects."""

from typing import Protocol

from control_svc.domain.jobs import Job, JobState
from control_svc.domain.listing import Window


class JobRecords(Protocol):
    """The rows of jobs, whosever they are: for operators."""

    async def get(self, job_id: str) -> Job:
        """Raises JobNotFound."""

    async def lock(self, job_id: str) -> Job:
        """As `get`; until the end of the transaction nobody else changes the job."""

    async def page(self, window: Window, project: str, state: JobState | None) -> list[Job]:
        """The jobs of a window; `project` empty: of all, `state` None: in any."""
