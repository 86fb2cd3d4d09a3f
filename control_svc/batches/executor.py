"""Runs the lines of a batch until each has ended, and commits results in groups.

A transaction for each line would cost more than a short answer. A process that dies repeats only
lines whose results were not committed.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

from control_svc.batches.concurrency import AdaptiveConcurrency, ByteSemaphore
from control_svc.batches.lines import LineResult, LineRunner, PendingLine, unanswered
from control_svc.batches.model import NO_TOKENS, Batch, LineState
from control_svc.batches.queries import READ_AT_ONCE, BatchLineQueries, BatchQueries
from control_svc.db.transaction import Transaction, Transactions
from control_svc.jobs.handler import JobContext
from control_svc.jobs.model import ENGINE_DEATHS_BEFORE_ALONE, MAX_ENGINE_DEATHS
from svc_kit.errors import (
    Aborted,
    DomainError,
    EngineCrashed,
    EngineRestarting,
    ResourceExhausted,
    Unavailable,
)

_log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")
_BYTES_AT_ONCE: Final = 64 << 20
"""Of requests that run, or wait to."""
_GATHERING_S: Final = 0.05
"""How long ends are gathered before they are committed together."""
_PAUSE_S: Final = 1.0


class BatchRunner:
    """Runs the lines of batches."""

    def __init__(
        self, transactions: Transactions, lines: LineRunner, places: AdaptiveConcurrency
    ) -> None:
        self._transactions = transactions
        self._lines = lines
        self._places = places

    async def run(self, batch: Batch, context: JobContext) -> None:
        """Until every line has ended, the window has closed, or the batch is given up.

        What has ended is committed, however this is left but by a cancellation. Raises LeaseLost
        and whatever keeps ends from being committed.
        """
        if await self._left_s(batch) <= 0:
            return
        ends = _Ends(batch, context)
        running = asyncio.create_task(self._run_all(batch, context, ends))
        committing = asyncio.create_task(ends.commit_all())
        given_up = asyncio.create_task(context.cancelled.wait())
        closed = asyncio.create_task(self._window_closes(batch))
        tasks = (running, committing, given_up, closed)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            running.cancel()
            await asyncio.wait([running])
            ends.close()
            await committing
            _raise_from(running)
            _raise_from(closed)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _window_closes(self, batch: Batch) -> None:
        while True:
            left_s = await self._left_s(batch)
            if left_s <= 0:
                return
            await asyncio.sleep(min(left_s, _PAUSE_S))

    async def _left_s(self, batch: Batch) -> float:
        """Of the window, by the database's clock, which may be another than this process's."""
        now = await self._read(lambda tx: tx.now())
        return (batch.expires_at - now).total_seconds()

    async def _read(self, work: Callable[[Transaction], Awaitable[ResultT]]) -> ResultT:
        """Read, as soon as the database can be: lines are under way, whose results are kept here.

        Not many: no line begins while those of all places wait to be committed.
        """
        while True:
            try:
                return await self._transactions.read(work)
            except Unavailable as error:
                _log.warning("a batch waits for the database: %s", error)
                await asyncio.sleep(error.retry_after or _PAUSE_S)

    async def _run_all(self, batch: Batch, context: JobContext, ends: "_Ends") -> None:
        """Start lines; there are two tasks a place, so that one runs while another's is kept."""
        tasks, room = asyncio.Semaphore(2 * self._places.most), ByteSemaphore(_BYTES_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            async for line in self._pending(batch, context):
                await tasks.acquire()
                await room.take(len(line.request))
                task = group.create_task(self._run(batch, context, line, ends))
                task.add_done_callback(lambda _: tasks.release())
                task.add_done_callback(_giving_back(room, len(line.request)))

    async def _pending(self, batch: Batch, context: JobContext) -> AsyncIterator[PendingLine]:
        after: PendingLine | None = None
        while lines := await self._read(_next_lines(context.claim.project, batch.id, after)):
            for line in lines:
                yield line
            after = lines[-1]

    async def _run(
        self, batch: Batch, context: JobContext, line: PendingLine, ends: "_Ends"
    ) -> None:
        deaths = line.engine_deaths
        while deaths < MAX_ENGINE_DEATHS:
            ended = await self._try(batch, context, line, is_alone=_is_suspect(deaths))
            if isinstance(ended, LineResult):
                await ends.add(ended)
                return
            if _died_with_it(ended):
                deaths += 1
                await ends.count_death(line.number, deaths)
        await ends.add(_crashed(batch, line, deaths))

    async def _try(
        self, batch: Batch, context: JobContext, line: PendingLine, *, is_alone: bool
    ) -> LineResult | DomainError:
        """How the line ended, or why it has to be tried again."""
        async with self._places.alone() if is_alone else self._places.one() as place:
            try:
                result = await self._lines.run(context.claim.project, batch, line)
            except (Aborted, ResourceExhausted, Unavailable) as error:
                wait_s = error.retry_after
                place.was_too_much(_PAUSE_S if wait_s is None else wait_s)
                return error
            place.went_well()
            return result


class _Ends:
    """How lines ended, on the way to their rows."""

    def __init__(self, batch: Batch, context: JobContext) -> None:
        self._batch = batch
        self._context = context
        self._group = _Group()
        self._news = asyncio.Event()
        self._closing = asyncio.Event()

    async def add(self, result: LineResult) -> None:
        """A line has ended; returns when that is committed."""
        group = self._group
        group.results.append(result)
        self._news.set()
        await group.committed.wait()

    async def count_death(self, number: int, deaths: int) -> None:
        """So many engines have died while they had a line; returns when that is committed."""
        group = self._group
        group.deaths[number] = deaths
        self._news.set()
        await group.committed.wait()

    def close(self) -> None:
        """Nothing more will be added."""
        self._closing.set()
        self._news.set()

    async def commit_all(self) -> None:
        """Commit what is added, in groups, until closed. Raises LeaseLost."""
        is_last = False
        while not is_last:
            await self._news.wait()
            await self._gather()
            is_last = self._closing.is_set()
            self._news.clear()
            group, self._group = self._group, _Group()
            await self._commit(group)
            group.committed.set()

    async def _gather(self) -> None:
        """A moment, unless this is the last group."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_GATHERING_S):
                await self._closing.wait()

    async def _commit(self, group: "_Group") -> None:
        """Commit a group, as soon as the database takes it: its lines need not run again."""
        while group.results or group.deaths:
            try:
                await self._context.write(
                    lambda tx: self._keep(tx, group),
                    progress=bool(group.results),
                )
            except Unavailable as error:
                _log.warning("results of %s are not stored yet: %s", self._batch.id, error)
                await asyncio.sleep(error.retry_after or _PAUSE_S)
            else:
                return

    async def _keep(self, tx: Transaction, group: "_Group") -> None:
        """Keep a group; also one that is kept already, by a commit whose answer got lost."""
        project, batch_id = self._context.claim.project, self._batch.id
        if group.deaths:
            await BatchLineQueries(tx).set_deaths(project, batch_id, group.deaths)
        numbers = [result.number for result in group.results]
        pending = await BatchLineQueries(tx).still_pending(project, batch_id, numbers)
        results = [result for result in group.results if result.number in pending]
        if results:
            await BatchLineQueries(tx).end(project, batch_id, results)
            found = await BatchQueries(tx).lock(project, batch_id)
            completed = sum(result.state is LineState.COMPLETED for result in results)
            usage = sum((result.usage for result in results), NO_TOKENS)
            counted = found.count(completed, len(results) - completed, usage)
            await BatchQueries(tx).update(project, counted)
            tx.announce(batch_id)


@dataclass(frozen=True)
class _Group:
    """What is committed together."""

    results: list[LineResult] = field(default_factory=list)
    deaths: dict[int, int] = field(default_factory=dict)
    """How many engines died, by the number of the line."""
    committed: asyncio.Event = field(default_factory=asyncio.Event)


def _giving_back(room: ByteSemaphore, size: int) -> Callable[[object], None]:
    return lambda _: room.give(size)


def _raise_from(task: "asyncio.Task[None]") -> None:
    """Raise the error of a task; of a group the first."""
    if not task.done() or task.cancelled():
        return
    try:
        task.result()
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed


def _next_lines(
    project: str, batch_id: str, after: PendingLine | None
) -> Callable[[Transaction], Awaitable[list[PendingLine]]]:
    return lambda tx: BatchLineQueries(tx).pending(project, batch_id, after, READ_AT_ONCE)


def _is_suspect(deaths: int) -> bool:
    """Whether a line may be what kills engines."""
    return deaths >= ENGINE_DEATHS_BEFORE_ALONE


def _died_with_it(error: DomainError) -> bool:
    return isinstance(error, EngineRestarting) and error.phase is not None


def _crashed(batch: Batch, line: PendingLine, deaths: int) -> LineResult:
    error = EngineCrashed(times=deaths)
    code = error.reason.lower()
    text = unanswered(batch.id, line.number, line.request, code, error.message)
    return LineResult(line.number, LineState.FAILED, text)
