"""Event streams on both databases: group commits, followers, changes of rows."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from control_svc.app import utc_now
from control_svc.base.ids import RUN, IdSource, creation_key
from control_svc.db.engine import Database
from control_svc.db.transaction import CrossProjectTransaction, Transaction
from control_svc.event_log.model import (
    MAX_CHUNK_EVENTS,
    FinalEvents,
    Held,
    StreamClosed,
    StreamState,
)
from control_svc.event_log.queries import StreamQueries, delete_streams_ended_before
from control_svc.event_log.tail_cache import TAIL_BYTES
from control_svc.event_log.writer import BUFFER_BYTES, StreamWriter
from control_svc.jobs.model import AttemptResult, JobState, LeaseLost, Outcome
from svc_kit.errors import BatchNotFound, InvalidField, OutOfRange, StreamExpired
from tests.support.job_machine import insert_mark
from tests.support.jobs import PROJECT, Fault, Jobs, finish_stream, no_change, open_test_database
from tests.support.streams import (
    StreamProcess,
    claim,
    create_stream,
    make_process,
    numbered_events,
    read_stored_events,
)

MANY = 100


@pytest.fixture
async def database(tmp_path: Path, database_url: str | None) -> AsyncIterator[Database]:
    """A database of each kind, with the real clock."""
    async with open_test_database(tmp_path, database_url) as database:
        yield database


@pytest.fixture
def jobs(database: Database) -> Jobs:
    return Jobs(database, IdSource(utc_now))


@pytest.fixture
async def here(database: Database) -> AsyncIterator[StreamProcess]:
    async with make_process(database).run() as process:
        yield process


@pytest.fixture
async def elsewhere(database: Database) -> AsyncIterator[StreamProcess]:
    async with make_process(database, "b").run() as process:
        yield process


async def test_a_follower_reads_until_the_end(here: StreamProcess, jobs: Jobs) -> None:
    """In order, with numbers from 0, from any number on."""
    await create_stream(jobs, "run_1", b"created")
    follower = here.follow("run_1")
    async with here.committer.writer(await claim(here), "run_1") as writer:
        await writer.add([b"a", b"b"], [1, 2], turn=1)
        assert await follower.wait_for(3) == [b"created", b"a", b"b"]
        await writer.add([b"c"], [3], turn=1)
        await writer.conclude(finish_stream)
    await follower.task

    expected = [(0, b"created"), (1, b"a"), (2, b"b"), (3, b"c")]
    assert [tuple(event) for event in follower.events] == expected
    for after in range(-1, 4):
        late = here.follow("run_1", after)
        await late.task
        assert late.events == follower.events[after + 1 :]


async def test_uncommitted_events_are_invisible(here: StreamProcess, jobs: Jobs) -> None:
    """Including those before a change of rows that failed."""
    await create_stream(jobs, "run_1")
    follower = here.follow("run_1")

    async def fail(_tx: Transaction) -> None:
        raise InvalidField(field="x", problem="it is wrong")

    async with here.committer.writer(await claim(here), "run_1") as writer:
        await writer.add([b"kept"])
        await writer.flush()
        await writer.add([b"too"])
        with pytest.raises(InvalidField):
            await writer.commit(fail)
        assert await follower.wait_for(1) == [b"kept"]
        await writer.conclude(finish_stream)
    await follower.task

    assert follower.texts == [b"kept", b"too"]


async def test_followers_in_other_processes_are_notified(
    here: StreamProcess, elsewhere: StreamProcess, jobs: Jobs
) -> None:
    """They never poll, and read at most twice per commit."""
    await create_stream(jobs, "run_1")
    follower = elsewhere.follow("run_1")
    async with here.committer.writer(await claim(here), "run_1") as writer:
        for event in numbered_events(20):
            await writer.add([event])
            await writer.flush()
        assert await follower.wait_for(20) == numbered_events(20)
        await writer.conclude(finish_stream)
    await follower.task

    assert follower.texts == numbered_events(20)
    # PostgreSQL also delivers notifications to the process that sent them.
    assert elsewhere.transactions.num_read <= 2 * 22


async def test_a_slow_follower_reads_events_that_are_no_longer_cached(
    here: StreamProcess, jobs: Jobs
) -> None:
    """It reads everything, though the process caches the newest events only."""
    await create_stream(jobs, "run_1")
    events = [bytes([index]) * (TAIL_BYTES // 4) for index in range(40)]
    batches = here.reader.follow(
        PROJECT, "run_1", -1, missing=BatchNotFound(batch="run_1"), field="after"
    )
    async with here.committer.writer(await claim(here), "run_1") as writer:
        await writer.add(events[:1])
        read = [*await anext(batches)]
        for event in events[1:]:
            await writer.add([event])
            await writer.flush()
        await writer.conclude(finish_stream)
    async for batch in batches:
        read += batch

    assert [event.data for event in read] == events


async def test_a_stream_continues_in_another_process(
    here: StreamProcess, elsewhere: StreamProcess, jobs: Jobs
) -> None:
    """The worker that lost the job cannot write; its successor appends to the committed events."""
    await create_stream(jobs, "run_1")
    first, other = here.follow("run_1"), elsewhere.follow("run_1")
    lost = await claim(here)
    async with here.committer.writer(lost, "run_1") as late:
        await late.add([b"a"], [7], turn=2)
        await late.flush()
        await here.leases.end(lost.claim, AttemptResult(Outcome.RELEASED))
        async with elsewhere.committer.writer(await claim(elsewhere), "run_1") as writer:
            await late.add([b"never"])
            with pytest.raises(LeaseLost):
                await late.flush()
            with pytest.raises(LeaseLost):
                await late.commit(no_change)
            await writer.add([b"b"], [8], turn=2)
            await writer.conclude(finish_stream)
    await asyncio.wait_for(other.task, 20)
    await asyncio.wait_for(first.task, 20)

    assert first.texts == other.texts == [b"a", b"b"]
    tokens = await jobs.transactions.of(PROJECT).read(
        lambda tx: StreamQueries(tx).tokens("run_1", 2)
    )
    assert tokens == [7, 8]


async def test_one_of_two_writers_in_a_process_is_valid(database: Database, jobs: Jobs) -> None:
    """A process lost a job and claimed it again: both writers are in one group commit."""
    await create_stream(jobs, "run_1")
    process = make_process(database)
    lost = await claim(process)
    async with AsyncExitStack() as stack:
        async with process.committer.writer(lost, "run_1") as late:
            await process.leases.end(lost.claim, AttemptResult(Outcome.RELEASED))
            opened = process.committer.writer(await claim(process), "run_1")
            writer = await stack.enter_async_context(opened)
            await stack.enter_async_context(process.run())
            follower = process.follow("run_1")
            await late.add([b"never", b"ever"])
            await writer.add([b"a"])
            with pytest.raises(LeaseLost):
                await late.flush()
            assert await follower.wait_for(1) == [b"a"]
        before = process.transactions.num_read
        await writer.add([b"b"])
        await writer.flush()
        assert await follower.wait_for(2) == [b"a", b"b"]
        assert process.transactions.num_read == before  # closing `late` keeps the tail
        await writer.conclude(finish_stream)
        await asyncio.wait_for(follower.task, 20)

    assert follower.texts == [b"a", b"b"]


async def test_streams_that_cannot_be_followed_raise_errors(
    here: StreamProcess, jobs: Jobs
) -> None:
    """An unknown stream, another project's, a number without an event, a deleted stream."""
    await create_stream(jobs, "run_1", b"a")
    with pytest.raises(BatchNotFound):
        await here.follow("run_2").task
    for after in (1, 7, -2):
        with pytest.raises(OutOfRange, match="starting_after"):
            await here.follow("run_1", after).task
    foreign = here.reader.follow(
        "q", "run_1", -1, missing=BatchNotFound(batch="run_1"), field="after"
    )
    with pytest.raises(BatchNotFound):
        await anext(foreign)
    follower = here.follow("run_1", 0)
    await asyncio.sleep(0)
    await jobs.transactions.of(PROJECT).write(lambda tx: StreamQueries(tx).drop("run_1"))
    with pytest.raises(BatchNotFound):
        await follower.task


async def test_a_stream_is_dropped_alone(here: StreamProcess, jobs: Jobs) -> None:
    """Not another one of the project, and not that of another project with the same id."""
    for stream_id in ("run_1", "run_2"):
        await create_stream(jobs, stream_id, b"a")
    for project, stream_id in (("q", "run_1"), (PROJECT, "run_2")):
        await jobs.transactions.of(project).write(
            lambda tx, each=stream_id: StreamQueries(tx).drop(each)  # type: ignore[misc]
        )

    assert await read_stream(jobs, "run_1") == [b"a"]
    assert await read_stream(jobs, "run_2") == []


async def test_an_invalid_stream_id_fails_alone(here: StreamProcess, jobs: Jobs) -> None:
    """Other followers in the same query are served."""
    await create_stream(jobs, "run_1", b"a")
    follower, other = here.follow("run_1"), here.follow("run_\0")

    with pytest.raises(BatchNotFound):
        await other.task
    assert await follower.wait_for(1) == [b"a"]
    await follower.cancel()


async def end_stream(jobs: Jobs, stream_id: str) -> None:
    await jobs.transactions.of(PROJECT).write(lambda tx: StreamQueries(tx).end(stream_id))


async def read_stream(jobs: Jobs, stream_id: str) -> list[bytes]:
    events = await jobs.across_projects.read(lambda tx: read_stored_events(tx, stream_id))
    return [event.data for event in events]


async def sweep_streams(jobs: Jobs, age: timedelta) -> int:
    """Delete the events of at most one stream that ended longer ago than `age`."""
    step = delete_streams_ended_before(age, limit=1)
    deleted = await jobs.across_projects.write(lambda tx: step(tx, utc_now()))
    return deleted.num_rows


async def test_the_events_of_ended_streams_expire(here: StreamProcess, jobs: Jobs) -> None:
    """Followers get StreamExpired then; open streams are kept."""
    for stream_id in ("run_1", "run_2", "run_3"):
        await create_stream(jobs, stream_id, *numbered_events(3))
    for stream_id in ("run_1", "run_2"):
        await end_stream(jobs, stream_id)
    num_swept = []
    for hours in (1, -1, -1, -1):
        num_swept.append(await sweep_streams(jobs, timedelta(hours=hours)))

    assert num_swept == [0, 1, 1, 0]
    with pytest.raises(StreamExpired):
        await here.follow("run_1").task
    assert await here.follow("run_3").wait_for(3) == numbered_events(3)


async def test_a_change_is_committed_once_with_the_events_before_it(
    here: StreamProcess, jobs: Jobs
) -> None:
    """Even if the response of the database is lost; a second mark would be an error."""
    await create_stream(jobs, "run_1")
    context = await claim(here)

    async def mark(tx: Transaction) -> str:
        await insert_mark(tx, context.claim, "changed")
        return "done"

    async with here.committer.writer(context, "run_1") as writer:
        await writer.add([b"a"])
        here.transactions.faults = [Fault.UNAVAILABLE, Fault.RESPONSE_LOST, Fault.UNAVAILABLE]
        assert await writer.commit(mark) == "done"
        assert await here.follow("run_1").wait_for(1) == [b"a"]
        here.transactions.faults = [Fault.RESPONSE_LOST]
        await writer.add([b"b"])
        await writer.flush()
        here.transactions.faults = [Fault.UNAVAILABLE]
        await writer.conclude(finish_stream)

    follower = here.follow("run_1")
    await follower.task
    assert follower.texts == [b"a", b"b"]
    assert (await jobs.get(context.claim.job_id)).state is JobState.DONE


async def test_a_stream_may_stay_open_when_its_job_is_done(here: StreamProcess, jobs: Jobs) -> None:
    """A run that waits for its client has no job; a transaction that locks its row can append."""
    await create_stream(jobs, "run_1")
    follower = here.follow("run_1")

    async def wait(_tx: Transaction) -> FinalEvents:
        return FinalEvents((), is_end=False)

    async with here.committer.writer(await claim(here), "run_1") as writer:
        await writer.add([b"a"])
        await writer.conclude(wait)

    async def expire(tx: Transaction) -> None:
        await StreamQueries(tx).append("run_1", [b"b"], turn=1, token_ids=[5])
        await StreamQueries(tx).end("run_1", [b"c"])
        await StreamQueries(tx).end("run_1", [b"never"])

    await jobs.transactions.of(PROJECT).write(expire)
    await follower.task
    assert follower.texts == [b"a", b"b", b"c"]
    with pytest.raises(StreamClosed):
        await jobs.transactions.of(PROJECT).write(
            lambda tx: StreamQueries(tx).append("run_1", [b"d"])
        )


async def test_what_is_held_back_behind_the_tokens_of_a_turn_is_read(
    here: StreamProcess, jobs: Jobs
) -> None:
    """However chunks are merged; release 0.2 reads the events and tokens beside it."""
    await create_stream(jobs, "run_1")
    async with here.committer.writer(await claim(here), "run_1") as writer:
        await writer.add([b"a"], [1], turn=1, held=Held([b"x", b"y"], 2))
        await writer.flush()
        await writer.add([], [2], turn=1, held=Held([b"z"], 2))
        await writer.add([b"b"], turn=1)
        await writer.flush()

    async def check(tx: CrossProjectTransaction) -> None:
        streams = StreamQueries(tx.of(PROJECT))
        assert await streams.held("run_1", 1) == (b"y", b"z")
        assert await streams.held("run_1", 2) == ()
        assert await streams.tokens("run_1", 1) == [1, 2]
        events = await streams.events_of_turn("run_1", 1)
        assert [event.data for event in events] == [b"a", b"b"]

    await jobs.across_projects.read(check)


async def test_tokens_and_events_of_a_turn_are_read(jobs: Jobs) -> None:
    """However they were appended; more events than fit into a chunk are split."""
    await create_stream(jobs, "run_1", *numbered_events(2))
    many = numbered_events(2 * MAX_CHUNK_EVENTS + 1, 2)

    async def append(tx: Transaction) -> None:
        await StreamQueries(tx).append("run_1", [], turn=1, token_ids=[1, 2])
        await StreamQueries(tx).append("run_1", many, turn=1, token_ids=[-3])
        await StreamQueries(tx).append("run_1", [b"x"], turn=2, token_ids=[4])

    await jobs.transactions.of(PROJECT).write(append)

    async def check(tx: CrossProjectTransaction) -> None:
        streams = StreamQueries(tx.of(PROJECT))
        assert await streams.tokens("run_1", 1) == [1, 2, -3]
        assert await streams.tokens("run_1", 2) == [4]
        turn = await streams.events_of_turn("run_1", 1)
        assert [event.data for event in turn] == many
        assert turn[0].number == 2
        stream = await streams.get("run_1")
        assert stream is not None
        assert (stream.next_number, stream.state) == (3 + len(many), StreamState.OPEN)
        assert await StreamQueries(tx.of("q")).get("run_1") is None

    await jobs.across_projects.read(check)


async def test_many_streams_share_commits_and_reads(
    here: StreamProcess, elsewhere: StreamProcess, jobs: Jobs
) -> None:
    """A round of events on 100 streams is one transaction; followers in the writer's process read
    nothing from the database, and those in another process share their reads."""
    names = [f"run_{number}" for number in range(MANY)]
    for name in names:
        await create_stream(jobs, name)
    async with AsyncExitStack() as stack:
        writers = []
        for _ in names:
            context = await claim(here)
            opened = here.committer.writer(context, context.claim.subject)
            writers.append(await stack.enter_async_context(opened))
        local = [here.follow(name) for name in names]
        remote = [elsewhere.follow(name) for name in names]
        await add_to_all(writers, b"first")
        await asyncio.gather(*(follower.wait_for(1) for follower in (*local, *remote)))
        before = (here.transactions.num_written, here.transactions.num_read)
        for _ in range(5):
            await add_to_all(writers, b"next")
        await asyncio.gather(*(follower.wait_for(6) for follower in (*local, *remote)))

        written = here.transactions.num_written - before[0]
        assert written == 5
        assert here.transactions.num_read == before[1]
        assert elsewhere.transactions.num_read <= 4 * 6
        assert here.value("corral_stream_events_per_commit_sum") == 6 * MANY
        assert here.value("corral_streams_written") == MANY
        assert elsewhere.value("corral_streams_followed") == MANY
        for follower in (*local, *remote):
            await follower.cancel()


async def add_to_all(writers: list[StreamWriter], event: bytes) -> None:
    """Add an event to each stream and wait until it is committed."""
    for writer in writers:
        await writer.add([event])
    for writer in writers:
        await writer.flush()


async def test_a_writer_waits_while_its_buffer_is_full(here: StreamProcess, jobs: Jobs) -> None:
    """While the database is unavailable memory is bounded; nothing is lost."""
    await create_stream(jobs, "run_1")
    event = b"x" * (BUFFER_BYTES // 8)
    async with here.committer.writer(await claim(here), "run_1") as writer:
        here.transactions.faults = [Fault.UNAVAILABLE] * 10_000
        for _ in range(9):
            await writer.add([event])
        waiting = asyncio.create_task(writer.add([b"last"]))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        here.transactions.faults.clear()
        await waiting
        await writer.conclude(finish_stream)

    follower = here.follow("run_1")
    await follower.task
    assert follower.texts == [event] * 9 + [b"last"]


async def test_the_group_commit_skips_streams_with_a_change_in_progress(
    database: Database, jobs: Jobs
) -> None:
    """Events before a change are visible with it or never, also if the change begins while another
    group is committed."""
    process = make_process(database, group_bytes=0)  # each stream is a group of its own
    for stream_id in ("run_1", "run_2"):
        await create_stream(jobs, stream_id)

    async def refused(_tx: Transaction) -> None:
        await committing  # the group commit reaches the second stream during its change
        raise ValueError("refused")

    async with AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(
                process.committer.writer(context, context.claim.subject)
            )
            for context in [await claim(process), await claim(process)]
        ]
        for writer in (first, second):
            await writer.add([b"kept"])
        committing = asyncio.create_task(process.committer.commit())
        await asyncio.sleep(0)  # the commit starts with the first stream
        assert first.lock.locked()
        await second.commit(no_change)
        await second.add([b"never"])
        with pytest.raises(ValueError, match="refused"):
            await second.commit(refused)
        await committing

    for stream_id in ("run_1", "run_2"):
        assert await read_stream(jobs, stream_id) == [b"kept"]


async def test_the_oldest_open_stream_of_a_project_is_found(jobs: Jobs) -> None:
    """Not an ended one, and not that of another project; empty without any."""
    old, ended, new = (jobs.ids.new(RUN) for _ in range(3))
    for stream_id in (ended, new, old):
        await create_stream(jobs, stream_id, b"a")
    first = min(old, ended, new)
    await end_stream(jobs, first)

    async def oldest(project: str) -> str:
        return await jobs.transactions.of(project).read(lambda tx: StreamQueries(tx).oldest_open())

    assert await oldest(PROJECT) == creation_key(min({old, ended, new} - {first}))
    assert await oldest("other-project") == ""
