"""BatchRunner: retries lines, survives database failures, and isolates lines that crash engines."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
import sqlalchemy as sa

from control_svc.base.ids import BATCH as BATCH_PREFIX
from control_svc.base.ids import IdSource
from control_svc.batches.concurrency import AdaptiveConcurrency
from control_svc.batches.executor import BatchRunner
from control_svc.batches.lines import LineResult, PendingLine
from control_svc.batches.model import Batch, LineState, NewBatch, TokenUsage
from control_svc.batches.queries import BatchLineQueries, BatchQueries
from control_svc.batches.tables import BatchLineRow
from control_svc.db.transaction import Transaction, Transactions
from control_svc.jobs.handler import JobContext
from control_svc.jobs.model import Claim, LeaseLost
from svc_kit.errors import (
    DomainError,
    EngineRestarting,
    RateLimited,
    ResourceExhausted,
    UpstreamUnavailable,
)
from tests.support.jobs import open_test_database

ResultT = TypeVar("ResultT")
P = "p"
NOW = datetime(2026, 11, 22, tzinfo=UTC)
DEATH = EngineRestarting(phase="running", retry_after=0.0)
BATCH_ID = IdSource(lambda: NOW).new(BATCH_PREFIX)
BATCH = NewBatch(input_file_id="f", endpoint="/v1/embeddings").make(BATCH_ID, NOW)


class Rows:
    """The rows of one batch: the transactions and the job context of a worker, which can fail."""

    def __init__(self, transactions: Transactions) -> None:
        self.write_errors: list[Exception] = []
        self.read_errors: list[Exception] = []
        self.commit_errors: list[Exception] = []
        """Raised after successful commits."""
        self.num_writes = 0
        self.claim = Claim(
            project=P, job_id="j", fence=1, kind="batch", subject="b", attempt=1, engine_deaths=0
        )
        self.cancelled = asyncio.Event()
        self._transactions = transactions.of(P)

    def of(self, project: str) -> "Rows":
        assert project == P
        return self

    async def insert(
        self,
        num_lines: int,
        request: bytes = b'{"custom_id": "x"}',
        deaths: Mapping[int, int] | None = None,
        **changes: Any,
    ) -> None:
        """Insert the batch with pending lines, which may have engine deaths."""
        batch = replace(BATCH.start("m", num_lines, NOW), **changes)
        lines = [PendingLine(number, b"", request) for number in range(1, num_lines + 1)]

        async def work(tx: Transaction) -> None:
            await BatchQueries(tx).add(batch)
            await BatchLineQueries(tx).add(batch.id, lines)
            if deaths:
                await BatchLineQueries(tx).set_engine_deaths(batch.id, deaths)

        await self._transactions.write(work)

    async def read(self, work: Callable[[Transaction], Awaitable[ResultT]]) -> ResultT:
        """Run a transaction, or raise the next error."""
        if self.read_errors:
            raise self.read_errors.pop(0)
        return await self._transactions.read(work)

    async def write(
        self, work: Callable[[Transaction], Awaitable[ResultT]], *, progress: bool = False
    ) -> ResultT:
        """Run a transaction, or raise the next error."""
        if self.write_errors:
            raise self.write_errors.pop(0)
        result = await self._transactions.write(work)
        self.num_writes += 1
        if self.commit_errors:
            raise self.commit_errors.pop(0)
        return result

    async def batch(self) -> Batch:
        return await self._transactions.read(lambda tx: BatchQueries(tx).get(BATCH.id))

    async def ended(self) -> dict[int, LineState]:
        return {row.number: LineState(row.state) for row in await self._rows() if row.result}

    async def deaths(self) -> dict[int, int]:
        return {row.number: row.engine_deaths for row in await self._rows() if row.engine_deaths}

    async def result(self, number: int) -> bytes:
        return next(row.result or b"" for row in await self._rows() if row.number == number)

    async def _rows(self) -> Sequence[BatchLineRow]:
        async def work(tx: Transaction) -> Sequence[BatchLineRow]:
            return (await tx.session.scalars(sa.select(BatchLineRow))).all()

        return await self._transactions.read(work)


@pytest.fixture
async def rows(tmp_path: Path) -> AsyncIterator[Rows]:
    async with open_test_database(tmp_path, None, lambda: NOW) as database:
        yield Rows(database.transactions)


class Lines:
    """A LineRunner that raises scripted errors."""

    def __init__(self) -> None:
        self.errors: dict[int, list[DomainError]] = {}
        self.fragile: set[int] = set()
        """Lines that fail unless they run alone."""
        self.num_runs: Counter[int] = Counter()
        self.running: set[int] = set()
        self.max_running = 0
        self.failed = asyncio.Event()
        self.started = asyncio.Condition()
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.between_s = 0.0
        """A line takes that much longer than the one before it."""

    async def wait_for_start(self, number: int) -> None:
        async with self.started:
            await self.started.wait_for(lambda: self.num_runs[number] > 0)

    async def run(self, project: str, batch: Batch, line: PendingLine) -> LineResult:
        """Complete the line, or raise its next error."""
        self.num_runs[line.number] += 1
        self.running.add(line.number)
        self.max_running = max(self.max_running, len(self.running))
        async with self.started:
            self.started.notify_all()
        try:
            await self.may_end.wait()
            await asyncio.sleep(self.between_s * line.number)
            for _ in range(5):
                await asyncio.sleep(0)
                if line.number in self.fragile and self.running != {line.number}:
                    raise DEATH
            if self.errors.get(line.number):
                self.failed.set()
                raise self.errors[line.number].pop(0)
        finally:
            self.running.discard(line.number)
        return LineResult(line.number, LineState.COMPLETED, b"{}", TokenUsage(1, 0, 2, 0))


@pytest.fixture
def lines() -> Lines:
    return Lines()


class RecordingConcurrency(AdaptiveConcurrency):
    """Records the backoffs that are requested, without waiting."""

    def __init__(self) -> None:
        super().__init__(4)
        self.backoffs_s: list[float] = []

    def record_rejection(self, epoch: int, retry_after_s: float) -> None:
        self.backoffs_s.append(retry_after_s)


async def run(rows: Rows, lines: Lines, concurrency: AdaptiveConcurrency | None = None) -> None:
    """Run the batch, by default at most 4 lines at a time."""
    runner = BatchRunner(cast(Any, rows), lines, concurrency or AdaptiveConcurrency(4))
    batch = await rows.batch()
    async with asyncio.timeout(50):
        await runner.run(batch, cast(JobContext, rows))


async def test_every_line_ends_once_and_is_counted(rows: Rows, lines: Lines) -> None:
    """Counts and usage are sums over the lines."""
    await rows.insert(100)
    await run(rows, lines)

    batch = await rows.batch()
    assert sorted(await rows.ended()) == list(range(1, 101))
    assert (batch.counts.completed, batch.counts.pending) == (100, 0)
    assert batch.usage == TokenUsage(100, 0, 200, 0)


async def test_results_that_come_one_after_the_other_are_committed_together(
    rows: Rows, lines: Lines
) -> None:
    """About once in a second, and at once when no other line runs."""
    await rows.insert(9)
    lines.between_s = 0.1
    started = time.monotonic()
    await run(rows, lines, AdaptiveConcurrency(9))
    elapsed_s = time.monotonic() - started

    assert rows.num_writes <= elapsed_s + 2


async def test_no_more_results_wait_than_lines_run_at_once(rows: Rows, lines: Lines) -> None:
    """Others could not start meanwhile."""
    await rows.insert(8)
    lines.between_s = 0.05
    await run(rows, lines, AdaptiveConcurrency(2))

    assert rows.num_writes >= 3


async def test_results_are_committed_once_the_database_is_back(rows: Rows, lines: Lines) -> None:
    """No line runs again."""
    await rows.insert(20)
    rows.write_errors = [UpstreamUnavailable(service="database", retry_after=0.01)] * 3
    await run(rows, lines)

    assert len(await rows.ended()) == 20
    assert set(lines.num_runs.values()) == {1}


async def test_lines_continue_while_the_database_is_unavailable(rows: Rows, lines: Lines) -> None:
    """Results are kept in memory until it is back."""
    await rows.insert(100)
    unavailable = UpstreamUnavailable(service="database", retry_after=0.01)

    async def fail_database() -> None:
        await lines.wait_for_start(40)
        rows.read_errors = [unavailable] * 3
        rows.write_errors = [unavailable] * 3

    await asyncio.gather(run(rows, lines), fail_database())

    assert len(await rows.ended()) == 100
    assert not rows.read_errors
    assert set(lines.num_runs.values()) == {1}


async def test_no_line_runs_after_the_window_has_closed(rows: Rows, lines: Lines) -> None:
    """The batch expired before it started."""
    await rows.insert(3, expires_at=NOW)
    await run(rows, lines)

    assert not lines.num_runs


async def test_running_requests_are_bounded_by_bytes(rows: Rows, lines: Lines) -> None:
    """Large requests wait until others have ended."""
    large = b'{"custom_id": "x"}' + b" " * (30 << 20)
    await rows.insert(6, request=large)
    lines.may_end.clear()

    async def finish_once_two_run() -> None:
        await lines.wait_for_start(2)
        lines.may_end.set()

    await asyncio.gather(run(rows, lines, AdaptiveConcurrency(8)), finish_once_two_run())

    assert len(await rows.ended()) == 6
    assert lines.max_running == 2


async def test_a_repeated_commit_counts_once(rows: Rows, lines: Lines) -> None:
    """After an error that leaves open whether the commit succeeded."""
    await rows.insert(20)
    lines.errors[3] = [DEATH]
    rows.commit_errors = [UpstreamUnavailable(service="database", retry_after=0.01)] * 3
    await run(rows, lines)

    assert len(await rows.ended()) == 20
    batch = await rows.batch()
    assert (batch.counts.completed, batch.counts.pending) == (20, 0)
    assert batch.usage == TokenUsage(20, 0, 40, 0)
    assert await rows.deaths() == {3: 1}


async def test_a_rejection_without_retry_after_has_a_default_backoff(
    rows: Rows, lines: Lines
) -> None:
    """A proxy may omit it."""
    await rows.insert(1)
    concurrency = RecordingConcurrency()
    lines.errors[1] = [ResourceExhausted.with_reason(reason="RESOURCE_EXHAUSTED", message="x")]
    await run(rows, lines, concurrency)

    assert concurrency.backoffs_s == [1.0]


async def test_a_rate_limit_delays_only_the_lines_of_its_caller(rows: Rows, lines: Lines) -> None:
    """They are tried again; the limit of concurrent lines, which all batches share, is the same."""
    concurrency = RecordingConcurrency()
    limit = RateLimited(
        name="calls",
        limit="9 requests per minute",
        unit="requests",
        amount=9,
        remaining=0,
        requested=1,
        window_s=60,
        reset_s=9,
        retry_after=0.01,
    )
    lines.errors = {1: [limit, limit], 2: [limit]}
    await rows.insert(3)
    await run(rows, lines, concurrency)

    assert lines.num_runs == {1: 3, 2: 2, 3: 1}
    assert concurrency.backoffs_s == []


async def test_a_lost_lease_ends_the_run(rows: Rows, lines: Lines) -> None:
    """No result is stored, and no line continues."""
    await rows.insert(500)
    rows.write_errors = [LeaseLost("lost")]
    with pytest.raises(LeaseLost):
        await run(rows, lines)

    assert not await rows.ended()
    assert not lines.running


async def test_lines_run_alone_after_engine_deaths(rows: Rows, lines: Lines) -> None:
    """Only the line that crashes engines fails, after its third death."""
    await rows.insert(60)
    lines.fragile = {3, 4, 5}
    lines.errors[30] = [DEATH] * 9
    await run(rows, lines)
    states, deaths = await rows.ended(), await rows.deaths()

    assert [number for number, state in states.items() if state is LineState.FAILED] == [30]
    assert b"engine_crashed" in await rows.result(30)
    assert deaths.pop(30) == 3
    assert max(deaths.values()) <= 2
    assert len(states) == 60


async def test_stored_engine_deaths_count_for_the_next_worker(rows: Rows, lines: Lines) -> None:
    """A line with two stored deaths fails after one more."""
    await rows.insert(1, deaths={1: 2})
    lines.errors[1] = [DEATH]
    await run(rows, lines)

    assert await rows.ended() == {1: LineState.FAILED}
    assert lines.num_runs == {1: 1}


async def test_a_cancelled_batch_keeps_committed_results(rows: Rows, lines: Lines) -> None:
    await rows.insert(3)
    lines.errors[3] = [UpstreamUnavailable(service="inference", retry_after=5.0)]

    async def cancel() -> None:
        await lines.failed.wait()
        rows.cancelled.set()

    await asyncio.gather(run(rows, lines), cancel())

    assert sorted(await rows.ended()) == [1, 2]
