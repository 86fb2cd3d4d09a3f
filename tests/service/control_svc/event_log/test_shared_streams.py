"""Streams that one process writes and another follows, and streams of a killed writer."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

from control_svc.app import utc_now
from control_svc.base.ids import IdSource
from control_svc.db.notifications import LocalNotifications
from control_svc.event_log.queries import StreamQueries
from tests.support.job_machine import check_histories, open_emptied
from tests.support.jobs import PROJECT, Jobs, finish_stream, open_test_database
from tests.support.processes import Program
from tests.support.stream_machine import StreamMachine
from tests.support.streams import (
    StreamProcess,
    claim,
    create_stream,
    make_process,
    numbered_events,
    read_stored_events,
)


@contextmanager
def talking_worker(folder: Path, url: str | None) -> Iterator[Program]:
    """Run a process that writes to the next job's stream until it is killed."""
    arguments = [str(folder)] if url is None else [str(folder), url]
    command = [sys.executable, "-m", "tests.support.talking_worker", *arguments]
    with Program(command, environment={}, directory=folder) as program:
        yield program


def test_random_histories_on_postgres(postgres_url: str, tmp_path: Path) -> None:
    """The state machine of the property tests, with real row locks."""
    open_empty = open_emptied(postgres_url, tmp_path, "jobs, requests, streams, stream_chunks")
    check_histories(StreamMachine, open_empty, max_examples=3)


async def test_notifications_wake_followers_in_another_process(
    postgres_url: str, tmp_path: Path
) -> None:
    """Each commit is read without polling."""
    async with (
        open_test_database(tmp_path, postgres_url) as one,
        open_test_database(tmp_path, postgres_url) as two,
        make_process(one).run() as here,
        make_process(two, "b").run() as there,
    ):
        await create_stream(Jobs(one, IdSource(utc_now)), "run_1")
        follower = there.follow("run_1")
        async with here.committer.writer(await claim(here), "run_1") as writer:
            for number in range(20):
                await writer.add(numbered_events(1, number))
                assert await follower.wait_for(number + 1) == numbered_events(number + 1)
            await writer.conclude(finish_stream)
        await follower.task

    assert follower.texts == numbered_events(20)


async def test_polling_replaces_lost_notifications(postgres_url: str, tmp_path: Path) -> None:
    """Without notifications between the processes, the follower polls."""
    async with (
        open_test_database(tmp_path, postgres_url) as one,
        open_test_database(tmp_path, postgres_url) as two,
        make_process(one).run() as here,
        make_process(
            two._replace(notifications=LocalNotifications()), "b", poll_s=0.05
        ).run() as there,
    ):
        await create_stream(Jobs(one, IdSource(utc_now)), "run_1")
        follower = there.follow("run_1")
        async with here.committer.writer(await claim(here), "run_1") as writer:
            await writer.add(numbered_events(1))
            await follower.wait_for(1)
            await writer.conclude(finish_stream)
        await follower.task

    assert follower.texts == numbered_events(1)


async def test_followers_continue_after_the_writer_is_killed(
    postgres_url: str, tmp_path: Path
) -> None:
    """One that was attached before the kill and one that resumes after it read the same bytes."""
    async with open_test_database(tmp_path, postgres_url) as database:
        await create_stream(Jobs(database, IdSource(utc_now)), "run_1")
    async with (
        open_test_database(tmp_path, postgres_url, one_hour_later) as database,
        make_process(database).run() as process,
    ):
        with talking_worker(tmp_path, postgres_url) as program:
            attached = process.follow("run_1")
            await attached.wait_for(100)
            program.signal(signal.SIGKILL)
            program.wait()
        num_before = len(attached.events)
        await take_over_and_finish(process, "run_1")
        await attached.task
        resumed = process.follow("run_1", num_before // 2)
        await resumed.task

    assert resumed.events == attached.events[num_before // 2 + 1 :]
    assert len(attached.events) > num_before


async def test_a_stream_on_sqlite_continues_after_a_kill(tmp_path: Path) -> None:
    """The next process continues after the committed events."""
    async with open_test_database(tmp_path) as database:
        await create_stream(Jobs(database, IdSource(utc_now)), "run_1")
    with talking_worker(tmp_path, None) as program:
        await program.line("talking")
        program.signal(signal.SIGKILL)
        program.wait()
    async with (
        open_test_database(tmp_path, clock=one_hour_later) as database,
        make_process(database).run() as process,
    ):
        await take_over_and_finish(process, "run_1")
        follower = process.follow("run_1")
        await follower.task

    assert len(follower.events) > 50


async def take_over_and_finish(process: StreamProcess, stream_id: str) -> None:
    """Take over a dead worker's job, check the stored tokens, and finish the stream."""
    (_,) = await process.leases.take_over_all()
    async with process.committer.writer(await claim(process), stream_id) as writer:
        read = process.transactions.read
        number = len(await read(lambda tx: read_stored_events(tx, stream_id)))
        tokens = await read(lambda tx: StreamQueries(tx.of(PROJECT)).tokens(stream_id, 0))
        assert tokens == list(range(number))
        await writer.add([b"%d" % number], [number])
        await writer.conclude(finish_stream)


def one_hour_later() -> datetime:
    """A clock by which the leases of killed processes have expired."""
    return utc_now() + timedelta(hours=1)
