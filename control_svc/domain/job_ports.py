"""What the use cases, the workers and the operators of jobs need from the database."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple, Protocol

from control_svc.domain.jobs import Claim, Job, JobState, NewJob
from control_svc.domain.listing import Window

JOBS_TOPIC: Final = "jobs"
"""What is announced when a job can be claimed, or is to be cancelled."""


class JobRepository(Protocol):
    """The jobs of a project, for the use cases that cause them.

    Where a transaction locks both, it locks the job before the resource that it works for.
    """

    async def add(self, project: str, new: NewJob) -> Job:
        """Queue a job, in the transaction of the change that causes it."""

    async def add_all(self, project: str, jobs: Sequence[NewJob]) -> list[Job]:
        """As `add`, for any number of them."""

    async def get(self, project: str, job_id: str) -> Job | None:
        """A job; None: there is none, or no longer."""

    async def request_cancel(self, project: str, kind: str, subject: str) -> Job | None:
        """Ask for the end of the subject's unfinished job, and lock it; None: there is none.

        The job runs once more, if it waits: its worker ends the subject as it should.
        """


class JobCount(NamedTuple):
    """How many jobs of a kind are in a state, and since when the oldest could have run."""

    kind: str
    state: JobState
    num_jobs: int
    oldest: datetime


class JobQueue(Protocol):
    """The jobs of all projects, for the workers alone. Rows it returns are locked, unless told."""

    async def due(self, kinds: Collection[str]) -> Job | None:
        """The job that comes next; nobody else gets it.

        By priority, then of the project with the fewest running jobs, then the one that has been
        due for longest.
        """

    async def lock(self, claim: Claim) -> Job:
        """The job of a claim. Raises LeaseLost."""

    async def lock_all(self, claims: Collection[Claim]) -> list[Job]:
        """The jobs of those claims that count; the others are lost."""

    async def orphans(
        self, kinds: Collection[str], owner: str, limit: int, *, is_alone: bool
    ) -> list[Job]:
        """Running jobs of other owners whose leases ran out, not locked; alone: of all others."""

    async def held(self, owner: str) -> list[Job]:
        """The running jobs of an owner, not locked."""

    async def save(self, job: Job) -> None:
        """Keep what has changed of a locked job."""

    async def renew(self, owner: str, lease: timedelta) -> None:
        """Let the owner's leases run anew from now on. Jobs that somebody has locked are left."""

    async def census(self) -> list[JobCount]:
        """How many jobs there are, not locked."""


class JobRecords(Protocol):
    """The rows of jobs, whosever they are: for operators."""

    async def get(self, job_id: str) -> Job:
        """Raises JobNotFound."""

    async def lock(self, job_id: str) -> Job:
        """As `get`; until the end of the transaction nobody else changes the job."""

    async def page(self, window: Window, project: str, state: JobState | None) -> list[Job]:
        """The jobs of a window; `project` empty: of all, `state` None: in any."""
