"""BatchRunner: retries lines, survives database failures, and isolates lines that crash engines."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import pytest
from sqlalchemy import select

from control_svc.base.ids import BATCH as BATCH_PREFIX
from control_svc.base.ids import IdSource
from control_svc.batches.concurrency import AdaptiveConcurrency
from control_svc.batches.executor import BatchRunner
from control_svc.batches.lines import EndedLine, LineResult, NewLine, PendingLine
from control_svc.batches.model import Batch, LineState, NewBatch, TokenUsage
from control_svc.batches.queries import BatchLineQueries, BatchQueries, ReadLimit
from control_svc.batches.tables import BatchLineRow
from control_svc.db.transaction import Transaction, Transactions
from control_svc.jobs.handler import JobContext
from control_svc.jobs.model import Claim, LeaseLost
from svc_kit.errors import DomainError, EngineRestarting, ResourceExhausted, UpstreamUnavailable
from tests.support.jobs import a_database

ResultT = TypeVar("ResultT")
P = "p"
NOW = datetime(2026, 11, 22, tzinfo=UTC)
DEATH = EngineRestarting(phase="running", retry_after=0.0)
BATCH_ID = IdSource(lambda: NOW).new(BATCH_PREFIX)
BATCH = NewBatch(input_file_id="f", endpoint="/v1/embeddings").make(BATCH_ID, NOW)
NO_DEATHS: Mapping[int, int] = {}


class MakeRows(Protocol):
    """Inserts a batch."""

    async def __call__(
        self,
        num_lines: int,
        request: bytes = b"",
        deaths: Mapping[int, int] = NO_DEATHS,
        **changes: Any,
    ) -> "Rows":
        """`changes` are fields of the batch."""


class Rows:
    """The rows of one batch: the transactions and the job context of a worker, which can fail."""

    def __init__(self, transactions: Transactions) -> None:
        self.write_errors: list[Exception] = []
        self.read_errors: list[Exception] = []
        self.commit_errors: list[Exception] = []
        """Raised after successful commits."""
        self.claim = Claim(
            project=P, job_id="j", fence=1, kind="batch", subject="b", attempt=1, engine_deaths=0
        )
        self.cancelled = asyncio.Event()
        self._transactions = transactions

    async def add(self, batch: Batch, lines: Sequence[NewLine], deaths: Mapping[int, int]) -> None:
        """Insert the batch and its lines. `deaths` are engine deaths by line number."""

        async def work(tx: Transaction) -> None:
            await BatchQueries(tx).add(P, batch)
            await BatchLineQueries(tx).add(P, batch.id, lines)
            if deaths:
                await BatchLineQueries(tx).set_engine_deaths(P, batch.id, deaths)

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
        if self.commit_errors:
            raise self.commit_errors.pop(0)
        return result

    async def batch(self) -> Batch:
        """Read the batch."""
        return await self._transactions.read(lambda tx: BatchQueries(tx).get(P, BATCH.id))

    async def results(self) -> dict[int, EndedLine]:
        """Read the ended lines, by number."""
        lines = list[EndedLine]()
        for completed in (True, False):
            lines += await self._transactions.read(partial(_list_ended, completed=completed))
        return {line.number: line for line in lines if line.state is not LineState.PENDING}

    async def deaths(self) -> dict[int, int]:
        """Read the engine deaths of lines that have any, by line number."""
        query = select(BatchLineRow.number, BatchLineRow.engine_deaths)

        async def work(tx: Transaction) -> dict[int, int]:
            rows = await tx.session.execute(query.where(BatchLineRow.engine_deaths > 0))
            return {number: deaths for number, deaths in rows}

        return await self._transactions.read(work)


async def _list_ended(tx: Transaction, *, completed: bool) -> list[EndedLine]:
    limit = ReadLimit(1000, 1 << 40)
    return await BatchLineQueries(tx).list_ended(
        P, BATCH.id, completed=completed, after=0, limit=limit
    )


@pytest.fixture
async def make_rows(tmp_path: Path) -> AsyncIterator[MakeRows]:
    """Inserts a batch with pending lines into a new database."""
    async with a_database(tmp_path, None, lambda: NOW) as database:

        async def make(
            num_lines: int,
            request: bytes = b'{"custom_id": "x"}',
            deaths: Mapping[int, int] = NO_DEATHS,
            **changes: Any,
        ) -> Rows:
            rows = Rows(database.transactions)
            lines = [NewLine(number, b"", request) for number in range(1, num_lines + 1)]
            await rows.add(replace(BATCH.start("m", num_lines, NOW), **changes), lines, deaths)
            return rows

        yield make


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

    async def wait_for_start(self, number: int) -> None:
        """Wait until a line has started."""
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


class RecordingConcurrency(AdaptiveConcurrency):
    """Records the backoffs that are requested, without waiting."""

    def __init__(self) -> None:
        super().__init__(4)
        self.backoffs_s: list[float] = []

    def record_rejection(self, epoch: int, retry_after_s: float) -> None:
        """Record a rejection."""
        self.backoffs_s.append(retry_after_s)


async def run(rows: Rows, lines: Lines, concurrency: AdaptiveConcurrency | None = None) -> None:
    """Run the batch, by default at most 4 lines at a time."""
    runner = BatchRunner(cast(Any, rows), lines, concurrency or AdaptiveConcurrency(4))
    batch = await rows.batch()
    async with asyncio.timeout(20):
        await runner.run(batch, cast(JobContext, rows))


async def test_every_line_ends_once_and_is_counted(make_rows: MakeRows) -> None:
    """Counts and usage are sums over the lines."""
    rows, lines = await make_rows(100), Lines()
    await run(rows, lines)

    batch = await rows.batch()
    assert sorted(await rows.results()) == list(range(1, 101))
    assert (batch.counts.completed, batch.counts.pending) == (100, 0)
    assert batch.usage == TokenUsage(100, 0, 200, 0)


async def test_results_are_committed_once_the_database_is_back(make_rows: MakeRows) -> None:
    """No line runs again."""
    rows, lines = await make_rows(20), Lines()
    rows.write_errors = [UpstreamUnavailable(service="database", retry_after=0.01)] * 3
    await run(rows, lines)

    assert len(await rows.results()) == 20
    assert set(lines.num_runs.values()) == {1}


async def test_lines_continue_while_the_database_is_unavailable(make_rows: MakeRows) -> None:
    """Results are kept in memory until it is back."""
    rows, lines = await make_rows(100), Lines()
    unavailable = UpstreamUnavailable(service="database", retry_after=0.01)

    async def fail_database() -> None:
        await lines.wait_for_start(40)
        rows.read_errors = [unavailable] * 3
        rows.write_errors = [unavailable] * 3

    await asyncio.gather(run(rows, lines), fail_database())

    assert len(await rows.results()) == 100
    assert not rows.read_errors
    assert set(lines.num_runs.values()) == {1}


async def test_no_line_runs_after_the_window_has_closed(make_rows: MakeRows) -> None:
    """The batch expired before it started."""
    rows, lines = await make_rows(3, expires_at=NOW), Lines()
    await run(rows, lines)

    assert not lines.num_runs


async def test_running_requests_are_bounded_by_bytes(make_rows: MakeRows) -> None:
    """Large requests wait until others have ended."""
    large = b'{"custom_id": "x"}' + b" " * (30 << 20)
    rows, lines = await make_rows(6, request=large), Lines()
    lines.may_end.clear()

    async def finish_once_two_run() -> None:
        await lines.wait_for_start(2)
        lines.may_end.set()

    await asyncio.gather(run(rows, lines, AdaptiveConcurrency(8)), finish_once_two_run())

    assert len(await rows.results()) == 6
    assert lines.max_running == 2


async def test_a_repeated_commit_counts_once(make_rows: MakeRows) -> None:
    """After an error that leaves open whether the commit succeeded."""
    rows, lines = await make_rows(20), Lines()
    lines.errors[3] = [DEATH]
    rows.commit_errors = [UpstreamUnavailable(service="database", retry_after=0.01)] * 3
    await run(rows, lines)

    assert len(await rows.results()) == 20
    batch = await rows.batch()
    assert (batch.counts.completed, batch.counts.pending) == (20, 0)
    assert batch.usage == TokenUsage(20, 0, 40, 0)
    assert await rows.deaths() == {3: 1}


async def test_a_rejection_without_retry_after_has_a_default_backoff(make_rows: MakeRows) -> None:
    """A proxy may omit it."""
    rows, lines, concurrency = await make_rows(1), Lines(), RecordingConcurrency()
    lines.errors[1] = [ResourceExhausted.with_reason(reason="RESOURCE_EXHAUSTED", message="x")]
    await run(rows, lines, concurrency)

    assert concurrency.backoffs_s == [1.0]


async def test_a_lost_lease_ends_the_run(make_rows: MakeRows) -> None:
    """No result is stored, and no line continues."""
    rows, lines = await make_rows(500), Lines()
    rows.write_errors = [LeaseLost("lost")]
    with pytest.raises(LeaseLost):
        await run(rows, lines)

    assert not await rows.results()
    assert not lines.running


async def test_lines_run_alone_after_engine_deaths(make_rows: MakeRows) -> None:
    """Only the line that crashes engines fails, after its third death."""
    rows, lines = await make_rows(60), Lines()
    lines.fragile = {3, 4, 5}
    lines.errors[30] = [DEATH] * 9
    await run(rows, lines)
    results, deaths = await rows.results(), await rows.deaths()
    failed = [line for line in results.values() if line.state is LineState.FAILED]

    assert [line.number for line in failed] == [30]
    assert b"engine_crashed" in (failed[0].text or b"")
    assert deaths.pop(30) == 3
    assert max(deaths.values()) <= 2
    assert len(results) == 60


async def test_stored_engine_deaths_count_for_the_next_worker(make_rows: MakeRows) -> None:
    """A line with two stored deaths fails after one more."""
    rows, lines = await make_rows(1, deaths={1: 2}), Lines()
    lines.errors[1] = [DEATH]
    await run(rows, lines)

    assert [line.state for line in (await rows.results()).values()] == [LineState.FAILED]
    assert lines.num_runs == {1: 1}


async def test_a_cancelled_batch_keeps_committed_results(make_rows: MakeRows) -> None:
    """Running lines are cancelled."""
    rows, lines = await make_rows(3), Lines()
    lines.errors[3] = [UpstreamUnavailable(service="inference", retry_after=5.0)]

    async def cancel() -> None:
        await lines.failed.wait()
        rows.cancelled.set()

    await asyncio.gather(run(rows, lines), cancel())

    assert sorted(await rows.results()) == [1, 2]
