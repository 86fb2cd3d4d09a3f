"""Lists jobs for operators and retries dead letters."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from control_svc.audit.log import record_act
from control_svc.base.pagination import Page, PageRequest, PageTokens
from control_svc.base.validation import check_project_id
from control_svc.db.transaction import (
    Transaction,
    Transactions,
    read_transaction,
    write_transaction,
)
from control_svc.jobs.model import Job, JobState
from control_svc.jobs.queries import JobQueueQueries, JobRecordQueries
from svc_kit.errors import JobNotRetriable

MAX_PAGE: Final = 1000
Retry = Callable[[Transaction, Job], Awaitable[str]]
"""Reopens the subject of a dead job, in the transaction that queues the job again, and returns the
kind of job that the subject needs now. Raises JobNotRetriable if the subject has ended."""


@dataclass(frozen=True)
class Jobs:
    """Operations on jobs, for operators."""

    transactions: Transactions
    tokens: PageTokens
    retries: Mapping[str, Retry]
    """By kind; dead jobs of other kinds cannot be retried."""

    @read_transaction
    async def get(self, tx: Transaction, job_id: str) -> Job:
        """Return a job. Raises JobNotFound."""
        return await JobRecordQueries(tx).get(job_id)

    @read_transaction
    async def page(
        self, tx: Transaction, page_request: PageRequest, project: str, state: JobState | None
    ) -> Page[Job]:
        """List jobs, of all projects if `project` is empty, in any state if `state` is None.

        Raises ProjectNotFound, OutOfRange or InvalidField.
        """
        if project:
            check_project_id(project)
        window = self.tokens.window(page_request, ("jobs", project, state or ""), MAX_PAGE)
        return window.page(await JobRecordQueries(tx).page(window, project, state))

    @write_transaction
    async def retry(self, tx: Transaction, job_id: str) -> Job:
        """Queue a dead job again. Raises JobNotFound or JobNotRetriable."""
        dead = await JobRecordQueries(tx).lock(job_id)
        dead.check_dead()
        reopen_subject = self.retries.get(dead.kind)
        if reopen_subject is None:
            problem = f"jobs of kind '{dead.kind}' cannot be retried."
            raise JobNotRetriable(job=job_id, problem=problem)
        job = dead.retry(await reopen_subject(tx, dead), await tx.now())
        await JobQueueQueries(tx).save(job)
        await record_act(tx, job_id)
        return job
