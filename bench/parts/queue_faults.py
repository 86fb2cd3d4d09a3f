"""Background jobs while workers and PostgreSQL fail: the five scenarios of a public benchmark."""

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import asyncpg  # type: ignore[import-untyped]

from bench.job_worker import KIND
from bench.measurement import CORRAL, Measurement, Result
from bench.paths import REPOSITORY
from bench.stage import Part, Stage
from control_svc.base.ids import JOB, IdSource
from control_svc.db import migrations
from control_svc.db.engine import Database, open_database
from control_svc.db.transaction import Transaction
from control_svc.jobs.model import NewJob
from control_svc.jobs.queries import JobQueries
from svc_kit.errors import Unavailable
from tools.postgres import Postgres, create_database, execute, fetch_value, run_postgres

SOURCE: Final = "https://github.com/hardbyte/postgresql-job-queue-benchmarking"
PROJECTS: Final = 10
MAX_CONNECTIONS: Final = 400
JOBS_PER_S: Final = 5
BATCH_S: Final = 0.1
MIN_RECOVERY: Final = 0.9
IDLE_CONNECTIONS: Final = 300
BACKEND_KILLS_PER_S: Final = 2
KILL_EVERY_S: Final = 20.0
PATIENCE_S: Final = 30.0
"""Longer than a lease, after which the jobs of a process that was killed begin again."""
_KILL_BACKENDS: Final = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
    " AND pid <> pg_backend_pid() AND state IN ('active', 'idle in transaction')"
)


@dataclass
class Fleet:
    """Workers on a database of their own."""

    url: str
    folder: Path
    postgres: Postgres
    workers: dict[int, subprocess.Popen[str]] = field(default_factory=dict)

    def start(self, number: int) -> None:
        """Start a worker; return when it takes jobs."""
        command = [sys.executable, "-m", "bench.job_worker", self.url, str(self.folder)]
        worker = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
        assert worker.stdout is not None
        worker.stdout.readline()
        self.workers[number] = worker

    def kill(self, number: int) -> None:
        worker = self.workers.pop(number)
        worker.kill()
        worker.communicate()

    async def restart(self, number: int, after_s: float) -> None:
        self.kill(number)
        await asyncio.sleep(after_s)
        await asyncio.to_thread(self.start, number)


Fault = Callable[[Fleet, float], Awaitable[None]]


async def restart_postgres(fleet: Fleet, seconds: float) -> None:
    """It is away for half of the time."""
    await asyncio.to_thread(fleet.postgres.stop)
    await asyncio.sleep(seconds / 2)
    await asyncio.to_thread(fleet.postgres.start)
    await asyncio.sleep(seconds / 2)


async def kill_backends(fleet: Fleet, seconds: float) -> None:
    """End all connections that do something, twice a second."""
    connection = await asyncpg.connect(fleet.url)
    for _ in range(int(seconds * BACKEND_KILLS_PER_S)):
        await connection.execute(_KILL_BACKENDS)
        await asyncio.sleep(1 / BACKEND_KILLS_PER_S)
    await connection.close()


async def exhaust_connections(fleet: Fleet, seconds: float) -> None:
    """Hold idle ones."""
    held = [await asyncpg.connect(fleet.url) for _ in range(IDLE_CONNECTIONS)]
    await asyncio.sleep(seconds)
    for connection in held:
        await connection.close()


async def kill_a_worker(fleet: Fleet, seconds: float) -> None:
    """It is started again after half of the time."""
    await fleet.restart(0, seconds / 2)
    await asyncio.sleep(seconds / 2)


async def kill_a_worker_repeatedly(fleet: Fleet, seconds: float) -> None:
    """It is started again at once."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        await fleet.restart(0, 0)
        await asyncio.sleep(KILL_EVERY_S)


@dataclass(frozen=True)
class Scenario:
    """How many workers there are, and what happens for how long. `awa` and `river` are the rates
    of theirs after the fault, of those before."""

    name: str
    workers: int
    fault: Fault
    seconds: float
    awa: float
    river: float


SCENARIOS: Final = (
    Scenario("PostgreSQL restarts", 1, restart_postgres, 60, 1.00, 1.01),
    Scenario("connections are ended", 1, kill_backends, 60, 1.00, 1.01),
    Scenario("300 idle connections", 1, exhaust_connections, 60, 1.00, 1.00),
    Scenario("a worker is killed", 2, kill_a_worker, 120, 0.98, 1.21),
    Scenario("a worker is killed every 20 s", 2, kill_a_worker_repeatedly, 120, 0.99, 1.09),
)
WARM_UP_S, CLEAN_S = 30.0, 60.0


def measure(stage: Stage) -> Iterator[Measurement]:
    """Run each scenario on an empty database."""
    scale = stage.sizes(1.0, 0.1)
    with run_postgres() as postgres:
        server = postgres.url.replace("NAME", "postgres")
        limit = f"ALTER SYSTEM SET max_connections = {MAX_CONNECTIONS}"
        stage.runner.run(execute(server, limit))
        postgres.stop()
        postgres.start()
        for scenario in SCENARIOS:
            with tempfile.TemporaryDirectory() as folder:
                fleet = Fleet(create_database(postgres.url), Path(folder), postgres)
                yield stage.runner.run(_run(fleet, scenario, scale))


async def _run(fleet: Fleet, scenario: Scenario, scale: float) -> Measurement:
    async with open_database(fleet.url, fleet.folder) as database:
        await migrations.upgrade(database.migrator)
        with _running(fleet, scenario.workers):
            async with _producing(database) as queued:
                await asyncio.sleep(WARM_UP_S * scale)
                before = await _ended_per_s(fleet.url, CLEAN_S * scale)
                await scenario.fault(fleet, scenario.seconds * scale)
                after = await _ended_per_s(fleet.url, CLEAN_S * scale)
            ended = await _drain(fleet.url, queued)
        repeated = await fetch_value(fleet.url, "SELECT count(*) FROM jobs WHERE fence > 1")
    figures = {"before": before, "queued": len(queued), "ended": ended, "repeated": repeated}
    return Measurement(scenario.name, 0, CORRAL, after, figures)


@contextmanager
def _running(fleet: Fleet, workers: int) -> Iterator[None]:
    for number in range(workers):
        fleet.start(number)
    try:
        yield
    finally:
        for number in list(fleet.workers):
            fleet.kill(number)


@asynccontextmanager
async def _producing(database: Database) -> AsyncIterator[list[str]]:
    """Queue jobs at a fixed rate of the clock; yield the ids of those that were acknowledged."""
    acknowledged: list[str] = []
    task = asyncio.create_task(_produce(database, acknowledged))
    try:
        yield acknowledged
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _produce(database: Database, acknowledged: list[str]) -> None:
    ids, started, offered = IdSource(lambda: datetime.now(UTC)), time.monotonic(), 0
    while True:
        await asyncio.sleep(BATCH_S)
        due = int((time.monotonic() - started) * JOBS_PER_S) - offered
        new_ids = [ids.new(JOB) for _ in range(due)]
        new = [NewJob(id=job_id, kind=KIND, subject=job_id) for job_id in new_ids]
        project = database.transactions.of(f"project-{offered % PROJECTS}")
        offered += due
        with suppress(Unavailable):  # of these nobody knows whether they are queued
            await project.write(partial(_add, new))
            acknowledged += new_ids


async def _add(new: Sequence[NewJob], tx: Transaction) -> None:
    await JobQueries(tx).add_all(new)


async def _ended_per_s(url: str, seconds: float) -> float:
    """Jobs that end in the next seconds, by the second."""
    before = await _num_ended(url)
    started = time.monotonic()
    await asyncio.sleep(seconds)
    return round((await _num_ended(url) - before) / (time.monotonic() - started), 1)


async def _num_ended(url: str) -> int:
    count = await fetch_value(url, "SELECT count(*) FROM jobs WHERE state = 'done'")
    assert isinstance(count, int)
    return count


async def _drain(url: str, queued: Sequence[str]) -> int:
    """Wait until all jobs have ended, or none does for a while; return how many of those that were
    queued have ended."""
    num_ended, ended_at = -1, time.monotonic()
    while time.monotonic() < ended_at + PATIENCE_S:
        if not await fetch_value(url, "SELECT count(*) FROM jobs WHERE state <> 'done'"):
            break
        if (found := await _num_ended(url)) != num_ended:
            num_ended, ended_at = found, time.monotonic()
        await asyncio.sleep(1)
    connection = await asyncpg.connect(url)
    rows = await connection.fetch("SELECT id FROM jobs WHERE state = 'done'")
    await connection.close()
    return len({row["id"] for row in rows} & {*queued})


def conclude(measurements: Sequence[Measurement]) -> list[Result]:
    """The rate after each fault beside the one before, and the jobs that ended beside those that
    were acknowledged."""
    results = []
    for each in measurements:
        before, queued, ended = (float(each.figures[k]) for k in ("before", "queued", "ended"))
        rate = each.value / before
        results += [
            Result(each.load, (rate,), MIN_RECOVERY, each.value, before, "before", unit="jobs/s"),
            Result(
                f"{each.load}: ended", (ended / queued,), 1.0, ended, queued, "queued", unit="jobs"
            ),
        ]
    return results


def _others() -> str:
    return "; ".join(f"{each.name}: {each.awa:.2f} and {each.river:.2f}" for each in SCENARIOS)


PART = Part(
    name="queue-faults",
    title="Background jobs under faults",
    text=(
        f"The five chaos scenarios of [a public benchmark of queues on PostgreSQL]({SOURCE}), of"
        f" the same lengths, on our jobs: {JOBS_PER_S} jobs a second of {PROJECTS} projects, each"
        " of a millisecond, on workers with the dispatcher, leases and heartbeats of the control"
        " service. The rate of jobs that end in the minute after the fault is compared with that"
        " of the minute before it, and the jobs that ended with those that were acknowledged when"
        " they were queued: once all have ended, or none has for half a minute, since those of a"
        " worker that was killed begin again when its lease ends, after 15 s. Of awa"
        " 0.6.0-alpha.9 and River 0.35.1, which survived all five (five of the eight systems"
        " there did not), that benchmark reports on 2026-05-09, on four cores, with PostgreSQL 18"
        " and 600 jobs a second, of which awa did 600 and River 214 to 316 before the fault,"
        " these ratios of rates:"
        f" {_others()}. It does not report how many jobs were lost. Rates of jobs are not"
        " compared: theirs do nothing else, ours are claimed one by one, in turns of projects,"
        " for work that takes seconds."
    ),
    measure=measure,
    conclude=conclude,
)
