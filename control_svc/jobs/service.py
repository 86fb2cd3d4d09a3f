"""Lists jobs for operators and retries dead letters."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from control_svc.base.pagination import Page, PageRequest, PageTokens
from control_svc.base.validation import check_project_id
from control_svc.db.transaction import Transaction, Transactions
from control_svc.jobs.model import Job, JobState
from control_svc.jobs.queries import JobQueueQueries, JobRecordQueries
from svc_kit.errors import JobNotRetriable

MAX_PAGE: Final = 1000
Retry = Callable[[Transaction, Job], Awaitable[str]]
"""Bring the subject of a dead job back to where its work can go on, in the transaction in which the
job begins again, and return the kind of job that it needs now. Raises JobNotRetriable where the
subject has ended for good."""


class Jobs:
    """The jobs of all projects."""

    def __init__(
        self, transactions: Transactions, tokens: PageTokens, retries: Mapping[str, Retry]
    ) -> None:
        """`retries` by kind; dead jobs of other kinds stay dead."""
        self._transactions = transactions
        self._tokens = tokens
        self._retries = retries

    async def get(self, job_id: str) -> Job:
        """Raises JobNotFound."""
        return await self._transactions.read(lambda tx: JobRecordQueries(tx).get(job_id))

    async def page(
        self, page_request: PageRequest, project: str, state: JobState | None
    ) -> Page[Job]:
        """A page of jobs; `project` empty: of all. Raises ProjectNotFound, OutOfRange or
        InvalidField."""
        if project:
            check_project_id(project)
        binding = ("jobs", project, state or "")
        window = self._tokens.window(page_request, binding, MAX_PAGE)
        found = await self._transactions.read(
            lambda tx: JobRecordQueries(tx).page(window, project, state)
        )
        return self._tokens.page(found, window, page_request, binding)

    async def retry(self, job_id: str) -> Job:
        """Let a dead job begin again. Raises JobNotFound or JobNotRetriable."""

        async def begin(tx: Transaction) -> Job:
            dead = await JobRecordQueries(tx).lock(job_id)
            dead.check_dead()
            revive = self._retries.get(dead.kind)
            if revive is None:
                raise JobNotRetriable(job=job_id, problem=f"no job of kind '{dead.kind}' can.")
            kind = await revive(tx, dead)
            job = dead.retry(kind, await tx.now())
            await JobQueueQueries(tx).save(job)
            return job

        return await self._transactions.write(begin)
