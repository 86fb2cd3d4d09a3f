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
"""Reopens the subject of a dead job, in the transaction that queues the job again, and returns the
kind of job that the subject needs now. Raises JobNotRetriable if the subject has ended."""


class Jobs:
    """Operations on jobs, for operators."""

    def __init__(
        self, transactions: Transactions, tokens: PageTokens, retries: Mapping[str, Retry]
    ) -> None:
        """`retries` by kind; dead jobs of other kinds cannot be retried."""
        self._transactions = transactions
        self._tokens = tokens
        self._retries = retries

    async def get(self, job_id: str) -> Job:
        """Return a job. Raises JobNotFound."""
        return await self._transactions.read(lambda tx: JobRecordQueries(tx).get(job_id))

    async def page(
        self, page_request: PageRequest, project: str, state: JobState | None
    ) -> Page[Job]:
        """List jobs, of all projects if `project` is empty, in any state if `state` is None.

        Raises ProjectNotFound, OutOfRange or InvalidField.
        """
        if project:
            check_project_id(project)
        binding = ("jobs", project, state or "")
        window = self._tokens.window(page_request, binding, MAX_PAGE)
        jobs = await self._transactions.read(
            lambda tx: JobRecordQueries(tx).page(window, project, state)
        )
        return self._tokens.page(jobs, window, page_request, binding)

    async def retry(self, job_id: str) -> Job:
        """Queue a dead job again. Raises JobNotFound or JobNotRetriable."""

        async def retry(tx: Transaction) -> Job:
            dead = await JobRecordQueries(tx).lock(job_id)
            dead.check_dead()
            reopen_subject = self._retries.get(dead.kind)
            if reopen_subject is None:
                problem = f"jobs of kind '{dead.kind}' cannot be retried."
                raise JobNotRetriable(job=job_id, problem=problem)
            job = dead.retry(await reopen_subject(tx, dead), await tx.now())
            await JobQueueQueries(tx).save(job)
            return job

        return await self._transactions.write(retry)
