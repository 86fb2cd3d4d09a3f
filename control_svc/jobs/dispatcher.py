"""Claims jobs, runs their handlers as tasks, and stores how attempts ended.

The dispatcher polls the queue after a notification, after the end of a job, and at an interval.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Collection, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final, NamedTuple

from control_svc.db.notifications import Notifications
from control_svc.db.transaction import CrossProjectTransaction, CrossProjectTransactions
from control_svc.jobs.handler import JobContext, JobHandler
from control_svc.jobs.leases import Leases
from control_svc.jobs.model import (
    JOBS_TOPIC,
    MAX_POSTPONED_BY_SANDBOX,
    AttemptResult,
    Claim,
    EngineDied,
    Job,
    JobCount,
    JobState,
    LeaseLost,
    Outcome,
)
from control_svc.jobs.queries import JobQueueQueries
from svc_kit.auth.principal import Principal, set_principal
from svc_kit.errors import (
    DomainError,
    InternalError,
    ResourceExhausted,
    Unavailable,
    UpstreamUnavailable,
)
from svc_kit.errors.status import is_retryable
from svc_kit.logs import log_errors, project_var
from svc_kit.metrics import JobMetrics
from svc_kit.sandbox.jobs import SANDBOX
from svc_kit.tracing.span import Span, SpanKind, Tracer, set_current_span

_log = logging.getLogger(__name__)
TIME_SLICE_S: Final = 60.0
"""A job of a kind with as many running jobs as it may have is released after this time, if a
project with fewer of them waits. It resumes when it is its project's turn again."""
SHARE_SLICE_S: Final = 5.0
"""The same for a project that keeps another job of the kind, and still has as many as that one."""
_FIRST_SLICES: Final = 5
"""A job without progress may run so many times as long: it would have to repeat what it did."""
_RETRY_DELAY_S: Final = 1.0
"""Delay between two tries to store the result of an attempt while the database is unavailable."""


class _Attempt:
    """A job that runs in this process.

    The handler has its own task, so that cancelling it, even before it has started, does not
    cancel the task that stores the result.
    """

    def __init__(self, job: Job, leases: Leases, handler: JobHandler, span: Span) -> None:
        self.claim = job.claim
        self.context = JobContext(job, leases)
        self.started_at = time.monotonic()
        self.span = span
        self.task = asyncio.create_task(_run_for_caller(handler, self.claim, self.context, span))
        self.is_cancelled = False

    @property
    def age_s(self) -> float:
        """How long it has been running."""
        return time.monotonic() - self.started_at

    def cancel(self) -> None:
        """Cancel the handler; a transaction in progress runs to its end."""
        if not self.is_cancelled:
            self.is_cancelled = self.task.cancel()


class Slot(NamedTuple):
    """A running job of a kind, for `choose_released`."""

    project: str
    age_s: float
    has_progress: bool


def choose_released(
    slots: Sequence[Slot], waiting: Collection[str], time_slice_s: float = TIME_SLICE_S
) -> Slot | None:
    """The job that makes place for a waiting project; None while all keep their slots.

    A project with two jobs more than a waiting one gives up its newest after `SHARE_SLICE_S`, one
    with one more its oldest after `time_slice_s`.
    """
    num_running = Counter(slot.project for slot in slots)
    fewest = min((num_running[project] for project in waiting), default=len(slots))
    most = max(num_running.values(), default=0)
    largest = [slot for slot in slots if num_running[slot.project] == most]
    if most >= fewest + 2:
        share_s = min(SHARE_SLICE_S, time_slice_s)
        old_enough = [slot for slot in largest if slot.age_s >= share_s]
        return min(old_enough, key=lambda slot: slot.age_s, default=None)
    if most == fewest + 1:
        first_s = _FIRST_SLICES * time_slice_s
        due = [s for s in largest if s.age_s >= (time_slice_s if s.has_progress else first_s)]
        return max(due, key=lambda slot: slot.age_s, default=None)
    return None


class Dispatcher:
    """Runs jobs of the kinds that it has handlers for."""

    def __init__(
        self,
        leases: Leases,
        notifications: Notifications,
        handlers: Sequence[JobHandler],
        metrics: JobMetrics,
        time_slice_s: float = TIME_SLICE_S,
        tracer: Tracer | None = None,
    ) -> None:
        self._tracer = tracer or Tracer()
        self._time_slice_s = time_slice_s
        self._leases = leases
        self._notifications = notifications
        self._handlers = {handler.kind: handler for handler in handlers}
        self._metrics = metrics
        self._running: dict[Claim, _Attempt] = {}
        self._attempts: set[asyncio.Task[None]] = set()
        self._unstored: dict[Claim, AttemptResult] = {}
        """Results of attempts that could not be stored, because `on_dead` failed."""
        self._changed = asyncio.Event()
        self._is_stopping = False

    async def run(self, poll_interval_s: float) -> None:
        """Run until stopped and until all running jobs are released."""
        loop = asyncio.get_running_loop()
        next_poll = loop.time()
        with self._notifications.listen(JOBS_TOPIC) as self._changed:
            while not self._is_stopping:
                self._changed.clear()
                is_poll = loop.time() >= next_poll
                if is_poll:
                    next_poll = loop.time() + poll_interval_s
                await self._run_round(is_poll=is_poll)
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(next_poll):
                        await self._changed.wait()
        self.stop()  # releases what the last round claimed
        await asyncio.gather(*self._attempts)

    def stop(self) -> None:
        """Stop claiming and release running jobs, so that other processes can claim them."""
        self._is_stopping = True
        self._changed.set()
        for attempt in self._running.values():
            attempt.cancel()

    async def _run_round(self, *, is_poll: bool) -> None:
        with log_errors(_log, "jobs cannot be claimed"):
            if is_poll and not self._running and not await self._leases.has_unfinished():
                return  # a service without jobs polls with one query
            if is_poll or self._running:
                await self._check_running()
            if is_poll:
                for orphan in await self._leases.orphans():
                    lost = AttemptResult(Outcome.LOST)
                    await self._store(orphan.claim, lost, self._leases.reclaim(orphan))
                await self._release_long()
            await self._claim()

    async def _check_running(self) -> None:
        """Signal cancellations to attempts, and end jobs of this process that never started."""
        known = set(self._running)
        owned = {job.claim: job for job in await self._leases.owned()}
        for claim in known & self._running.keys():
            attempt = self._running[claim]
            if claim in owned:
                if owned[claim].cancel_requested_at is not None:
                    attempt.context.cancelled.set()
            elif not attempt.context.is_finishing:  # the row may be done already
                attempt.cancel()
        ended = owned.keys() - known - self._running.keys()
        self._unstored = {claim: self._unstored[claim] for claim in ended & self._unstored.keys()}
        for claim in ended:
            # The result was not stored, or the response to the commit of the claim was lost, so
            # that no attempt began.
            result = self._unstored.get(claim, AttemptResult(Outcome.RELEASED))
            await self._store(claim, result, self._leases.end(claim, result))

    async def _release_long(self) -> None:
        """Release a job of each kind without capacity, if another project waits for its turn."""
        for kind in self._handlers:
            attempts = [each for each in self._running.values() if each.claim.kind == kind]
            if self._has_capacity(kind) or any(each.is_cancelled for each in attempts):
                continue
            slots = [
                Slot(each.claim.project, each.age_s, has_progress=each.context.has_progress)
                for each in attempts
            ]
            if any(slot.age_s >= min(SHARE_SLICE_S, self._time_slice_s) for slot in slots):
                waiting = await self._leases.waiting_projects(kind)
                released = choose_released(slots, waiting, self._time_slice_s)
                if released is not None:
                    attempts[slots.index(released)].cancel()

    async def _claim(self) -> None:
        while not self._is_stopping:
            kinds = [kind for kind in self._handlers if self._has_capacity(kind)]
            job = await self._leases.claim(kinds) if kinds else None
            if job is None:
                return
            self._start(job)

    def _has_capacity(self, kind: str) -> bool:
        num_running = sum(claim.kind == kind for claim in self._running)
        return num_running < self._handlers[kind].concurrency

    def _start(self, job: Job) -> None:
        span = self._tracer.start(f"job {job.kind}", SpanKind.CONSUMER, job.traceparent or "")
        attempt = _Attempt(job, self._leases, self._handlers[job.kind], span)
        self._running[attempt.claim] = attempt
        self._metrics.running.labels(job.kind).inc()
        task = asyncio.create_task(self._run_attempt(attempt))
        self._attempts.add(task)
        task.add_done_callback(self._attempts.discard)

    async def _run_attempt(self, attempt: _Attempt) -> None:
        claim = attempt.claim
        try:
            result = await _result(attempt)
            _end_span(attempt, result)
            if attempt.context.is_finished:
                self._metrics.attempts.labels(claim.kind, Outcome.DONE).inc()
                return
            while not await self._store(claim, result, self._leases.end(claim, result)):
                if self._is_stopping:
                    return  # the lease will expire
                await asyncio.sleep(_RETRY_DELAY_S)
        finally:
            del self._running[claim]
            self._metrics.running.labels(claim.kind).dec()
            self._changed.set()

    async def _store(self, claim: Claim, result: AttemptResult, step: Awaitable[Job]) -> bool:
        """Run the transaction that ends an attempt; return False if it has to be retried."""
        try:
            job = await step
        except LeaseLost:
            _log.info("lost the lease of job %s", claim.job_id)
        except Unavailable as error:
            _log.warning("the result of job %s is not stored yet: %s", claim.job_id, error)
            return False
        except Exception:  # `on_dead` failed; the next poll tries again
            _log.exception("the result of job %s cannot be stored", claim.job_id)
            self._unstored[claim] = result
        else:
            self._report(job, result.outcome)
        return True

    def _report(self, job: Job, outcome: Outcome) -> None:
        self._metrics.attempts.labels(job.kind, outcome).inc()
        if job.state is JobState.DONE:
            return
        error = job.error._asdict() if job.error else {}
        fields = {"job": job.id, "kind": job.kind, "subject": job.subject, **error}
        level = logging.ERROR if job.state is JobState.DEAD else logging.INFO
        _log.log(level, "attempt ended: %s; job: %s", outcome, job.state, extra={"fields": fields})


async def _run_for_caller(
    handler: JobHandler, claim: Claim, context: JobContext, span: Span
) -> None:
    """Run a job with the project and the key of its caller, for the calls that it makes."""
    set_principal(Principal(project=claim.project, scopes=frozenset(), key_id=claim.caller_key))
    project_var.set(claim.project)
    set_current_span(span)
    await handler.run(claim, context)


def _end_span(attempt: _Attempt, result: AttemptResult) -> None:
    span, claim = attempt.span, attempt.claim
    if not span.is_recording:
        return
    span.set(
        {
            "corral.project": claim.project,
            "corral.job.id": claim.job_id,
            "corral.job.kind": claim.kind,
            "corral.job.subject": claim.subject,
            "corral.job.attempt": claim.attempt,
            "corral.job.outcome": result.outcome.value,
        }
    )
    span.end(error=None if result.error is None else result.error.reason)


async def _result(attempt: _Attempt) -> AttemptResult:
    job_id = attempt.claim.job_id
    failed = AttemptResult(Outcome.FAILED, InternalError(request_id=job_id))
    try:
        await attempt.task
    except LeaseLost:
        return AttemptResult(Outcome.LOST)
    except EngineDied as died:
        return AttemptResult(Outcome.ENGINE_DIED, died.error)
    except (Unavailable, ResourceExhausted) as error:
        is_sandbox = isinstance(error, UpstreamUnavailable) and error.service == SANDBOX
        if is_sandbox and attempt.claim.num_postponed >= MAX_POSTPONED_BY_SANDBOX:
            return AttemptResult(Outcome.FAILED, error)
        return AttemptResult(Outcome.POSTPONED, error)
    except DomainError as error:
        return AttemptResult(Outcome.FAILED if is_retryable(error) else Outcome.REFUSED, error)
    except asyncio.CancelledError:
        return AttemptResult(Outcome.RELEASED) if attempt.is_cancelled else failed
    except Exception:  # a defect of the handler must not stop the dispatcher
        _log.exception("job %s failed", job_id)
        return failed
    return AttemptResult(Outcome.DONE)


class JobGauges:
    """Gauges of the jobs in the database, by kind and state."""

    def __init__(self, transactions: CrossProjectTransactions, metrics: JobMetrics) -> None:
        self._transactions = transactions
        self._metrics = metrics

    async def run(self, interval_s: float) -> None:
        """Update the gauges until cancelled; they keep their values while the database fails."""
        while True:
            with log_errors(_log, "jobs cannot be counted", lambda _: logging.DEBUG):
                await self.count()
            await asyncio.sleep(interval_s)

    async def count(self) -> None:
        """Update the gauges once."""

        async def query(tx: CrossProjectTransaction) -> tuple[list[JobCount], datetime]:
            return await JobQueueQueries(tx).count_by_state(), await tx.now()

        counts, now = await self._transactions.read(query)
        self._metrics.jobs.clear()
        self._metrics.oldest_queued.clear()
        for count in counts:
            self._metrics.jobs.labels(count.kind, count.state).set(count.num_jobs)
            if count.state is JobState.QUEUED:
                age_s = max((now - count.oldest).total_seconds(), 0)
                self._metrics.oldest_queued.labels(count.kind).set(age_s)
