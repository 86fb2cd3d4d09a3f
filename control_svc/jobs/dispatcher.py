"""Claims jobs, runs their handlers as tasks, and stores how attempts ended.

It looks for jobs after a notification, after the end of a job, and at an interval.
"""

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

from control_svc.db.notifications import Notifications
from control_svc.db.transaction import Transaction, Transactions
from control_svc.jobs.handler import JobContext, JobHandler
from control_svc.jobs.leases import Leases
from control_svc.jobs.model import (
    JOBS_TOPIC,
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
from svc_kit.errors import DomainError, InternalError, ResourceExhausted, Unavailable
from svc_kit.errors.status import is_retryable
from svc_kit.metrics import JobMetrics

_log = logging.getLogger(__name__)
_PAUSE_S: Final = 1.0
"""Between two tries to write down how an attempt ended, while the database cannot take it."""


class _Attempt:
    """A job that runs here. Its work is a task of its own, so that breaking it off, even before it
    has begun, leaves alone who writes down how it ended."""

    def __init__(self, job: Job, leases: Leases, handler: JobHandler) -> None:
        self.claim = job.claim
        self.context = JobContext(job, leases)
        self.work = asyncio.create_task(handler.run(self.claim, self.context))
        self.is_given_up = False

    def give_up(self) -> None:
        """End the work where it stands; a transaction under way ends by itself."""
        if not self.is_given_up:
            self.is_given_up = self.work.cancel()


class Dispatcher:
    """Works on jobs of the kinds that it has handlers for."""

    def __init__(
        self,
        leases: Leases,
        notifications: Notifications,
        handlers: Sequence[JobHandler],
        metrics: JobMetrics,
    ) -> None:
        self._leases = leases
        self._notifications = notifications
        self._handlers = {handler.kind: handler for handler in handlers}
        self._metrics = metrics
        self._running: dict[Claim, _Attempt] = {}
        self._attempts: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._is_stopping = False

    # ---- life

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
                await self._round(is_poll=is_poll)
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(next_poll):
                        await self._changed.wait()
        self.stop()  # what the last round claimed
        await asyncio.gather(*self._attempts)

    def stop(self) -> None:
        """Stop claiming and release running jobs, so that other processes can claim them."""
        self._is_stopping = True
        self._changed.set()
        for attempt in self._running.values():
            attempt.give_up()

    # ---- a round

    async def _round(self, *, is_poll: bool) -> None:
        try:
            if is_poll or self._running:
                await self._look_after()
            if is_poll:
                await self._take_over()
            await self._claim()
        except DomainError as error:
            _log.warning("jobs cannot be claimed: %s", error)
        except Exception:  # logged only: the next round may succeed
            _log.exception("jobs cannot be claimed")

    async def _look_after(self) -> None:
        """Signal cancellations to attempts, and end jobs that never started."""
        ours = set(self._running)
        held = {job.claim: job for job in await self._leases.owned()}
        for claim in ours & self._running.keys():
            if claim not in held:
                self._lost(self._running[claim])
            elif held[claim].cancel_requested_at is not None:
                self._running[claim].context.cancelled.set()
        for claim in held.keys() - ours - self._running.keys():
            # Claimed by a commit whose answer got lost, or its end could not be written.
            lost = AttemptResult(Outcome.LOST)
            await self._write_end(claim, lost.outcome, self._leases.end(claim, lost))

    def _lost(self, attempt: _Attempt) -> None:
        if not attempt.context.is_finishing:  # then the job has just been done
            attempt.give_up()

    async def _take_over(self) -> None:
        for orphan in await self._leases.orphans():
            await self._write_end(orphan.claim, Outcome.LOST, self._leases.take_over(orphan))

    async def _claim(self) -> None:
        while not self._is_stopping:
            kinds = [kind for kind in self._handlers if self._has_room(kind)]
            job = await self._leases.claim(kinds) if kinds else None
            if job is None:
                return
            self._start(job)

    def _has_room(self, kind: str) -> bool:
        num_running = sum(claim.kind == kind for claim in self._running)
        return num_running < self._handlers[kind].concurrency

    def _start(self, job: Job) -> None:
        attempt = _Attempt(job, self._leases, self._handlers[job.kind])
        self._running[attempt.claim] = attempt
        self._metrics.running.labels(job.kind).inc()
        task = asyncio.create_task(self._attempt(attempt))
        self._attempts.add(task)
        task.add_done_callback(self._attempts.discard)

    # ---- an attempt

    async def _attempt(self, attempt: _Attempt) -> None:
        claim = attempt.claim
        try:
            ending = await self._ending_of(attempt)
            if attempt.context.is_finished:
                self._metrics.attempts.labels(claim.kind, Outcome.DONE).inc()
            else:
                await self._end(claim, ending)
        finally:
            del self._running[claim]
            self._metrics.running.labels(claim.kind).dec()
            self._changed.set()

    async def _ending_of(self, attempt: _Attempt) -> AttemptResult:
        claim = attempt.claim
        failed = AttemptResult(Outcome.FAILED, InternalError(request_id=claim.job_id))
        try:
            await attempt.work
        except LeaseLost:
            return AttemptResult(Outcome.LOST)
        except EngineDied as died:
            return AttemptResult(Outcome.ENGINE_DIED, died.error)
        except DomainError as error:
            return _ending_by(error)
        except asyncio.CancelledError:
            return AttemptResult(Outcome.RELEASED) if attempt.is_given_up else failed
        except Exception:  # a defect; the attempt ends, the dispatcher goes on
            _log.exception("job %s failed", claim.job_id)
            return failed
        return AttemptResult(Outcome.DONE)

    async def _end(self, claim: Claim, ending: AttemptResult) -> None:
        """Write down how an attempt ended, as soon as the database takes it."""
        while not await self._write_end(claim, ending.outcome, self._leases.end(claim, ending)):
            if self._is_stopping:
                return  # the lease runs out
            await asyncio.sleep(_PAUSE_S)

    async def _write_end(self, claim: Claim, outcome: Outcome, step: Awaitable[Job]) -> bool:
        """Whether that is settled; not, while the database cannot take it."""
        try:
            job = await step
        except LeaseLost:
            _log.info("lost the lease of job %s", claim.job_id)
        except Unavailable as error:
            _log.warning("the end of job %s is not written yet: %s", claim.job_id, error)
            return False
        except Exception:  # a subject that cannot be ended; the next poll tries again
            _log.exception("the end of job %s cannot be written", claim.job_id)
        else:
            self._note(job, outcome)
        return True

    def _note(self, job: Job, outcome: Outcome) -> None:
        self._metrics.attempts.labels(job.kind, outcome).inc()
        if job.state is JobState.DONE:
            return
        error = job.error._asdict() if job.error else {}
        fields = {"job": job.id, "kind": job.kind, "subject": job.subject, **error}
        level = logging.ERROR if job.state is JobState.DEAD else logging.INFO
        _log.log(level, "attempt %s: job is %s", outcome, job.state, extra={"fields": fields})


def _ending_by(error: DomainError) -> AttemptResult:
    if isinstance(error, Unavailable | ResourceExhausted):
        return AttemptResult(Outcome.POSTPONED, error)
    return AttemptResult(Outcome.FAILED if is_retryable(error) else Outcome.REFUSED, error)


class JobGauges:
    """Counts the jobs in the database now and then."""

    def __init__(self, transactions: Transactions, metrics: JobMetrics) -> None:
        self._transactions = transactions
        self._metrics = metrics

    async def run(self, interval_s: float) -> None:
        """Count until cancelled; while the database is away the last count stays."""
        while True:
            try:
                await self.count()
            except DomainError as error:
                _log.debug("jobs cannot be counted: %s", error)
            except Exception:  # logged only: the next count may succeed
                _log.exception("jobs cannot be counted")
            await asyncio.sleep(interval_s)

    async def count(self) -> None:
        """Count once."""

        async def ask(tx: Transaction) -> tuple[list[JobCount], datetime]:
            return await JobQueueQueries(tx).count_by_state(), await tx.now()

        counts, now = await self._transactions.read(ask)
        self._metrics.jobs.clear()
        self._metrics.oldest_queued.clear()
        for found in counts:
            self._metrics.jobs.labels(found.kind, found.state).set(found.num_jobs)
            if found.state is JobState.QUEUED:
                waited = max((now - found.oldest).total_seconds(), 0)
                self._metrics.oldest_queued.labels(found.kind).set(waited)
