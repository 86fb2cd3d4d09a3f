"""Jobs shared by several processes on one PostgreSQL, and the jobs of a killed process."""

import asyncio
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]
import pytest
import sqlalchemy as sa

from control_svc.app import utc_now
from control_svc.base.ids import IdSource
from control_svc.db.transaction import CrossProjectTransaction, Transaction
from control_svc.jobs.handler import JobContext
from control_svc.jobs.heartbeat import BEATS_PER_LEASE, renew_leases
from control_svc.jobs.model import Claim, Job, JobState
from control_svc.jobs.queries import JobQueueQueries, JobRecordQueries, JobRow, next_flows
from tests.support.control import SetClock
from tests.support.dispatching import NEVER_S, run_dispatcher
from tests.support.job_machine import JobMachine, check_histories, insert_mark, open_emptied
from tests.support.jobs import KIND, LEASE, Handler, Jobs, make_leases, open_test_database
from tests.support.postgres import execute
from tests.support.processes import Program


@contextmanager
def endless_worker(folder: Path, url: str | None, lease_s: float) -> Iterator[Program]:
    """Run a control process whose jobs never end."""
    environment = {
        "CORRAL_CONTROL_LISTEN": "127.0.0.1:0",
        "CORRAL_CONTROL_MANAGEMENT_LISTEN": "none",
        "CORRAL_CONTROL_DATA_DIR": str(folder),
        "CORRAL_CONTROL_JOBS__LEASE_S": str(lease_s),
        **({"CORRAL_CONTROL_DATABASE_URL": url} if url else {}),
    }
    command = [sys.executable, "-m", "tests.support.endless_worker"]
    with Program(command, environment=environment, directory=folder) as program:
        yield program


def test_random_histories_on_postgres(postgres_url: str, tmp_path: Path) -> None:
    """The state machine of the property tests, with real row locks."""
    open_empty = open_emptied(postgres_url, tmp_path, "jobs, requests")
    check_histories(JobMachine, open_empty, max_examples=5)


async def test_a_claim_reads_the_index_of_queued_jobs(postgres_url: str, tmp_path: Path) -> None:
    """However many jobs one project has queued: another index would be read through."""
    async with open_test_database(tmp_path, postgres_url) as database:
        await Jobs(database, IdSource(utc_now)).add()
        query = next_flows([KIND], utc_now()).compile(
            dialect=database.writer.dialect, compile_kwargs={"literal_binds": True}
        )
        async with database.writer.begin() as connection:
            [job] = (await connection.execute(sa.select(JobRow.__table__))).mappings()
            others = [{**job, "id": f"job_{n}", "subject": f"job_{n}"} for n in range(5_000)]
            await connection.execute(sa.insert(JobRow), others)
            await connection.exec_driver_sql("ANALYZE jobs")
            plan = (await connection.exec_driver_sql(f"EXPLAIN ANALYZE {query}")).scalars().all()

    lookups = [line for line in plan if "on jobs jobs_" in line]
    assert len(lookups) == 3, "\n".join(plan)
    assert all("using ix_jobs_queued" in line for line in lookups), "\n".join(plan)


async def test_processes_share_the_jobs(postgres_url: str, tmp_path: Path) -> None:
    """Each job runs once, in one of them, at its first attempt."""

    async def mark(claim: Claim, context: JobContext) -> None:
        await context.finish(lambda tx: insert_mark(tx, claim, "done"))

    ended, handlers = asyncio.Queue[Job](), [Handler(mark) for _ in range(4)]
    async with AsyncExitStack() as stack:
        databases = [
            await stack.enter_async_context(open_test_database(tmp_path, postgres_url))
            for _ in range(4)
        ]
        for number, database in enumerate(databases):
            dispatcher = run_dispatcher(database, handlers[number], str(number), ended=ended)
            await stack.enter_async_context(dispatcher)
        ids = IdSource(utc_now)
        added = await asyncio.gather(
            *(Jobs(databases[number % 4], ids).add() for number in range(100))
        )
        done = [await ended.get() for _ in added]

    claims = [claim.job_id for handler in handlers for claim in handler.claims]
    assert sorted(claims) == sorted(job.id for job in done) == sorted(job.id for job in added)
    assert {(job.state, job.fence) for job in done} == {(JobState.DONE, 1)}


async def test_a_claim_skips_a_locked_job(postgres_url: str, tmp_path: Path) -> None:
    """The next job of the same project is claimed, without a wait."""
    async with open_test_database(tmp_path, postgres_url) as database:
        jobs = Jobs(database, IdSource(utc_now))
        first, second = await jobs.add(), await jobs.add()
        is_locked, is_claimed = asyncio.Event(), asyncio.Event()

        async def hold(tx: CrossProjectTransaction) -> None:
            await JobRecordQueries(tx).lock(first.id)
            is_locked.set()
            await is_claimed.wait()

        holder = asyncio.create_task(database.across_projects.write(hold))
        await is_locked.wait()
        claimed = await make_leases(database.across_projects, "one").claim_next()
        is_claimed.set()
        await holder

    assert claimed.id == second.id


async def test_notifications_reach_another_process(postgres_url: str, tmp_path: Path) -> None:
    """Without polling, it starts jobs that another process adds and ends those that it cancels."""

    async def until_cancelled(_claim: Claim, context: JobContext) -> None:
        await context.cancelled.wait()

    handler = Handler(until_cancelled)
    async with (
        open_test_database(tmp_path, postgres_url) as here,
        open_test_database(tmp_path, postgres_url) as there,
        run_dispatcher(there, handler) as work,
    ):
        jobs = Jobs(here, IdSource(utc_now))
        added = await jobs.add()
        await handler.is_called.wait()
        await jobs.cancel(added)
        ended = await work.ended.get()

    assert ended.state is JobState.DONE


CLOSE_CONNECTIONS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
)


async def test_closed_connections_are_reopened(postgres_url: str, tmp_path: Path) -> None:
    """The dispatcher polls after the reconnect; heartbeats and claims continue."""
    handler = Handler()
    async with (
        open_test_database(tmp_path, postgres_url) as here,
        open_test_database(tmp_path, postgres_url) as there,
        run_dispatcher(there, handler) as work,
    ):
        jobs = Jobs(here, IdSource(utc_now))
        with renew_leases(there, "a", timedelta(seconds=1)):
            before = [await jobs.add(), await work.ended.get()]
            await execute(postgres_url, CLOSE_CONNECTIONS)
            after = [await jobs.add(), await work.ended.get()]

    assert before[0].id == before[1].id
    assert after[0].id == after[1].id


async def test_a_worker_that_always_writes_keeps_its_lease(
    postgres_url: str, tmp_path: Path
) -> None:
    """Every heartbeat finds the row locked by the worker itself, and skips it."""
    clock = SetClock()
    async with open_test_database(tmp_path, postgres_url, clock) as database:
        await Jobs(database, IdSource(clock)).add()
        one, two = (make_leases(database.across_projects, owner) for owner in ("one", "two"))
        job = await one.claim_next()

        async def renew_meanwhile(_: Transaction) -> None:
            await database.across_projects.write(lambda tx: JobQueueQueries(tx).renew("one", LEASE))

        for _ in range(2 * BEATS_PER_LEASE):
            clock.advance(seconds=LEASE.total_seconds() / BEATS_PER_LEASE)
            await one.write(job.claim, renew_meanwhile, progress=False)
            assert await two.take_over_all() == []


async def test_leases_are_renewed_while_the_event_loop_is_blocked(
    postgres_url: str, tmp_path: Path
) -> None:
    """Heartbeats run in a thread of their own."""
    async with open_test_database(tmp_path, postgres_url) as database:
        await Jobs(database, IdSource(utc_now)).add()
        job = await make_leases(database.across_projects, "busy").claim_next()
        assert job.lease_expires_at is not None
        watching = threading.Thread(
            target=lambda: asyncio.run(until_renewed(postgres_url, job.lease_expires_at))
        )
        with renew_leases(database, "busy", timedelta(seconds=2)):
            watching.start()
            watching.join(25)  # blocks the event loop

    assert not watching.is_alive()


async def until_renewed(url: str, lease_expires_at: datetime | None) -> None:
    """Wait until the lease of the only job is renewed."""
    connection = await asyncpg.connect(url)
    try:
        while await connection.fetchval("SELECT lease_expires_at FROM jobs") == lease_expires_at:
            pass
    finally:
        await connection.close()


@pytest.mark.parametrize(
    ("number", "lease_s"),
    [
        pytest.param(signal.SIGKILL, 1, id="killed, when the lease has expired"),
        pytest.param(signal.SIGTERM, 3600, id="stopped, at once"),
    ],
)
async def test_jobs_of_a_process_that_ended_run_in_another(
    postgres_url: str, tmp_path: Path, number: signal.Signals, lease_s: float
) -> None:
    """A stopped process releases its jobs. Neither is a failed attempt of the job."""
    handler = Handler()
    poll_s = 0.1 if number is signal.SIGKILL else NEVER_S
    async with open_test_database(tmp_path, postgres_url) as database:
        with endless_worker(tmp_path, postgres_url, lease_s) as program:
            added = await Jobs(database, IdSource(utc_now)).add()
            await program.line(f"attempt 1 of {added.id}")
            async with run_dispatcher(database, handler, poll_s=poll_s) as work:
                program.signal(number)
                ended = await work.ended.get()

    assert (ended.id, ended.state, ended.attempt) == (added.id, JobState.DONE, 1)


async def test_a_killed_process_on_sqlite_resumes_when_restarted(tmp_path: Path) -> None:
    """No other process can use the database, so it does not wait for the lease."""
    async with open_test_database(tmp_path / "control") as database:
        added = await Jobs(database, IdSource(utc_now)).add()
    for _ in range(2):  # a killed process does not count as a failed attempt
        with endless_worker(tmp_path, None, lease_s=3600) as program:
            await program.line(f"attempt 1 of {added.id}")
            program.signal(signal.SIGKILL)
            program.wait()
