"""Lists jobs for operators and retries dead letters."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from control_svc.audit.log import record_act
from control_svc.base.pagination import Page, PageRequest, PageTokens
from control_svc.base.validation import check_project_id
from control_svc.db.transaction import (
    CrossProjectTransaction,
    CrossProjectTransactions,
    Transaction,
    cross_project_read,
    cross_project_write,
)
from control_svc.jobs.model import Job, JobState
from control_svc.jobs.queries import JobQueries, JobRecordQueries
from svc_kit.errors import JobNotRetriable

MAX_PAGE: Final = 1000
Retry = Callable[[Transaction, Job], Awaitable[str]]
"""Reopens the subject of a dead job, in the transaction that queues the job again, and returns the
kind of job that the subject needs now. Raises JobNotRetriable if the subject has ended."""


@dataclass(frozen=True)
class Jobs:
    """Operations on jobs, for operators."""

    transactions: CrossProjectTransactions
    tokens: PageTokens
    retries: Mapping[str, Retry]
    """By kind; dead jobs of other kinds cannot be retried."""

    @cross_project_read
    async def get(self, tx: CrossProjectTransaction, job_id: str) -> Job:
        """Return a job. Raises JobNotFound."""
        return await JobRecordQueries(tx).get(job_id)

    @cross_project_read
    async def page(
        self,
        tx: CrossProjectTransaction,
        page_request: PageRequest,
        project: str,
        state: JobState | None,
    ) -> Page[Job]:
        """List jobs, of all projects if `project` is empty, in any state if `state` is None.

        Raises ProjectNotFound, OutOfRange or InvalidField.
        """
        if project:
            check_project_id(project)
        window = self.tokens.window(page_request, ("jobs", project, state or ""), MAX_PAGE)
        return window.page(await JobRecordQueries(tx).page(window, project, state))

    @cross_project_write
    async def retry(self, tx: CrossProjectTransaction, job_id: str) -> Job:
        """Queue a dead job again. Raises JobNotFound or JobNotRetriable."""
        dead = await JobRecordQueries(tx).lock(job_id)
        dead.check_dead()
        reopen_subject = self.retries.get(dead.kind)
        if reopen_subject is None:
            problem = f"jobs of kind '{dead.kind}' cannot be retried."
            raise JobNotRetriable(job=job_id, problem=problem)
        own = tx.of(dead.project)
        job = dead.retry(await reopen_subject(own, dead), await tx.now())
        await JobQueries(own).save(job)
        await record_act(tx, job_id)
        return job
