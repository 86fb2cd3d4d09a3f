"""Jobs between processes: several on one PostgreSQL, and what becomes of the work of a dead one."""

import asyncio
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from control_svc.app import utc_now
from control_svc.base.ids import IdSource
from control_svc.db.engine import Database, open_database
from control_svc.db.transaction import Transaction
from control_svc.jobs.handler import JobContext
from control_svc.jobs.heartbeat import BEATS_PER_LEASE, renew_leases
from control_svc.jobs.model import Claim, Job, JobState
from control_svc.jobs.queries import JobQueueQueries
from tests.support.control import SetClock
from tests.support.dispatching import run_dispatcher
from tests.support.examples import examples
from tests.support.job_machine import BRIEF, JobMachine, leave_mark
from tests.support.jobs import KIND, LEASE, Handler, Jobs, a_database, leases_of
from tests.support.postgres import execute
from tests.support.processes import Program


@contextmanager
def endless_worker(folder: Path, url: str | None, lease_s: float) -> Iterator[Program]:
    """A control process that works on whatever it finds, and never ends it."""
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


def test_a_random_history_on_postgres(postgres_url: str, tmp_path: Path) -> None:
    """What the property tests do on SQLite, a few times where rows are locked for real."""

    @asynccontextmanager
    async def opened(clock: SetClock) -> AsyncIterator[Database]:
        await execute(postgres_url, "TRUNCATE jobs, requests")
        async with open_database(postgres_url, tmp_path, clock) as database:
            yield database

    class OnPostgres(JobMachine):
        pass

    OnPostgres.opened = opened
    run_state_machine_as_test(OnPostgres, settings=settings(BRIEF, max_examples=examples(8)))


async def test_several_processes_share_the_work_of_a_postgres(
    postgres_url: str, tmp_path: Path
) -> None:
    """Each job is done once, by one of them, at its first attempt."""

    async def mark(claim: Claim, context: JobContext) -> None:
        await context.finish(lambda each: leave_mark(each, claim, "done"))

    ends, handlers = asyncio.Queue[Job](), [Handler(mark) for _ in range(4)]
    async with AsyncExitStack() as stack:
        opened = [a_database(tmp_path, postgres_url) for _ in range(4)]
        databases = [await stack.enter_async_context(each) for each in opened]
        for number, database in enumerate(databases):
            at_work = run_dispatcher(database, handlers[number], str(number), ends=ends)
            await stack.enter_async_context(at_work)
        ids = IdSource(utc_now)
        added = await asyncio.gather(
            *(Jobs(databases[number % 4], ids).add() for number in range(100))
        )
        ended = [await ends.get() for _ in added]

    claims = [claim.job_id for handler in handlers for claim in handler.claims]
    assert sorted(claims) == sorted(job.id for job in ended) == sorted(job.id for job in added)
    assert {(job.state, job.fence) for job in ended} == {(JobState.DONE, 1)}


async def test_a_notice_reaches_another_process(postgres_url: str, tmp_path: Path) -> None:
    """Nobody polls: the one starts what the other adds, and ends what the other cancels."""

    async def until_cancelled(_claim: Claim, context: JobContext) -> None:
        await context.cancelled.wait()

    handler = Handler(until_cancelled)
    async with (
        a_database(tmp_path, postgres_url) as here,
        a_database(tmp_path, postgres_url) as there,
        run_dispatcher(there, handler) as work,
    ):
        jobs = Jobs(here, IdSource(utc_now))
        added = await jobs.add()
        await handler.news.wait()
        await jobs.cancel(added)
        ended = await work.ends.get()

    assert ended.state is JobState.DONE


CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"


async def test_cut_connections_come_back(postgres_url: str, tmp_path: Path) -> None:
    """What was announced meanwhile is looked for at once; heartbeats and claims go on."""
    handler = Handler()
    async with (
        a_database(tmp_path, postgres_url) as here,
        a_database(tmp_path, postgres_url) as there,
        run_dispatcher(there, handler) as work,
    ):
        jobs = Jobs(here, IdSource(utc_now))
        with renew_leases(there, "a", timedelta(seconds=1)):
            before = [await jobs.add(), await work.ends.get()]
            await execute(postgres_url, CUT)
            after = [await jobs.add(), await work.ends.get()]

    assert before[0].id == before[1].id
    assert after[0].id == after[1].id


async def test_a_worker_that_always_writes_keeps_its_lease(
    postgres_url: str, tmp_path: Path
) -> None:
    """Every heartbeat finds the row locked by the work itself, and leaves it."""
    clock = SetClock()
    async with a_database(tmp_path, postgres_url, clock) as database:
        await Jobs(database, IdSource(clock)).add()
        one, two = leases_of(database, "one"), leases_of(database, "two")
        job = await one.claim([KIND])
        assert job is not None

        async def beat_meanwhile(_: Transaction) -> None:
            await database.transactions.write(
                lambda each: JobQueueQueries(each).renew("one", LEASE)
            )

        for _ in range(2 * BEATS_PER_LEASE):
            clock.advance(seconds=LEASE.total_seconds() / BEATS_PER_LEASE)
            await one.write(job.claim, beat_meanwhile, progress=False)
            assert await two.take_over_all() == []


async def test_a_busy_event_loop_keeps_its_leases(postgres_url: str, tmp_path: Path) -> None:
    """Heartbeats have a thread of their own: the loop stands still, and the lease is renewed."""
    async with a_database(tmp_path, postgres_url) as database:
        await Jobs(database, IdSource(utc_now)).add()
        job = await leases_of(database, "busy").claim([KIND])
        assert job is not None
        assert job.lease_expires_at is not None
        watching = threading.Thread(
            target=lambda: asyncio.run(until_renewed(postgres_url, job.lease_expires_at))
        )
        with renew_leases(database, "busy", timedelta(seconds=2)):
            watching.start()
            watching.join(25)  # blocks the event loop

    assert not watching.is_alive()


async def until_renewed(url: str, lease_expires_at: datetime | None) -> None:
    """Until the only job's lease runs for longer."""
    connection = await asyncpg.connect(url)
    try:
        while await connection.fetchval("SELECT lease_expires_at FROM jobs") == lease_expires_at:
            pass
    finally:
        await connection.close()


async def test_a_killed_process_s_work_is_taken_over(postgres_url: str, tmp_path: Path) -> None:
    """After the lease, as a second attempt."""
    handler = Handler()
    async with a_database(tmp_path, postgres_url) as database:
        with endless_worker(tmp_path, postgres_url, lease_s=1) as program:
            added = await Jobs(database, IdSource(utc_now)).add()
            await program.line(f"attempt 1 of {added.id}")
            async with run_dispatcher(database, handler, poll_s=0.1) as work:
                program.signal(signal.SIGKILL)
                ended = await work.ends.get()

    assert (ended.id, ended.state, ended.attempt) == (added.id, JobState.DONE, 2)


async def test_a_stopped_process_gives_its_work_back(postgres_url: str, tmp_path: Path) -> None:
    """Another one goes on at once, whatever the lease, and nothing counts against the job."""
    handler = Handler()
    async with a_database(tmp_path, postgres_url) as database:
        with endless_worker(tmp_path, postgres_url, lease_s=3600) as program:
            added = await Jobs(database, IdSource(utc_now)).add()
            await program.line(f"attempt 1 of {added.id}")
            async with run_dispatcher(database, handler) as work:
                program.signal(signal.SIGTERM)
                ended = await work.ends.get()

    assert (ended.id, ended.state, ended.attempt) == (added.id, JobState.DONE, 1)


async def test_a_killed_process_on_sqlite_goes_on_at_its_start(tmp_path: Path) -> None:
    """Nobody else can have the database, so no lease is waited for."""
    async with a_database(tmp_path / "control") as database:
        added = await Jobs(database, IdSource(utc_now)).add()
    for attempt in (1, 2):
        with endless_worker(tmp_path, None, lease_s=3600) as program:
            await program.line(f"attempt {attempt} of {added.id}")
            program.signal(signal.SIGKILL)
            program.wait()
