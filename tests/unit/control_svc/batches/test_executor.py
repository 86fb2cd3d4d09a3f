"""Running lines: each until it has ended, kept whatever the database does, suspects alone."""

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
from control_svc.batches.concurrency import AdaptiveConcurrency, Permit
from control_svc.batches.executor import BatchRunner
from control_svc.batches.lines import EndedLine, LineResult, NewLine, PendingLine
from control_svc.batches.model import Batch, LineState, NewBatch, TokenUsage
from control_svc.batches.queries import BatchLineQueries, BatchQueries, Portion
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
    """Makes the rows of a batch."""

    async def __call__(
        self,
        num_lines: int,
        request: bytes = b"",
        deaths: Mapping[int, int] = NO_DEATHS,
        **changes: Any,
    ) -> "Rows":
        """`changes` are those of the batch."""


class Rows:
    """The rows of one batch, and a worker's context that reaches them; commits can be refused."""

    def __init__(self, transactions: Transactions) -> None:
        self.refusals: list[Exception] = []
        self.unreadable: list[Exception] = []
        """Raised by reads."""
        self.lost_answers: list[Exception] = []
        """Raised by commits that went through."""
        self.claim = Claim(
            project=P, job_id="j", fence=1, kind="batch", subject="b", attempt=1, engine_deaths=0
        )
        self.cancelled = asyncio.Event()
        self._transactions = transactions

    async def add(self, batch: Batch, lines: Sequence[NewLine], deaths: Mapping[int, int]) -> None:
        """Store the batch and its lines; `deaths` of engines by a line's number."""

        async def work(tx: Transaction) -> None:
            await BatchQueries(tx).add(P, batch)
            await BatchLineQueries(tx).add(P, batch.id, lines)
            if deaths:
                await BatchLineQueries(tx).set_deaths(P, batch.id, deaths)

        await self._transactions.write(work)

    async def read(self, work: Callable[[Transaction], Awaitable[ResultT]]) -> ResultT:
        """A transaction, if it is not refused."""
        if self.unreadable:
            raise self.unreadable.pop(0)
        return await self._transactions.read(work)

    async def write(
        self, work: Callable[[Transaction], Awaitable[ResultT]], *, progress: bool = False
    ) -> ResultT:
        """A transaction, if it is not refused."""
        if self.refusals:
            raise self.refusals.pop(0)
        result = await self._transactions.write(work)
        if self.lost_answers:
            raise self.lost_answers.pop(0)
        return result

    async def batch(self) -> Batch:
        """The batch as it is stored."""
        return await self._transactions.read(lambda tx: BatchQueries(tx).get(P, BATCH.id))

    async def results(self) -> dict[int, EndedLine]:
        """The lines that have ended, by number."""
        most, found = Portion(1000, 1 << 40), list[EndedLine]()
        for completed in (True, False):
            found += await self._transactions.read(partial(_ended, completed=completed, most=most))
        return {line.number: line for line in found if line.state is not LineState.PENDING}

    async def deaths(self) -> dict[int, int]:
        """How many engines have died while they had a line, where any has."""
        query = select(BatchLineRow.number, BatchLineRow.engine_deaths)

        async def work(tx: Transaction) -> dict[int, int]:
            rows = await tx.session.execute(query.where(BatchLineRow.engine_deaths > 0))
            return {number: deaths for number, deaths in rows}

        return await self._transactions.read(work)


async def _ended(tx: Transaction, *, completed: bool, most: Portion) -> list[EndedLine]:
    return await BatchLineQueries(tx).ended(P, BATCH.id, completed=completed, after=0, most=most)


@pytest.fixture
async def make_rows(tmp_path: Path) -> AsyncIterator[MakeRows]:
    """Makes the rows of a batch whose lines are pending, in a database of its own."""
    async with a_database(tmp_path, None, lambda: NOW) as database:

        async def make(
            num_lines: int,
            request: bytes = b'{"custom_id": "x"}',
            deaths: Mapping[int, int] = NO_DEATHS,
            **changes: Any,
        ) -> Rows:
            rows = Rows(database.transactions)
            lines = [NewLine(number, b"", request) for number in range(1, num_lines + 1)]
            await rows.add(replace(BATCH.begin("m", num_lines, NOW), **changes), lines, deaths)
            return rows

        yield make


class Lines:
    """Carries out lines; some are sent back, and some end well only when nothing runs beside."""

    def __init__(self) -> None:
        self.errors: dict[int, list[DomainError]] = {}
        self.fragile: set[int] = set()
        """Die in company."""
        self.num_runs: Counter[int] = Counter()
        self.running: set[int] = set()
        self.most_running = 0
        self.sent_back = asyncio.Event()
        self.begun = asyncio.Condition()
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def until_run(self, number: int) -> None:
        """Wait until a line has begun."""
        async with self.begun:
            await self.begun.wait_for(lambda: self.num_runs[number] > 0)

    async def run(self, project: str, batch: Batch, line: PendingLine) -> LineResult:
        """An end, or an error."""
        self.num_runs[line.number] += 1
        self.running.add(line.number)
        self.most_running = max(self.most_running, len(self.running))
        async with self.begun:
            self.begun.notify_all()
        try:
            await self.may_end.wait()
            for _ in range(5):
                await asyncio.sleep(0)
                if line.number in self.fragile and self.running != {line.number}:
                    raise DEATH
            if self.errors.get(line.number):
                self.sent_back.set()
                raise self.errors[line.number].pop(0)
        finally:
            self.running.discard(line.number)
        return LineResult(line.number, LineState.COMPLETED, b"{}", TokenUsage(1, 0, 2, 0))


async def run(rows: Rows, lines: Lines, at_once: int = 4) -> None:
    """Run the batch."""
    runner = BatchRunner(cast(Any, rows), lines, AdaptiveConcurrency(at_once))
    batch = await rows.batch()
    async with asyncio.timeout(20):
        await runner.run(batch, cast(JobContext, rows))


async def test_every_line_ends_once_and_is_counted(make_rows: MakeRows) -> None:
    """Counts and usage are the sums."""
    rows, lines = await make_rows(100), Lines()
    await run(rows, lines)

    batch = await rows.batch()
    assert sorted(await rows.results()) == list(range(1, 101))
    assert (batch.counts.completed, batch.counts.pending) == (100, 0)
    assert batch.usage == TokenUsage(100, 0, 200, 0)


async def test_what_the_database_cannot_take_is_kept_until_it_can(make_rows: MakeRows) -> None:
    """No line runs again for it."""
    rows, lines = await make_rows(20), Lines()
    rows.refusals = [UpstreamUnavailable(service="database", retry_after=0.01)] * 3
    await run(rows, lines)

    assert len(await rows.results()) == 20
    assert set(lines.num_runs.values()) == {1}


async def test_a_database_that_cannot_be_read_for_a_while_costs_no_line(
    make_rows: MakeRows,
) -> None:
    """What runs goes on to its end, and what ends is kept here until the database is back."""
    rows, lines = await make_rows(100), Lines()
    away = UpstreamUnavailable(service="database", retry_after=0.01)

    async def go_away() -> None:
        await lines.until_run(40)
        rows.unreadable = [away] * 3
        rows.refusals = [away] * 3

    await asyncio.gather(run(rows, lines), go_away())

    assert len(await rows.results()) == 100
    assert not rows.unreadable
    assert set(lines.num_runs.values()) == {1}


async def test_a_batch_whose_window_has_closed_runs_nothing(make_rows: MakeRows) -> None:
    """Not for a moment."""
    rows, lines = await make_rows(3, expires_at=NOW), Lines()
    await run(rows, lines)

    assert not lines.num_runs


async def test_large_requests_wait_for_room(make_rows: MakeRows) -> None:
    """What is in memory is bounded by bytes; a line that is larger than that runs by itself."""
    large = b'{"custom_id": "x"}' + b" " * (30 << 20)
    rows, lines = await make_rows(6, request=large), Lines()
    lines.may_end.clear()

    async def end_once_two_run() -> None:
        await lines.until_run(2)
        lines.may_end.set()

    await asyncio.gather(run(rows, lines, at_once=8), end_once_two_run())

    assert len(await rows.results()) == 6
    assert lines.most_running == 2


async def test_a_commit_whose_answer_gets_lost_counts_once(make_rows: MakeRows) -> None:
    """Nobody knows whether it went through: it is tried again, and changes nothing more."""
    rows, lines = await make_rows(20), Lines()
    lines.errors[3] = [DEATH]
    rows.lost_answers = [UpstreamUnavailable(service="database", retry_after=0.01)] * 3
    await run(rows, lines)

    assert len(await rows.results()) == 20
    batch = await rows.batch()
    assert (batch.counts.completed, batch.counts.pending) == (20, 0)
    assert batch.usage == TokenUsage(20, 0, 40, 0)
    assert await rows.deaths() == {3: 1}


async def test_who_is_sent_back_without_a_time_waits_anyway(
    make_rows: MakeRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something between us and the service may not say when to come back."""
    rows, lines, waits = await make_rows(1), Lines(), list[float]()
    lines.errors[1] = [ResourceExhausted.with_reason(reason="RESOURCE_EXHAUSTED", message="x")]
    monkeypatch.setattr(Permit, "was_too_much", lambda _, wait_s: waits.append(wait_s))
    await run(rows, lines)

    assert waits == [1.0]


async def test_who_has_lost_the_batch_leaves_it(make_rows: MakeRows) -> None:
    """Nothing is kept, nothing goes on."""
    rows, lines = await make_rows(500), Lines()
    rows.refusals = [LeaseLost("another one has it")]
    with pytest.raises(LeaseLost):
        await run(rows, lines)

    assert not await rows.results()
    assert not lines.running


async def test_suspects_run_with_nothing_beside_them(make_rows: MakeRows) -> None:
    """Innocent ones end well, poison is given up after a third death, nobody else is hurt."""
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


async def test_a_line_of_two_deaths_is_a_suspect_for_the_next_worker_too(
    make_rows: MakeRows,
) -> None:
    """Its row remembers."""
    rows, lines = await make_rows(1, deaths={1: 2}), Lines()
    lines.errors[1] = [DEATH]
    await run(rows, lines)

    assert [line.state for line in (await rows.results()).values()] == [LineState.FAILED]
    assert lines.num_runs == {1: 1}


async def test_a_batch_given_up_keeps_what_has_ended(make_rows: MakeRows) -> None:
    """What runs is ended."""
    rows, lines = await make_rows(3), Lines()
    lines.errors[3] = [UpstreamUnavailable(service="inference", retry_after=5.0)]

    async def give_up() -> None:
        await lines.sent_back.wait()
        rows.cancelled.set()

    await asyncio.gather(run(rows, lines), give_up())

    assert sorted(await rows.results()) == [1, 2]
