"""Running lines: each until it has ended, kept whatever the database does, suspects alone."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from control_svc.domain.batch_ports import Portion
from control_svc.domain.batch_results import LineResult, PendingLine
from control_svc.domain.batches import Batch, LineState, NewBatch, TokenUsage
from control_svc.domain.jobs import Claim, LeaseLost
from control_svc.usecases.batch_places import Place, Places
from control_svc.usecases.batch_running import BatchRunner
from control_svc.usecases.working import JobContext
from svc_kit.errors import DomainError, EngineRestarting, ResourceExhausted, UpstreamUnavailable

NOW = datetime(2026, 11, 22, tzinfo=UTC)
DEATH = EngineRestarting(phase="running", retry_after=0.0)
BATCH = NewBatch(input_file_id="f", endpoint="/v1/embeddings").make("batch_1", NOW)


class Rows:
    """The rows of one batch, and a worker's context that reaches them; commits can be refused."""

    def __init__(self, num_lines: int) -> None:
        self.batch = BATCH.begin("m", num_lines, NOW)
        self.lines = [
            PendingLine(number, b"", b'{"custom_id": "x"}') for number in range(1, num_lines + 1)
        ]
        self.results: list[LineResult] = []
        self.deaths: dict[int, int] = {}
        self.refusals: list[Exception] = []
        self.unreadable: list[Exception] = []
        """Raised by reads."""
        self.lost_answers: list[Exception] = []
        """Raised by commits that went through."""
        self.claim = Claim(
            project="p", job_id="j", fence=1, kind="batch", subject="b", attempt=1, engine_deaths=0
        )
        self.cancelled = asyncio.Event()
        self.batches = self
        self.batch_lines = self

    async def read(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        """A transaction, if it is not refused."""
        if self.unreadable:
            raise self.unreadable.pop(0)
        return await work(self)

    async def write(self, work: Callable[[Any], Awaitable[Any]], *, progress: bool = False) -> Any:
        """A transaction, if it is not refused."""
        if self.refusals:
            raise self.refusals.pop(0)
        result = await work(self)
        if self.lost_answers:
            raise self.lost_answers.pop(0)
        return result

    async def now(self) -> datetime:
        """The window is open."""
        return NOW

    async def pending(
        self, _project: str, _batch_id: str, after: PendingLine | None, most: Portion
    ) -> list[PendingLine]:
        """The next lines."""
        rest = self.lines[after.number if after else 0 :]
        return rest[: most.of([len(line.request) for line in rest])]

    async def end(self, _project: str, _batch_id: str, results: Sequence[LineResult]) -> None:
        """Keep ends."""
        self.results += results

    async def still_pending(
        self, _project: str, _batch_id: str, numbers: Sequence[int]
    ) -> set[int]:
        """Those without an end."""
        return set(numbers) - {result.number for result in self.results}

    async def set_deaths(self, _project: str, _batch_id: str, deaths: Mapping[int, int]) -> None:
        """Keep deaths."""
        self.deaths.update(deaths)

    async def lock(self, _project: str, _batch_id: str) -> Batch:
        """The batch."""
        return self.batch

    async def update(self, _project: str, batch: Batch) -> None:
        """Keep it."""
        self.batch = batch

    def announce(self, _topic: str) -> None:
        """Nobody listens."""


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
    runner = BatchRunner(cast(Any, rows), lines, Places(at_once))
    async with asyncio.timeout(10):
        await runner.run(rows.batch, cast(JobContext, rows))


async def test_every_line_ends_once_and_is_counted() -> None:
    """Counts and usage are the sums."""
    rows, lines = Rows(100), Lines()
    await run(rows, lines)

    assert sorted(result.number for result in rows.results) == list(range(1, 101))
    assert (rows.batch.counts.completed, rows.batch.counts.pending) == (100, 0)
    assert rows.batch.usage == TokenUsage(100, 0, 200, 0)


async def test_what_the_database_cannot_take_is_kept_until_it_can() -> None:
    """No line runs again for it."""
    rows, lines = Rows(20), Lines()
    rows.refusals = [UpstreamUnavailable(service="database", retry_after=0.01)] * 3
    await run(rows, lines)

    assert len(rows.results) == 20
    assert set(lines.num_runs.values()) == {1}


async def test_a_database_that_cannot_be_read_for_a_while_costs_no_line() -> None:
    """What runs goes on to its end, and what ends is kept here until the database is back."""
    rows, lines = Rows(100), Lines()
    away = UpstreamUnavailable(service="database", retry_after=0.01)

    async def go_away() -> None:
        await lines.until_run(40)
        rows.unreadable = [away] * 3
        rows.refusals = [away] * 3

    await asyncio.gather(run(rows, lines), go_away())

    assert len(rows.results) == 100
    assert not rows.unreadable
    assert set(lines.num_runs.values()) == {1}


async def test_a_batch_whose_window_has_closed_runs_nothing() -> None:
    """Not for a moment."""
    rows, lines = Rows(3), Lines()
    rows.batch = replace(rows.batch, expires_at=NOW)
    await run(rows, lines)

    assert not lines.num_runs


async def test_large_requests_wait_for_room() -> None:
    """What is in memory is bounded by bytes; a line that is larger than that runs by itself."""
    rows, lines = Rows(20), Lines()
    padding = b" " * (30 << 20)
    large = b'{"custom_id": "x"}' + padding
    rows.lines = [replace(line, request=large) for line in rows.lines]
    await run(rows, lines, at_once=8)

    assert len(rows.results) == 20
    assert lines.most_running == 2


async def test_a_commit_whose_answer_gets_lost_counts_once() -> None:
    """Nobody knows whether it went through: it is tried again, and changes nothing more."""
    rows, lines = Rows(20), Lines()
    lines.errors[3] = [DEATH]
    rows.lost_answers = [UpstreamUnavailable(service="database", retry_after=0.01)] * 3
    await run(rows, lines)

    assert len(rows.results) == 20
    assert (rows.batch.counts.completed, rows.batch.counts.pending) == (20, 0)
    assert rows.batch.usage == TokenUsage(20, 0, 40, 0)
    assert rows.deaths == {3: 1}


async def test_who_is_sent_back_without_a_time_waits_anyway(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Something between us and the service may not say when to come back."""
    rows, lines, waits = Rows(1), Lines(), list[float]()
    lines.errors[1] = [ResourceExhausted.foreign(reason="RESOURCE_EXHAUSTED", message="x")]
    monkeypatch.setattr(Place, "was_too_much", lambda _, wait_s: waits.append(wait_s))
    await run(rows, lines)

    assert waits == [1.0]


async def test_who_has_lost_the_batch_leaves_it() -> None:
    """Nothing is kept, nothing goes on."""
    rows, lines = Rows(500), Lines()
    rows.refusals = [LeaseLost("another one has it")]
    with pytest.raises(LeaseLost):
        await run(rows, lines)

    assert not rows.results
    assert not lines.running


async def test_suspects_run_with_nothing_beside_them() -> None:
    """Innocent ones end well, poison is given up after a third death, nobody else is hurt."""
    rows, lines = Rows(60), Lines()
    lines.fragile = {3, 4, 5}
    lines.errors[30] = [DEATH] * 9
    await run(rows, lines)
    failed = {result.number: result for result in rows.results if result.state is LineState.FAILED}

    assert list(failed) == [30]
    assert b"engine_crashed" in failed[30].text
    assert rows.deaths.pop(30) == 3
    assert max(rows.deaths.values()) <= 2
    assert len(rows.results) == 60


async def test_a_line_of_two_deaths_is_a_suspect_for_the_next_worker_too() -> None:
    """Its row remembers."""
    rows, lines = Rows(1), Lines()
    rows.lines[0] = PendingLine(1, b"", b'{"custom_id": "x"}', engine_deaths=2)
    lines.errors[1] = [DEATH]
    await run(rows, lines)

    assert [result.state for result in rows.results] == [LineState.FAILED]
    assert lines.num_runs == {1: 1}


async def test_a_batch_given_up_keeps_what_has_ended() -> None:
    """What runs is ended."""
    rows, lines = Rows(3), Lines()
    lines.errors[3] = [UpstreamUnavailable(service="inference", retry_after=5.0)]

    async def give_up() -> None:
        await lines.sent_back.wait()
        rows.cancelled.set()

    await asyncio.gather(run(rows, lines), give_up())

    assert sorted(result.number for result in rows.results) == [1, 2]
