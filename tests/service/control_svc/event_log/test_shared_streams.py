"""Streams between processes: followed in one while another writes, and when a writer is killed."""

import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from pathlib import Path

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from control_svc.app import utc_now
from control_svc.base.ids import IdSource
from control_svc.db.engine import Database, open_database
from control_svc.db.notifications import LocalNotifications
from control_svc.event_log.queries import StreamQueries
from tests.support.control import SetClock
from tests.support.examples import examples
from tests.support.job_machine import BRIEF
from tests.support.jobs import PROJECT, Jobs, a_database, no_change
from tests.support.postgres import execute
from tests.support.processes import Program
from tests.support.stream_machine import StreamMachine
from tests.support.streams import (
    StreamProcess,
    claim,
    create_stream,
    make_process,
    numbered_events,
)


@contextmanager
def talking_worker(folder: Path, url: str | None) -> Iterator[Program]:
    """A process that writes the next job's stream until it is killed."""
    of_url = [] if url is None else [url]
    command = [sys.executable, "-m", "tests.support.talking_worker", str(folder), *of_url]
    with Program(command, environment={}, directory=folder) as program:
        yield program


def test_a_random_history_on_postgres(postgres_url: str, tmp_path: Path) -> None:
    """What the property tests do on SQLite, a few times where rows are locked for real."""

    @asynccontextmanager
    async def opened(clock: SetClock) -> AsyncIterator[Database]:
        await execute(postgres_url, "TRUNCATE jobs, requests, streams, stream_chunks")
        async with open_database(postgres_url, tmp_path, clock) as database:
            yield database

    class OnPostgres(StreamMachine):
        pass

    OnPostgres.open_database = opened
    run_state_machine_as_test(OnPostgres, settings=settings(BRIEF, max_examples=examples(5)))


async def test_a_follower_in_another_process_hears_of_each_commit(
    postgres_url: str, tmp_path: Path
) -> None:
    """Nobody polls; the notices of a commit pass between the processes."""
    async with (
        a_database(tmp_path, postgres_url) as one,
        a_database(tmp_path, postgres_url) as two,
        make_process(one).running() as here,
        make_process(two, "b").running() as there,
    ):
        await create_stream(Jobs(one, IdSource(utc_now)), "run_1")
        follower = there.follow("run_1")
        async with here.committer.writer(await claim(here), "run_1") as writer:
            for number in range(20):
                await writer.add(numbered_events(1, number))
                assert await follower.until(number + 1) == numbered_events(number + 1)
            await writer.finish(no_change)
        await follower.task

    assert follower.texts == numbered_events(20)


async def test_a_lost_notice_is_made_up_for_by_a_look(postgres_url: str, tmp_path: Path) -> None:
    """The processes cannot hear each other: the follower looks now and then."""
    async with (
        a_database(tmp_path, postgres_url) as one,
        a_database(tmp_path, postgres_url) as two,
        make_process(one).running() as here,
        make_process(
            two._replace(notifications=LocalNotifications()), "b", poll_s=0.05
        ).running() as there,
    ):
        await create_stream(Jobs(one, IdSource(utc_now)), "run_1")
        follower = there.follow("run_1")
        async with here.committer.writer(await claim(here), "run_1") as writer:
            await writer.add(numbered_events(1))
            await follower.until(1)
            await writer.finish(no_change)
        await follower.task

    assert follower.texts == numbered_events(1)


async def test_a_reader_outlives_the_writer_s_process(postgres_url: str, tmp_path: Path) -> None:
    """One that was there before the kill, and one that comes back after it, see the same bytes."""
    async with a_database(tmp_path, postgres_url) as database:
        await create_stream(Jobs(database, IdSource(utc_now)), "run_1")
    async with (
        a_database(tmp_path, postgres_url, in_an_hour) as database,
        make_process(database).running() as process,
    ):
        with talking_worker(tmp_path, postgres_url) as program:
            attached = process.follow("run_1")
            await attached.until(100)
            program.signal(signal.SIGKILL)
            program.wait()
        seen = len(attached.events)
        await go_on(process, "run_1")
        await attached.task
        resumed = process.follow("run_1", seen // 2)
        await resumed.task

    assert resumed.events == attached.events[seen // 2 + 1 :]
    assert len(attached.events) > seen


async def test_a_stream_on_sqlite_goes_on_after_a_kill(tmp_path: Path) -> None:
    """Nobody else has the file: the next process goes on behind what was committed."""
    async with a_database(tmp_path) as database:
        await create_stream(Jobs(database, IdSource(utc_now)), "run_1")
    with talking_worker(tmp_path, None) as program:
        await program.line("talking")
        program.signal(signal.SIGKILL)
        program.wait()
    async with (
        a_database(tmp_path, clock=in_an_hour) as database,
        make_process(database).running() as process,
    ):
        await go_on(process, "run_1")
        follower = process.follow("run_1")
        await follower.task

    assert len(follower.events) > 50


async def go_on(process: StreamProcess, stream_id: str) -> None:
    """Take a dead worker's job over, check what it has left, and end its stream."""
    (orphan,) = await process.leases.orphans()
    await process.leases.take_over(orphan)
    async with process.committer.writer(await claim(process), stream_id) as writer:
        number = writer.next_number
        tokens = await process.transactions.read(
            lambda each: StreamQueries(each).tokens(PROJECT, stream_id, 0)
        )
        assert tokens == list(range(number))
        await writer.add([b"%d" % number], [number])
        await writer.finish(no_change)


def in_an_hour() -> datetime:
    """When the leases of today's dead have run out."""
    return utc_now() + timedelta(hours=1)
