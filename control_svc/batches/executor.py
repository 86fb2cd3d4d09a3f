"""Runs the lines of a batch until each has ended, and commits results in groups.

A transaction for each line would cost more than a short answer. After a crash, only lines whose
results were not committed run again.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

from control_svc.batches.concurrency import AdaptiveConcurrency
from control_svc.batches.lines import LineResult, LineRunner, PendingLine
from control_svc.batches.model import NO_TOKENS, Batch, LineState
from control_svc.batches.queries import READ_LIMIT, BatchLineQueries, BatchQueries
from control_svc.batches.result_lines import unanswered_line
from control_svc.db.transaction import Transaction, Transactions, Work
from control_svc.jobs.handler import JobContext
from control_svc.jobs.model import ENGINE_DEATHS_BEFORE_ALONE, MAX_ENGINE_DEATHS
from svc_kit.errors import (
    Aborted,
    DomainError,
    EngineCrashed,
    EngineRestarting,
    RateLimited,
    ResourceExhausted,
    Unavailable,
)
from svc_kit.fair_semaphore import FairSemaphore
from svc_kit.tasks import end_tasks
from svc_kit.tracing.span import SpanKind, current_span, running_span

_log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")
_MAX_REQUEST_BYTES: Final = 64 << 20
"""Maximum total size of the requests that are running or queued in memory."""
_COMMIT_INTERVAL_S: Final = 1.0
"""How long results are collected before they are committed together, while other lines run and
there are fewer than `_COMMIT_RESULTS`: a commit takes as much processor time as a line."""
_COMMIT_RESULTS: Final = 16
"""So many results are committed at once, or as many as lines may run at once if these are fewer:
half of the tasks, so that the other half can run lines."""
_DEFAULT_RETRY_S: Final = 1.0
_MAX_LIMIT_WAIT_S: Final = 60.0
_WINDOW_CHECK_S: Final = 1.0


class BatchRunner:
    def __init__(
        self, transactions: Transactions, lines: LineRunner, concurrency: AdaptiveConcurrency
    ) -> None:
        self._transactions = transactions
        self._lines = lines
        self._concurrency = concurrency

    async def run(self, batch: Batch, context: JobContext) -> None:
        """Run lines until all have ended, the window closes, or the batch is cancelled.

        Results are committed before this returns or raises, unless the task is cancelled. Raises
        LeaseLost and errors that prevent results from being committed.
        """
        if await self._remaining_s(batch, context) <= 0:
            return
        most = min(_COMMIT_RESULTS, self._concurrency.max_limit)
        committer = _ResultCommitter(batch, context, most)
        running = asyncio.create_task(self._run_lines(batch, context, committer))
        committing = asyncio.create_task(committer.run())
        cancelled = asyncio.create_task(context.cancelled.wait())
        expired = asyncio.create_task(self._wait_for_expiry(batch, context))
        tasks = (running, committing, cancelled, expired)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            running.cancel()
            await asyncio.wait([running])
            committer.close()
            await committing
            _raise_error(running)
            _raise_error(expired)
        finally:
            await end_tasks(*tasks)

    async def _wait_for_expiry(self, batch: Batch, context: JobContext) -> None:
        while True:
            remaining_s = await self._remaining_s(batch, context)
            if remaining_s <= 0:
                return
            await asyncio.sleep(min(remaining_s, _WINDOW_CHECK_S))

    async def _remaining_s(self, batch: Batch, context: JobContext) -> float:
        """The rest of the window, by the clock of the database."""
        now = await self._read(context, lambda tx: tx.now())
        return (batch.expires_at - now).total_seconds()

    async def _read(self, context: JobContext, work: Work[ResultT]) -> ResultT:
        """Read, and retry while the database is unavailable, to keep the results of running lines.

        Their number is bounded: a line starts only after an earlier one is committed.
        """
        while True:
            try:
                return await self._transactions.of(context.claim.project).read(work)
            except Unavailable as error:
                _log.warning("database unavailable while a batch runs, retrying: %s", error)
                await asyncio.sleep(error.retry_after or _DEFAULT_RETRY_S)

    async def _run_lines(
        self, batch: Batch, context: JobContext, committer: "_ResultCommitter"
    ) -> None:
        """Start a task per line. Two tasks per permit: one runs while another one commits."""
        tasks = asyncio.Semaphore(2 * self._concurrency.max_limit)
        memory = FairSemaphore(_MAX_REQUEST_BYTES)

        async def run(line: PendingLine) -> None:
            try:
                with committer.running_line():
                    await self._run_line(batch, context, line, committer)
            finally:
                tasks.release()
                memory.release(len(line.request))

        async with asyncio.TaskGroup() as group:
            async for line in self._pending_lines(batch, context):
                await tasks.acquire()
                await memory.acquire(len(line.request))
                group.create_task(run(line))

    async def _pending_lines(self, batch: Batch, context: JobContext) -> AsyncIterator[PendingLine]:
        after: PendingLine | None = None

        async def read(tx: Transaction) -> list[PendingLine]:
            return await BatchLineQueries(tx).list_pending(batch.id, after, READ_LIMIT)

        while lines := await self._read(context, read):
            for line in lines:
                yield line
            after = lines[-1]

    async def _run_line(
        self, batch: Batch, context: JobContext, line: PendingLine, committer: "_ResultCommitter"
    ) -> None:
        """Try a line until it has a result. It runs alone if it may be what crashes engines."""
        deaths = line.engine_deaths
        while deaths < MAX_ENGINE_DEATHS:
            result = await self._try_line(
                batch, context, line, exclusive=deaths >= ENGINE_DEATHS_BEFORE_ALONE
            )
            if isinstance(result, LineResult):
                await committer.add(result)
                return
            if isinstance(result, RateLimited):
                wait_s = min(result.retry_after or _DEFAULT_RETRY_S, _MAX_LIMIT_WAIT_S)
                await asyncio.sleep(wait_s)
            if isinstance(result, EngineRestarting) and result.phase is not None:
                deaths += 1
                await committer.set_engine_deaths(line.number, deaths)
        error = EngineCrashed(times=deaths)
        text = unanswered_line(
            batch, line.number, line.request, error.reason.lower(), error.message
        )
        await committer.add(LineResult(line.number, LineState.FAILED, text))

    async def _try_line(
        self, batch: Batch, context: JobContext, line: PendingLine, *, exclusive: bool
    ) -> LineResult | DomainError:
        """Run a line once. Returns its result, or the error because of which it must be retried."""
        acquire = self._concurrency.acquire_exclusive if exclusive else self._concurrency.acquire
        async with acquire() as epoch:
            try:
                with running_span(
                    current_span().linked_root("batch line", SpanKind.CONSUMER)
                ) as span:
                    span.set({"corral.batch.id": batch.id, "corral.batch.line": line.number})
                    result = await self._lines.run(context.claim.project, batch, line)
            except RateLimited as error:
                return error  # a limit of this batch's caller, which must not delay other batches
            except (Aborted, ResourceExhausted, Unavailable) as error:
                retry_s = _DEFAULT_RETRY_S if error.retry_after is None else error.retry_after
                self._concurrency.record_rejection(epoch, retry_s)
                return error
            self._concurrency.record_success()
            return result


class _ResultCommitter:
    """Commits the results of lines in groups of at most about `most`."""

    def __init__(self, batch: Batch, context: JobContext, most: int) -> None:
        self._batch = batch
        self._context = context
        self._most = most
        self._group = _Group()
        self._num_running = self._num_waiting = 0
        """Lines, and those of them that wait for a commit."""
        self._has_results = asyncio.Event()
        self._is_due = asyncio.Event()
        self._is_closing = False

    @contextmanager
    def running_line(self) -> Iterator[None]:
        """A line runs, and may add its result."""
        self._num_running += 1
        try:
            yield
        finally:
            self._num_running -= 1
            self._commit_if_all_wait()

    async def add(self, result: LineResult) -> None:
        """Add the result of a line and wait until it is committed."""
        self._group.results.append(result)
        await self._wait_for_commit(is_due=len(self._group.results) >= self._most)

    async def set_engine_deaths(self, number: int, deaths: int) -> None:
        """Set how many engines died while they ran a line, and wait until it is committed."""
        self._group.deaths[number] = deaths
        await self._wait_for_commit(is_due=True)

    async def _wait_for_commit(self, *, is_due: bool) -> None:
        group = self._group
        self._has_results.set()
        if is_due:
            self._is_due.set()
        self._num_waiting += 1
        self._commit_if_all_wait()
        try:
            await group.committed.wait()
        finally:
            self._num_waiting -= 1

    def _commit_if_all_wait(self) -> None:
        if self._has_results.is_set() and self._num_waiting == self._num_running:
            self._is_due.set()

    def close(self) -> None:
        """Make `run` return after the next commit."""
        self._is_closing = True
        self._has_results.set()
        self._is_due.set()

    async def run(self) -> None:
        """Commit results until closed. Raises LeaseLost."""
        is_last = False
        while not is_last:
            await self._has_results.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(_COMMIT_INTERVAL_S):
                    await self._is_due.wait()
            is_last = self._is_closing
            self._has_results.clear()
            self._is_due.clear()
            group, self._group = self._group, _Group()
            if group.results or group.deaths:
                await self._commit(group)
            group.committed.set()

    async def _commit(self, group: "_Group") -> None:
        """Commit a group, and retry while the database is unavailable."""
        while True:
            try:
                await self._context.write(
                    lambda tx: self._save(tx, group), progress=bool(group.results)
                )
                return
            except Unavailable as error:
                _log.warning("cannot store results of %s, retrying: %s", self._batch.id, error)
                await asyncio.sleep(error.retry_after or _DEFAULT_RETRY_S)

    async def _save(self, tx: Transaction, group: "_Group") -> None:
        """Save a group. Idempotent, since the answer of a successful commit may get lost."""
        batch_id = self._batch.id
        lines, batches = BatchLineQueries(tx), BatchQueries(tx)
        if group.deaths:
            await lines.set_engine_deaths(batch_id, group.deaths)
        numbers = [result.number for result in group.results]
        pending = await lines.filter_pending(batch_id, numbers)
        results = [result for result in group.results if result.number in pending]
        if results:
            await lines.save_results(batch_id, results)
            batch = await batches.lock(batch_id)
            completed = sum(result.state is LineState.COMPLETED for result in results)
            usage = sum((result.usage for result in results), NO_TOKENS)
            batch = batch.add_results(completed, len(results) - completed, usage)
            await batches.update(batch)
            tx.announce(batch_id)


@dataclass(frozen=True)
class _Group:
    """What is committed together."""

    results: list[LineResult] = field(default_factory=list)
    deaths: dict[int, int] = field(default_factory=dict)
    """Engines that died, by line number."""
    committed: asyncio.Event = field(default_factory=asyncio.Event)


def _raise_error(task: "asyncio.Task[None]") -> None:
    """Raise the error of a task, if any; of an exception group the first."""
    if not task.done() or task.cancelled():
        return
    try:
        task.result()
    except ExceptionGroup as group:
        raise group.exceptions[0] from group
