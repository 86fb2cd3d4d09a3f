"""Claims of background jobs: the cost of one, by the length of the queue and the projects in it."""

import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from bench.measurement import CORRAL, Measurement, Result, median
from bench.stage import Part, Stage
from control_svc.base.ids import JOB, IdSource
from control_svc.db import migrations
from control_svc.db.engine import Database, open_database
from control_svc.db.transaction import Transaction
from control_svc.jobs.leases import Leases, LeaseTerms
from control_svc.jobs.model import JobPriority, JobState
from control_svc.jobs.queries import JobRow
from tools.postgres import create_database, run_postgres

KINDS: Final = ("batch", "batch-closing", "forget-archive", "response", "run", "vector-file")
QUEUED, QUICK_QUEUED = (1_000, 100_000, 1_000_000), (1_000, 5_000)
PROJECTS: Final = (1, 10, 1_000)
DATABASES: Final = ("SQLite", "PostgreSQL")
MAX_GROWTH: Final = 2.0
CLAIMS, QUICK_CLAIMS = 60, 10
ROWS_AT_ONCE: Final = 10_000


def measure(stage: Stage) -> Iterator[Measurement]:
    """Claim jobs from queues of growing length, on both databases."""
    with run_postgres() as postgres, tempfile.TemporaryDirectory() as folder:
        urls = {"SQLite": None, "PostgreSQL": create_database(postgres.url)}
        for name, url in urls.items():
            for projects in PROJECTS:
                for queued in stage.sizes(QUEUED, QUICK_QUEUED):
                    claims = stage.sizes(CLAIMS, QUICK_CLAIMS)
                    times = stage.runner.run(
                        _claim_times(Path(folder), url, queued, projects, claims)
                    )
                    yield Measurement(
                        _load(name, projects, queued), 0, CORRAL, round(median(times) * 1000, 3)
                    )


def _load(database: str, projects: int, queued: int) -> str:
    return f"{database}, {queued:,} jobs of {projects:,} projects"


async def _claim_times(
    folder: Path, url: str | None, queued: int, projects: int, claims: int
) -> list[float]:
    """Fill an empty queue and claim jobs; return the seconds of each claim."""
    async with open_database(url, folder) as database:
        await migrations.upgrade(database.migrator)
        await _fill(database, queued, projects)
        leases = Leases(
            database.across_projects,
            {},
            LeaseTerms("bench", timedelta(seconds=15), is_exclusive=True),
        )
        times = []
        for number in range(claims):
            started = time.perf_counter()
            job = await leases.claim(KINDS)
            times.append(time.perf_counter() - started)
            if job is not None and number % 2:  # half of the claimed jobs go on running
                await leases.finish(job.claim, _no_work)
        return times


async def _no_work(_tx: Transaction) -> None:
    """The work of a job that has none."""


async def _fill(database: Database, queued: int, projects: int) -> None:
    """Queue jobs. Those of a project are of one kind: a claim reads every pair of kind and project,
    of which queues of all lengths must have the same number.
    """
    ids, now = IdSource(lambda: datetime.now(UTC)), datetime.now(UTC)

    def row(number: int) -> dict[str, object]:
        job_id = ids.new(JOB)
        created_at = now - timedelta(days=1) + timedelta(milliseconds=number)
        return {
            "project": f"project-{number % projects}",
            "id": job_id,
            "kind": KINDS[number % projects % len(KINDS)],
            "subject": job_id,
            "priority": JobPriority.NORMAL,
            "created_at": created_at,
            "state": JobState.QUEUED,
            "run_after": created_at,
            "attempt": 0,
            "num_postponed": 0,
            "engine_deaths": 0,
            "fence": 0,
        }

    async with database.migrator.begin() as connection:
        # not DELETE, after which PostgreSQL would read the index entries of the deleted rows
        await connection.execute(
            sa.text("TRUNCATE jobs") if database.is_shared else sa.delete(JobRow)
        )
    for start in range(0, queued, ROWS_AT_ONCE):
        rows = [row(number) for number in range(start, min(start + ROWS_AT_ONCE, queued))]
        async with database.migrator.begin() as connection:
            await connection.execute(sa.insert(JobRow), rows)
    if database.is_shared:  # as autovacuum does; SQLite has no statistics
        async with database.migrator.begin() as connection:
            await connection.execute(sa.text("ANALYZE jobs"))


def conclude(measurements: Sequence[Measurement]) -> list[Result]:
    """The cost of a claim from each queue, compared with that from the shortest one."""
    times = {measurement.load: measurement.value for measurement in measurements}
    results = []
    for database in DATABASES:
        for projects in PROJECTS:
            loads = [_load(database, projects, queued) for queued in {*QUEUED, *QUICK_QUEUED}]
            shortest = _load(database, projects, min(QUEUED))
            results += [
                Result(
                    load,
                    (times[load] / times[shortest],),
                    MAX_GROWTH,
                    times[load],
                    times[shortest],
                    f"{min(QUEUED):,} jobs",
                    unit="ms",
                    bound="at most",
                )
                for load in sorted(loads, key=len)
                if load in times and load != shortest
            ]
    return results


PART = Part(
    name="queue",
    title="Claims of background jobs",
    text=(
        "The time of one claim, with the commit, from queues of growing length. Half of the claimed"
        " jobs go on running, so that the shares of the projects count. A project has jobs of one"
        " kind: a claim reads every pair of project and kind. A claim from a long queue"
        f" must take at most {MAX_GROWTH:.0f} times as long as one from {min(QUEUED):,} jobs."
    ),
    measure=measure,
    conclude=conclude,
)
