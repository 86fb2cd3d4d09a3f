"""Table and SQL of jobs."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from itertools import product
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from control_svc.base.ids import JOB, is_id
from control_svc.base.pagination import Window, apply_window, restore_order
from control_svc.db.cleanup import Deleted, delete_some
from control_svc.db.tables import Instant, Key, ObjectRow, read_row, row_values
from control_svc.db.transaction import CrossProjectQueries, CrossProjectTransaction, Queries
from control_svc.jobs.model import (
    DEAD_KEPT_FOR,
    DONE_KEPT_FOR,
    JOBS_TOPIC,
    UNFINISHED,
    Claim,
    Job,
    JobCount,
    JobError,
    JobPriority,
    JobState,
    LeaseLost,
    NewJob,
)
from svc_kit.errors import JobNotFound
from svc_kit.tracing.span import TRACEPARENT_LENGTH, current_span

_UNFINISHED = "state IN ('queued', 'running')"
_QUEUED = "state = 'queued'"


class JobRow(ObjectRow):
    __tablename__ = "jobs"
    __table_args__ = (
        sa.Index(None, "state", "kind", "priority", "run_after"),
        sa.Index(None, "lease_owner"),
        sa.Index(
            "uq_jobs_unfinished",
            "project",
            "kind",
            "subject",
            unique=True,
            sqlite_where=sa.text(_UNFINISHED),
            postgresql_where=sa.text(_UNFINISHED),
        ),
        sa.Index(
            "ix_jobs_queued",
            "kind",
            "priority",
            "project",
            "run_after",
            "id",
            sqlite_where=sa.text(_QUEUED),
            postgresql_where=sa.text(_QUEUED),
        ),
    )

    # work
    kind: Mapped[str] = mapped_column(sa.String(32))
    subject: Mapped[str] = mapped_column(Key)
    priority: Mapped[int] = mapped_column(sa.SmallInteger)
    caller_key: Mapped[str] = mapped_column(sa.Text, server_default=sa.text("''"))
    traceparent: Mapped[str | None] = mapped_column(sa.String(TRACEPARENT_LENGTH))
    created_at: Mapped[datetime] = mapped_column(Instant)
    # state
    state: Mapped[str] = mapped_column(sa.String(16))
    run_after: Mapped[datetime] = mapped_column(Instant)
    attempt: Mapped[int] = mapped_column(sa.Integer)
    num_postponed: Mapped[int] = mapped_column(sa.Integer)
    num_lost: Mapped[int] = mapped_column(sa.Integer, server_default=sa.text("0"))
    engine_deaths: Mapped[int] = mapped_column(sa.Integer)
    cancel_requested_at: Mapped[datetime | None] = mapped_column(Instant)
    ended_at: Mapped[datetime | None] = mapped_column(Instant)
    # lease
    fence: Mapped[int] = mapped_column(sa.BigInteger)
    lease_owner: Mapped[str | None] = mapped_column(Key)
    lease_expires_at: Mapped[datetime | None] = mapped_column(Instant)
    heartbeat_at: Mapped[datetime | None] = mapped_column(Instant)  # written by release 0.1
    # error of the last failed attempt
    error_reason: Mapped[str | None] = mapped_column(sa.String(64))
    error_message: Mapped[str | None] = mapped_column(sa.Text)


_IS_QUEUED = JobRow.state == sa.literal_column("'queued'")
"""A literal, so that prepared statements can use the partial index."""

_CANDIDATES: Final = 8
"""Flows in which a claim looks for a job that no other process has locked."""


class JobQueries(Queries):
    """The jobs of a project, for the slices that queue them.

    A transaction that locks a job and its subject locks the job first.
    """

    async def add(self, new: NewJob) -> Job:
        """Queue a job."""
        return (await self.add_all([new]))[0]

    async def add_all(self, jobs: Sequence[NewJob]) -> list[Job]:
        """Queue jobs."""
        if not jobs:
            return []
        now = await self._tx.now()
        added = [
            Job(
                project=self._project,
                id=new.id,
                kind=new.kind,
                subject=new.subject,
                priority=new.priority,
                caller_key=new.caller_key,
                run_after=now + new.delay,
                traceparent=current_span().traceparent or None,
                created_at=now,
            )
            for new in jobs
        ]
        await self._insert(JobRow, *map(_values, added))
        self._tx.announce(JOBS_TOPIC)
        return added

    async def get(self, job_id: str) -> Job | None:
        """Return a job; None if it does not exist."""
        return await _one(self._session, self._select(JobRow, JobRow.id == job_id))

    async def request_cancel(self, kind: str, subject: str) -> Job | None:
        """Lock the unfinished job of a subject and request its cancellation; None if it has none.

        A queued job becomes due, so that its handler ends the subject.
        """
        is_open = (JobRow.kind == kind, JobRow.subject == subject, JobRow.state.in_(UNFINISHED))
        job = await _one(self._session, self._select(JobRow, *is_open).with_for_update())
        if job is None:
            return None
        job = job.request_cancel(await self._tx.now())
        await self.save(job)
        self._tx.announce(JOBS_TOPIC)
        return job

    async def lock(self, claim: Claim) -> Job:
        """Lock the job of a claim. Raises LeaseLost."""
        query = self._select(JobRow, JobRow.id == claim.job_id)
        job = await _one(self._session, query.with_for_update())
        if job is None:
            raise LeaseLost(f"job {claim.job_id} does not exist")
        job.check_held(claim)
        return job

    async def save(self, job: Job) -> None:
        """Update the row of a locked job."""
        update = self._update(JobRow, JobRow.id == job.id)
        await self._session.execute(update.values(_values(job)))
        if job.state is JobState.QUEUED:
            self._tx.announce(JOBS_TOPIC)


class JobQueueQueries(CrossProjectQueries):
    """The jobs of all projects, for workers.

    Rows that another transaction has locked are skipped, except by `lock_all`.
    """

    async def lock_next(self, kinds: Collection[str]) -> Job | None:
        """Select and lock the next due job, ordered by priority, then by the number of running jobs
        of its kind that its project has, then by age.
        """
        now = await self._tx.now()
        for flow in [*await self._session.execute(next_flows(kinds, now))]:
            job = await _one(
                self._session,
                sa.select(JobRow)
                .where(*_queued_in(flow), JobRow.project == flow.project, JobRow.run_after <= now)
                .order_by(JobRow.run_after, JobRow.id)
                .limit(1)
                .with_for_update(skip_locked=True),
            )
            if job is not None:  # else other processes have locked all of them
                return job
        return None

    async def has_unfinished(self) -> bool:
        """Whether there is any job that is queued or running."""
        query = sa.select(JobRow.id).where(JobRow.state.in_(UNFINISHED)).limit(1)
        return await self._session.scalar(query) is not None

    async def waiting_projects(self, kind: str) -> set[str]:
        """The projects that have jobs of this kind that are due."""
        flows = await self._session.execute(next_flows([kind], await self._tx.now()))
        return {flow.project for flow in flows}

    async def lock_all(self, claims: Collection[Claim]) -> list[Job]:
        """Lock the jobs of those claims that are valid, ordered by key to avoid deadlocks."""
        jobs = await _all(
            self._session,
            sa.select(JobRow)
            .where(
                sa.tuple_(JobRow.project, JobRow.id).in_(
                    [(claim.project, claim.job_id) for claim in claims]
                )
            )
            .order_by(JobRow.project, JobRow.id)
            .with_for_update(),
        )
        return [job for job in jobs if job.state is JobState.RUNNING and job.claim in claims]

    async def orphans(
        self, kinds: Collection[str], owner: str, limit: int, *, is_exclusive: bool
    ) -> list[Job]:
        """List running jobs of other owners whose leases have expired, without locking them.

        With `is_exclusive`, the leases of all other owners count as expired.
        """
        query = sa.select(JobRow).where(
            JobRow.state == JobState.RUNNING,
            JobRow.kind.in_(kinds),
            JobRow.lease_owner != owner,
        )
        if not is_exclusive:
            query = query.where(JobRow.lease_expires_at <= await self._tx.now())
        return await _all(self._session, query.limit(limit))

    async def owned(self, owner: str) -> list[Job]:
        """List the running jobs of an owner, without locking them."""
        query = sa.select(JobRow).where(
            JobRow.state == JobState.RUNNING, JobRow.lease_owner == owner
        )
        return await _all(self._session, query)

    async def renew(self, owner: str, lease: timedelta) -> None:
        """Renew the owner's leases. Locked jobs are skipped."""
        now = await self._tx.now()
        unlocked = (
            sa.select(JobRow.project, JobRow.id)
            .where(JobRow.state == JobState.RUNNING, JobRow.lease_owner == owner)
            .with_for_update(skip_locked=True)
        )
        await self._session.execute(
            sa.update(JobRow)
            .where(sa.tuple_(JobRow.project, JobRow.id).in_(unlocked))
            .values(lease_expires_at=now + lease)
        )

    async def count_by_state(self) -> list[JobCount]:
        rows = await self._session.execute(
            sa.select(
                JobRow.kind, JobRow.state, sa.func.count(), sa.func.min(JobRow.run_after)
            ).group_by(JobRow.kind, JobRow.state)
        )
        return [
            JobCount(kind, JobState(state), count, oldest) for kind, state, count, oldest in rows
        ]


class JobRecordQueries(CrossProjectQueries):
    """The jobs of all projects, for operators."""

    async def get(self, job_id: str) -> Job:
        """Return a job. Raises JobNotFound."""
        return await self._get(job_id, sa.select(JobRow))

    async def lock(self, job_id: str) -> Job:
        """Lock and return a job. Raises JobNotFound."""
        return await self._get(job_id, sa.select(JobRow).with_for_update())

    async def page(self, window: Window, project: str, state: JobState | None) -> list[Job]:
        """List the jobs of a window; of all projects if `project` is empty, in any state if `state`
        is None.
        """
        query = sa.select(JobRow)
        if project:
            query = query.where(JobRow.project == project)
        if state is not None:
            query = query.where(JobRow.state == state)
        return restore_order(
            await _all(self._session, apply_window(query, JobRow.id, window)), window
        )

    async def _get(self, job_id: str, query: sa.Select[JobRow]) -> Job:
        # Do not query for malformed ids: PostgreSQL refuses some characters.
        job = None
        if is_id(job_id, JOB):
            job = await _one(self._session, query.where(JobRow.id == job_id))
        if job is None:
            raise JobNotFound(job=job_id)
        return job


def next_flows(kinds: Collection[str], now: datetime) -> sa.Select[str, int, str]:
    """Select the kind, priority and project of the due jobs that are next.

    A loose index scan of `ix_jobs_queued`: the recursive query finds the projects of each kind and
    priority, and the oldest job of each, with one lookup each. The cost depends on the number of
    projects, but not on the length of the queue.
    """
    classes = sa.union_all(
        *(
            sa.select(sa.literal(kind).label("kind"), sa.literal(priority.value).label("priority"))
            for kind, priority in product(sorted(kinds), JobPriority)
        )
    ).cte("classes")
    columns = classes.c
    flows = sa.select(columns.kind, columns.priority, _first_project(classes).label("project")).cte(
        "flows", recursive=True
    )
    columns = flows.c
    following = _first_project(flows, JobRow.project > columns.project)
    flows = flows.union_all(
        sa.select(columns.kind, columns.priority, following).where(columns.project.is_not(None))
    )
    columns = flows.c
    run_after = (
        sa.select(JobRow.run_after)
        .where(*_queued_in(columns), JobRow.project == columns.project)
        .order_by(JobRow.run_after, JobRow.id)
        .limit(1)
        .correlate(flows)
        .scalar_subquery()
    )
    heads = (
        sa.select(columns.kind, columns.priority, columns.project, run_after.label("run_after"))
        .where(columns.project.is_not(None))
        .cte("heads")
        .prefix_with("MATERIALIZED")
    )
    running = (
        sa.select(JobRow.project, JobRow.kind, sa.func.count().label("number"))
        .where(JobRow.state == JobState.RUNNING, JobRow.kind.in_(kinds))
        .group_by(JobRow.project, JobRow.kind)
        .subquery("running")
    )
    number = sa.func.coalesce(running.c.number, 0)
    return (
        sa.select(heads.c.kind, heads.c.priority, heads.c.project)
        .outerjoin_from(
            heads,
            running,
            sa.and_(running.c.project == heads.c.project, running.c.kind == heads.c.kind),
        )
        .where(heads.c.run_after <= now)
        .order_by(heads.c.priority, number, heads.c.run_after, heads.c.project, heads.c.kind)
        .limit(_CANDIDATES)
    )


def _first_project(flows: sa.CTE, *conditions: sa.ColumnElement[bool]) -> sa.ScalarSelect[str]:
    # The order is that of the whole index. For the smallest project alone, PostgreSQL may choose an
    # index that begins with the project, and read all its jobs of other kinds and priorities.
    return (
        sa.select(JobRow.project)
        .where(*_queued_in(flows.c), *conditions)
        .order_by(JobRow.project, JobRow.run_after, JobRow.id)
        .limit(1)
        .correlate(flows)
        .scalar_subquery()
    )


def _queued_in(flow: Any) -> tuple[sa.ColumnElement[bool], ...]:
    return _IS_QUEUED, JobRow.kind == flow.kind, JobRow.priority == flow.priority


async def _one(session: AsyncSession, query: sa.Select[JobRow]) -> Job | None:
    jobs = await _all(session, query)
    return jobs[0] if jobs else None


async def _all(session: AsyncSession, query: sa.Select[JobRow]) -> list[Job]:
    # Refresh rows that this transaction has loaded before: `save` bypasses the session.
    rows = await session.scalars(query.execution_options(populate_existing=True))
    return [_job(row) for row in rows]


def _values(job: Job) -> dict[str, Any]:
    """The column values of a job; its error has two columns."""
    reason, message = job.error or (None, None)
    return row_values(JobRow, job) | {"error_reason": reason, "error_message": message}


def _job(row: JobRow) -> Job:
    reason, message = row.error_reason, row.error_message
    return read_row(
        Job,
        row,
        priority=JobPriority(row.priority),
        state=JobState(row.state),
        error=None if reason is None else JobError(reason, message or ""),
    )


async def delete_ended_jobs(tx: CrossProjectTransaction, now: datetime) -> Deleted:
    """Delete jobs that were done or dead for long enough. A step of the sweeper."""
    deleted = await delete_some(
        tx,
        JobRow,
        sa.or_(
            (JobRow.state == JobState.DONE) & (JobRow.ended_at < now - DONE_KEPT_FOR),
            (JobRow.state == JobState.DEAD) & (JobRow.ended_at < now - DEAD_KEPT_FOR),
        ),
    )
    return Deleted(len(deleted))
