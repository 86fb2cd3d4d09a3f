"""Jobs: durable background work.

A worker holds a lease, which expires unless renewed, and a fencing token, the number of its claim.
Every transaction of a handler first locks the row and compares the token, so a worker that has lost
the job cannot write. The methods are pure and return the changed job; times are the database's.

    queued ──claim──► running ──► done
      ▲                  │  └───► dead      refused, failed too often, or killed too many engines
      └────  retry  ─────┘                  postponed, released, failed, lost, or an engine died
"""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple

from svc_kit.auth.principal import current_key
from svc_kit.errors import DomainError, EngineCrashed, JobNotRetriable, WorkAbandoned

MAX_ATTEMPTS: Final = 3
"""A job dies when it has failed this often without progress in between."""
MAX_LOST: Final = 3
"""A job dies when its process has died this often in a row: an attempt that ends in another way, or
makes progress, ends the row."""
ENGINE_DEATHS_BEFORE_ALONE: Final = 2
"""After this many engine deaths a job is computed alone, since it may be the cause."""
MAX_ENGINE_DEATHS: Final = 3
MAX_POSTPONED_BY_SANDBOX: Final = 10
"""After this many postponements in a row, about five minutes, faults of the sandbox count as
failures: a document can cause them too, such as by the memory that its parser needs."""
FIRST_BACKOFF: Final = timedelta(seconds=1)
LONGEST_BACKOFF: Final = timedelta(minutes=1)
DONE_KEPT_FOR: Final = timedelta(days=1)
DEAD_KEPT_FOR: Final = timedelta(days=30)


class LeaseLost(Exception):
    """The job belongs to another worker or has ended; the transaction is rolled back.

    Internal: the worker stops.
    """


class EngineDied(Exception):
    """An engine died while it computed for the job; `error` is the error of the call."""

    def __init__(self, error: DomainError) -> None:
        super().__init__(str(error))
        self.error = error


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    DEAD = "dead"


UNFINISHED: Final = (JobState.QUEUED, JobState.RUNNING)


class JobPriority(IntEnum):
    """Order of claims, lowest first; the reverse of `Priority`, which has the same names."""

    INTERACTIVE = 0
    NORMAL = 1
    BATCH = 2


class Outcome(StrEnum):
    """How an attempt ended. Only what the job may have caused counts."""

    DONE = "done"
    REFUSED = "refused"
    """An error that another attempt would repeat."""
    FAILED = "failed"
    """An error that may not repeat. Counts towards `MAX_ATTEMPTS`."""
    LOST = "lost"
    """The process died, perhaps because of the job. Counts towards `MAX_LOST`."""
    POSTPONED = "postponed"
    """Something that the job needs is unavailable. Does not count, but see
    `MAX_POSTPONED_BY_SANDBOX`."""
    RELEASED = "released"
    """The process stopped, or the attempt never began. Does not count."""
    ENGINE_DIED = "engine_died"
    """An engine died while it computed for the job. Counted in `engine_deaths`."""


class JobError(NamedTuple):
    """Reason and message of the error that ended an attempt."""

    reason: str
    message: str


@dataclass(frozen=True)
class AttemptResult:
    """Outcome of an attempt, and the error that caused it."""

    outcome: Outcome
    error: DomainError | None = None

    @property
    def retry_after(self) -> timedelta:
        """Minimum wait before the next attempt, from the error; zero if it has none."""
        return timedelta(seconds=(self.error and self.error.retry_after) or 0)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A worker's claim of a job, valid until the fence of the job changes.

    Claims are equal if project, job id and fence are.
    """

    project: str
    job_id: str
    fence: int
    kind: str = field(compare=False)
    subject: str = field(compare=False)
    attempt: int = field(compare=False)
    engine_deaths: int = field(compare=False)
    num_postponed: int = field(default=0, compare=False)
    caller_key: str = field(default="", compare=False)

    @property
    def runs_alone(self) -> bool:
        """Whether it must be computed alone, since it may be the cause of engine deaths."""
        return self.engine_deaths >= ENGINE_DEATHS_BEFORE_ALONE


@dataclass(frozen=True, kw_only=True)
class NewJob:
    """A job to queue. A subject has at most one unfinished job of a kind."""

    id: str
    kind: str
    subject: str
    """Id of the resource that the job works for."""
    priority: JobPriority = JobPriority.NORMAL
    delay: timedelta = timedelta()
    """Minimum wait before the first attempt."""
    caller_key: str = field(default_factory=current_key)
    """The API key that causes the job: its usage and its limits are those of the key."""


@dataclass(frozen=True, kw_only=True)
class Job:
    project: str
    id: str
    kind: str
    subject: str
    priority: JobPriority
    caller_key: str = ""
    state: JobState = JobState.QUEUED
    run_after: datetime
    attempt: int = 0
    """Number of the current or last attempt, counted since the last progress."""
    num_postponed: int = 0
    """Postponed attempts in a row."""
    num_lost: int = 0
    """Attempts in a row during which the process died."""
    engine_deaths: int = 0
    """Engines that died while they computed for the job."""
    fence: int = 0
    """Fencing token: the number of claims so far."""
    lease_owner: str | None = None
    lease_expires_at: datetime | None = None
    cancel_requested_at: datetime | None = None
    error: JobError | None = None
    """Error of the last attempt that failed."""
    traceparent: str | None = None
    """Trace context of the call that queued it; None for none."""
    created_at: datetime
    ended_at: datetime | None = None

    @property
    def claim(self) -> Claim:
        return Claim(
            project=self.project,
            job_id=self.id,
            fence=self.fence,
            kind=self.kind,
            subject=self.subject,
            attempt=self.attempt,
            engine_deaths=self.engine_deaths,
            num_postponed=self.num_postponed,
            caller_key=self.caller_key,
        )

    def check_held(self, claim: Claim) -> None:
        """Raise LeaseLost unless the claim is the current one."""
        if self.state is not JobState.RUNNING or self.fence != claim.fence:
            raise LeaseLost(f"job {self.id}, fence {claim.fence}")

    def is_orphan(self, owner: str, now: datetime, *, is_exclusive: bool) -> bool:
        """Whether another process than `owner` had the job and is gone: its lease has expired, or
        no other process can exist (`is_exclusive`).
        """
        if self.lease_owner in (None, owner) or self.lease_expires_at is None:
            return False
        return is_exclusive or self.lease_expires_at <= now

    def start_attempt(self, owner: str, now: datetime, lease: timedelta) -> "Job":
        return replace(
            self,
            state=JobState.RUNNING,
            attempt=self.attempt + 1,
            fence=self.fence + 1,
            lease_owner=owner,
            lease_expires_at=now + lease,
        )

    def extend_lease(self, now: datetime, lease: timedelta) -> "Job":
        """Renew the lease if less than half of it remains.

        Called by transactions of the worker: heartbeats skip locked rows, so the lease of a worker
        that writes all the time would expire.
        """
        if self.lease_expires_at is None or self.lease_expires_at - now > lease / 2:
            return self
        return replace(self, lease_expires_at=now + lease)

    def reset_attempts(self) -> "Job":
        """Discount failed and lost attempts, since part of the work is durable.

        Engine deaths still count: a job can make progress and kill an engine in every attempt.
        """
        return replace(self, attempt=1, num_postponed=0, num_lost=0)

    def request_cancel(self, now: datetime) -> "Job":
        """Request cancellation and make the job due, so that its handler ends the subject."""
        if self.state not in UNFINISHED or self.cancel_requested_at is not None:
            return self
        run_after = min(self.run_after, now)
        return replace(self, cancel_requested_at=now, run_after=run_after)

    def expedite(self, kind: str, now: datetime) -> "Job":
        """Change the kind of a queued job to one that runs sooner, and make the job due."""
        return replace(self, kind=kind, run_after=min(self.run_after, now))

    def check_dead(self) -> None:
        """Raise JobNotRetriable unless the job is dead."""
        if self.state is not JobState.DEAD:
            raise JobNotRetriable(job=self.id, problem=f"it is {self.state.value}.")

    def retry(self, kind: str, now: datetime) -> "Job":
        """Queue a dead job again, as a job of `kind` with its counters reset."""
        reset = replace(self, kind=kind, attempt=0, num_postponed=0, num_lost=0, engine_deaths=0)
        return replace(reset, error=None, ended_at=None)._queued(now)

    def end_attempt(self, result: AttemptResult, now: datetime, jitter: float) -> "Job":
        """Release the lease and apply the result. `jitter` in [0, 1) spreads retries."""
        released = replace(self, lease_owner=None, lease_expires_at=None)
        if result.error is not None:
            released = replace(released, error=_job_error(result.error))
        if result.outcome is not Outcome.LOST:
            released = replace(released, num_lost=0)
        match result.outcome:
            case Outcome.DONE:
                return replace(released, state=JobState.DONE, error=None, ended_at=now)
            case Outcome.REFUSED:
                return released._dead(now)
            case Outcome.FAILED:
                return released._failed(now, jitter)
            case Outcome.LOST:
                return released._uncounted()._lost(now)
            case Outcome.POSTPONED:
                return released._uncounted()._postponed(result, now, jitter)
            case Outcome.RELEASED:
                return released._uncounted()._queued(now)
            case Outcome.ENGINE_DIED:
                return released._uncounted()._engine_died(result, now, jitter)

    def _failed(self, now: datetime, jitter: float) -> "Job":
        if self.attempt >= MAX_ATTEMPTS:
            return self._dead(now)
        return self._queued(now + backoff(self.attempt, jitter))

    def _lost(self, now: datetime) -> "Job":
        num_lost = self.num_lost + 1
        error = _job_error(WorkAbandoned(attempts=num_lost))
        job = replace(self, num_lost=num_lost, error=error)
        # No backoff: the job has waited for its lease to expire.
        return job._dead(now) if num_lost >= MAX_LOST else job._queued(now)

    def _postponed(self, result: AttemptResult, now: datetime, jitter: float) -> "Job":
        wait = max(
            backoff(self.num_postponed + 1, jitter), min(result.retry_after, LONGEST_BACKOFF)
        )
        return replace(self, num_postponed=self.num_postponed + 1)._queued(now + wait)

    def _engine_died(self, result: AttemptResult, now: datetime, jitter: float) -> "Job":
        deaths = self.engine_deaths + 1
        job = replace(self, engine_deaths=deaths)
        if deaths >= MAX_ENGINE_DEATHS:
            return replace(job, error=_job_error(EngineCrashed(times=deaths)))._dead(now)
        return job._queued(now + max(backoff(deaths, jitter), result.retry_after))

    def _uncounted(self) -> "Job":
        return replace(self, attempt=self.attempt - 1)

    def _queued(self, run_after: datetime) -> "Job":
        return replace(self, state=JobState.QUEUED, run_after=run_after)

    def _dead(self, now: datetime) -> "Job":
        return replace(self, state=JobState.DEAD, ended_at=now)


def backoff(failures: int, jitter: float) -> timedelta:
    """Exponential backoff after `failures` >= 1 failures in a row, half of it random."""
    doubled = FIRST_BACKOFF * (1 << min(failures - 1, 16))
    return min(doubled, LONGEST_BACKOFF) * (0.5 + jitter / 2)


def _job_error(error: DomainError) -> JobError:
    return JobError(error.reason, error.message)


JOBS_TOPIC: Final = "jobs"
"""Topic of notifications that a job can be claimed or is to be cancelled."""


class JobCount(NamedTuple):
    kind: str
    state: JobState
    num_jobs: int
    oldest: datetime
    """Earliest `run_after` among them."""
