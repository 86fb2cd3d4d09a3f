"""Jobs: rows of work that outlive the call that queued them.

A worker holds a lease, which expires unless it is renewed, and a fence, the number of its claim.
Every transaction of the work first locks the row with its fence, so a worker that has lost the job
changes nothing. Rules are pure functions from a job to the next; times are the database's.

    queued ──claim──► running ──► done
      ▲                  │  └───► dead      refused, failed too often, or poison
      └──── not now ─────┘                  postponed, released, failed, lost, or an engine died
"""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple

from svc_kit.errors import DomainError, EngineCrashed, JobNotRetriable, WorkAbandoned

MAX_ATTEMPTS: Final = 3
"""How often a job may fail, or end with its process, without progress in between."""
ENGINE_DEATHS_BEFORE_ALONE: Final = 2
"""After as many engines have died under it, work is computed alone: it may be what kills them."""
MAX_ENGINE_DEATHS: Final = 3
FIRST_BACKOFF: Final = timedelta(seconds=1)
LONGEST_BACKOFF: Final = timedelta(minutes=1)
DONE_KEPT_FOR: Final = timedelta(days=1)
DEAD_KEPT_FOR: Final = timedelta(days=30)


class LeaseLost(Exception):
    """The job belongs to another worker, or has ended; the transaction is rolled back. Internal:
    the worker stops.
    """


class EngineDied(Exception):
    """An engine ended while it computed for the job; `error` is what it meant for the call."""

    def __init__(self, error: DomainError) -> None:
        super().__init__(str(error))
        self.error = error


class JobState(StrEnum):
    """Where a job is."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    DEAD = "dead"


UNFINISHED: Final = (JobState.QUEUED, JobState.RUNNING)


class JobPriority(IntEnum):
    """Who goes first; the words are those of the engine's queue."""

    INTERACTIVE = 0
    NORMAL = 1
    BATCH = 2


class Outcome(StrEnum):
    """How an attempt ended. Only what is the job's own fault, or may be, counts as one."""

    DONE = "done"
    REFUSED = "refused"
    """By an error that another attempt would meet again."""
    FAILED = "failed"
    """By itself; another attempt may do better."""
    LOST = "lost"
    """With its process, which the job may have brought down."""
    POSTPONED = "postponed"
    """Something that the job needs is not there. Does not count."""
    RELEASED = "released"
    """Given back by a process that stops. Does not count."""
    ENGINE_DIED = "engine_died"
    """An engine died while it computed for the job. Counted by itself."""


class JobError(NamedTuple):
    """Why an attempt ended: an error's reason and message."""

    reason: str
    message: str


@dataclass(frozen=True)
class AttemptResult:
    """How an attempt ended, and by which error."""

    outcome: Outcome
    error: DomainError | None = None

    @property
    def wait(self) -> timedelta:
        """What the error asks for before the next attempt."""
        return timedelta(seconds=(self.error and self.error.retry_after) or 0)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One worker's right to a job, valid until the job's fence is another; that makes it equal."""

    project: str
    job_id: str
    fence: int
    kind: str = field(compare=False)
    subject: str = field(compare=False)
    attempt: int = field(compare=False)
    engine_deaths: int = field(compare=False)
    num_postponed: int = field(default=0, compare=False)

    @property
    def runs_alone(self) -> bool:
        """Whether nothing else may be computed beside it: it may be what kills engines."""
        return self.engine_deaths >= ENGINE_DEATHS_BEFORE_ALONE


@dataclass(frozen=True, kw_only=True)
class NewJob:
    """Work to be done. A subject has at most one unfinished job of a kind."""

    id: str
    kind: str
    subject: str
    """The id of the resource that it works for."""
    priority: JobPriority = JobPriority.NORMAL
    delay: timedelta = timedelta()
    """How long it waits before its first attempt."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job as it is stored."""

    project: str
    id: str
    kind: str
    subject: str
    priority: JobPriority
    state: JobState = JobState.QUEUED
    run_after: datetime
    attempt: int = 0
    """The number of this attempt, or of the last one, since there was progress."""
    num_postponed: int = 0
    """How often in a row something that it needs was not there."""
    engine_deaths: int = 0
    """How many engines died while they computed for it."""
    fence: int = 0
    """How often it was claimed."""
    lease_owner: str | None = None
    lease_expires_at: datetime | None = None
    heartbeat_at: datetime | None = None
    cancel_requested_at: datetime | None = None
    error: JobError | None = None
    """Why the last attempt that did not succeed ended."""
    created_at: datetime
    ended_at: datetime | None = None

    @property
    def claim(self) -> Claim:
        """The right of the worker that has it."""
        return Claim(
            project=self.project,
            job_id=self.id,
            fence=self.fence,
            kind=self.kind,
            subject=self.subject,
            attempt=self.attempt,
            engine_deaths=self.engine_deaths,
            num_postponed=self.num_postponed,
        )

    def check_held(self, claim: Claim) -> None:
        """Raises LeaseLost unless the claim is the one that counts."""
        if self.state is not JobState.RUNNING or self.fence != claim.fence:
            raise LeaseLost(f"{self.id} with fence {claim.fence}")

    def is_orphan(self, owner: str, now: datetime, *, is_exclusive: bool) -> bool:
        """Whether its worker is gone, as seen by `owner`: the lease has expired, or no other
        process can exist.
        """
        if self.lease_owner in (None, owner) or self.lease_expires_at is None:
            return False
        return is_exclusive or self.lease_expires_at <= now

    def start_attempt(self, owner: str, now: datetime, lease: timedelta) -> "Job":
        """The job at the beginning of an attempt."""
        return replace(
            self,
            state=JobState.RUNNING,
            attempt=self.attempt + 1,
            fence=self.fence + 1,
            lease_owner=owner,
            lease_expires_at=now + lease,
            heartbeat_at=now,
        )

    def extend_lease(self, now: datetime, lease: timedelta) -> "Job":
        """The job while its worker writes: half a lease is made a whole one.

        Heartbeats leave rows that are locked, so the leases of those who write all the time would
        run out.
        """
        if self.lease_expires_at is None or self.lease_expires_at - now > lease / 2:
            return self
        return replace(self, lease_expires_at=now + lease, heartbeat_at=now)

    def reset_attempts(self) -> "Job":
        """The job once a part of its work is durable: what failed before does not count any more.

        Engines that died still do: work may kill the engine again and again, and still get on.
        """
        return replace(self, attempt=1, num_postponed=0)

    def request_cancel(self, now: datetime) -> "Job":
        """The job with the wish that it ends soon; its worker sees to how. Waiting has an end."""
        if self.state not in UNFINISHED or self.cancel_requested_at is not None:
            return self
        run_after = min(self.run_after, now)
        return replace(self, cancel_requested_at=now, run_after=run_after)

    def expedite(self, kind: str, now: datetime) -> "Job":
        """The waiting job among those of another kind, whose turn comes sooner."""
        return replace(self, kind=kind, run_after=min(self.run_after, now))

    def check_dead(self) -> None:
        """Raises JobNotRetriable unless it is."""
        if self.state is not JobState.DEAD:
            raise JobNotRetriable(job=self.id, problem=f"it is {self.state.value}.")

    def retry(self, kind: str, now: datetime) -> "Job":
        """The dead job at its beginning, as one of a kind: what it met before does not count."""
        started = replace(self, kind=kind, attempt=0, num_postponed=0, engine_deaths=0)
        return replace(started, error=None, ended_at=None)._queued(now)

    def end_attempt(self, ending: AttemptResult, now: datetime, chance: float) -> "Job":
        """The job after an attempt; `chance` in [0, 1) spreads attempts that would coincide."""
        freed = replace(self, lease_owner=None, lease_expires_at=None)
        if ending.error is not None:
            freed = replace(freed, error=_described(ending.error))
        match ending.outcome:
            case Outcome.DONE:
                return replace(freed, state=JobState.DONE, error=None, ended_at=now)
            case Outcome.REFUSED:
                return freed._dead(now)
            case Outcome.FAILED:
                return freed._failed(now, chance)
            case Outcome.LOST:
                return freed._lost(now)
            case Outcome.POSTPONED:
                return freed._uncounted()._postponed(ending, now, chance)
            case Outcome.RELEASED:
                return freed._uncounted()._queued(now)
            case Outcome.ENGINE_DIED:
                return freed._uncounted()._survived(ending, now, chance)

    def _failed(self, now: datetime, chance: float) -> "Job":
        if self.attempt >= MAX_ATTEMPTS:
            return self._dead(now)
        return self._queued(now + backoff(self.attempt, chance))

    def _lost(self, now: datetime) -> "Job":
        error = _described(WorkAbandoned(attempts=self.attempt))
        if self.attempt >= MAX_ATTEMPTS:
            return replace(self, error=error)._dead(now)
        return replace(self, error=error)._queued(now)  # the lease was the wait

    def _postponed(self, ending: AttemptResult, now: datetime, chance: float) -> "Job":
        wait = max(backoff(self.num_postponed + 1, chance), ending.wait)
        return replace(self, num_postponed=self.num_postponed + 1)._queued(now + wait)

    def _survived(self, ending: AttemptResult, now: datetime, chance: float) -> "Job":
        deaths = self.engine_deaths + 1
        counted = replace(self, engine_deaths=deaths)
        if deaths >= MAX_ENGINE_DEATHS:
            return replace(counted, error=_described(EngineCrashed(times=deaths)))._dead(now)
        return counted._queued(now + max(backoff(deaths, chance), ending.wait))

    def _uncounted(self) -> "Job":
        return replace(self, attempt=self.attempt - 1)

    def _queued(self, run_after: datetime) -> "Job":
        return replace(self, state=JobState.QUEUED, run_after=run_after)

    def _dead(self, now: datetime) -> "Job":
        return replace(self, state=JobState.DEAD, ended_at=now)


def backoff(failures: int, chance: float) -> timedelta:
    """The wait after so many failures in a row, at least one: doubling, bounded, half by chance."""
    doubled = FIRST_BACKOFF * (1 << min(failures - 1, 16))
    return min(doubled, LONGEST_BACKOFF) * (0.5 + chance / 2)


def _described(error: DomainError) -> JobError:
    return JobError(error.reason, error.message)


JOBS_TOPIC: Final = "jobs"
"""What is announced when a job can be claimed, or is to be cancelled."""


class JobCount(NamedTuple):
    """How many jobs of a kind are in a state, and since when the oldest could have run."""

    kind: str
    state: JobState
    num_jobs: int
    oldest: datetime
