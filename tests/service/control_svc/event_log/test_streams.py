"""Event streams on both databases: written in groups, followed from anywhere."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from control_svc.app import utc_now
from control_svc.base.ids import IdSource
from control_svc.db.cleanup import CleanupStep, Deleted
from control_svc.db.engine import Database
from control_svc.db.transaction import Transaction
from control_svc.event_log.model import (
    MAX_CHUNK_EVENTS,
    Event,
    FinalEvents,
    StreamClosed,
    StreamState,
)
from control_svc.event_log.queries import StreamQueries, delete_streams_ended_before
from control_svc.event_log.tail_cache import TAIL_BYTES
from control_svc.event_log.writer import UNWRITTEN_BYTES, StreamWriter
from control_svc.jobs.model import AttemptResult, JobState, LeaseLost, Outcome
from svc_kit.errors import BatchNotFound, InvalidField, OutOfRange, StreamExpired
from tests.support.job_machine import insert_mark
from tests.support.jobs import PROJECT, Fault, Jobs, a_database, no_change
from tests.support.streams import (
    StreamProcess,
    claim,
    create_stream,
    make_process,
    numbered_events,
)

MANY = 200


@pytest.fixture
async def database(tmp_path: Path, database_url: str | None) -> AsyncIterator[Database]:
    """A database of each kind."""
    async with a_database(tmp_path, database_url) as opened:
        yield opened


@pytest.fixture
def jobs(database: Database) -> Jobs:
    """Its jobs."""
    return Jobs(database, IdSource(utc_now))


@pytest.fixture
async def here(database: Database) -> AsyncIterator[StreamProcess]:
    """A process."""
    async with make_process(database).running() as process:
        yield process


@pytest.fixture
async def elsewhere(database: Database) -> AsyncIterator[StreamProcess]:
    """Another process, which knows of the streams what the database does."""
    async with make_process(database, "b").running() as process:
        yield process


# ---- what followers see


async def test_a_follower_sees_what_is_written_until_the_end(
    here: StreamProcess, jobs: Jobs
) -> None:
    """In order, with numbers from 0, and nothing after the end."""
    await create_stream(jobs, "run_1", b"created")
    follower = here.follow("run_1")
    async with here.committer.writer(await claim(here), "run_1") as writer:
        await writer.add([b"a", b"b"], [1, 2], turn=1)
        assert await follower.until(3) == [b"created", b"a", b"b"]
        assert writer.next_number == 3
        await writer.add([b"c"], [3], turn=1)
        await writer.finish(no_change)
    await follower.task

    expected = [(0, b"created"), (1, b"a"), (2, b"b"), (3, b"c")]
    assert [tuple(event) for event in follower.events] == expected
    for after in range(-1, 4):
        late = here.follow("run_1", after)
        await late.task
        assert late.events == follower.events[after + 1 :]


async def test_nobody_sees_what_is_not_committed(here: StreamProcess, jobs: Jobs) -> None:
    """Also not what a change of rows that failed would have brought."""
    await create_stream(jobs, "run_1")
    follower = here.follow("run_1")

    async def fail(_repositories: Transaction) -> None:
        raise InvalidField(field="x", problem="it is wrong")

    async with here.committer.writer(await claim(here), "run_1") as writer:
        await writer.add([b"kept"])
        await writer.flush()
        await writer.add([b"too"])
        with pytest.raises(InvalidField):
            await writer.commit(fail)
        assert await follower.until(1) == [b"kept"]
        await writer.finish(no_change)
    await follower.task

    assert follower.texts == [b"kept", b"too"]


async def test_a_follower_elsewhere_is_told_by_notices(
    here: StreamProcess, elsewhere: StreamProcess, jobs: Jobs
) -> None:
    """It never polls, and each commit is a read or two for it."""
    await create_stream(jobs, "run_1")
    follower = elsewhere.follow("run_1")
    async with here.committer.writer(await claim(here), "run_1") as writer:
        for event in numbered_events(20):
            await writer.add([event])
            await writer.flush()
        assert await follower.until(20) == numbered_events(20)
        await writer.finish(no_change)
    await follower.task

    assert follower.texts == numbered_events(20)
    # PostgreSQL tells of its own notices once more.
    assert elsewhere.transactions.num_read <= 2 * 22


async def test_a_slow_follower_reads_what_memory_has_forgotten(
    here: StreamProcess, jobs: Jobs
) -> None:
    """It gets everything, though the process keeps the newest alone."""
    await create_stream(jobs, "run_1")
    events = [bytes([index]) * (TAIL_BYTES // 4) for index in range(40)]
    follow = here.reader.follow(
        PROJECT, "run_1", -1, missing=BatchNotFound(batch="run_1"), field="after"
    )
    async with here.committer.writer(await claim(here), "run_1") as writer:
        await writer.add(events[:1])
        seen = [*await anext(follow)]
        for event in events[1:]:
            await writer.add([event])
            await writer.flush()
        await writer.finish(no_change)
    async for some in follow:
        seen += some

    assert [event.data for event in seen] == events


async def test_a_follower_that_goes_on_elsewhere_misses_nothing(
    here: StreamProcess, elsewhere: StreamProcess, jobs: Jobs
) -> None:
    """A worker that lost its job writes nothing more; another one goes on behind what is there."""
    await create_stream(jobs, "run_1")
    first, other = here.follow("run_1"), elsewhere.follow("run_1")
    lost = await claim(here)
    async with here.committer.writer(lost, "run_1") as late:
        await late.add([b"a"], [7], turn=2)
        await late.flush()
        await here.leases.end(lost.claim, AttemptResult(Outcome.RELEASED))
        async with elsewhere.committer.writer(await claim(elsewhere), "run_1") as writer:
            assert writer.next_number == 1
            await late.add([b"never"])
            with pytest.raises(LeaseLost):
                await late.flush()
            with pytest.raises(LeaseLost):
                await late.commit(no_change)
            await writer.add([b"b"], [8], turn=2)
            await writer.finish(no_change)
    await asyncio.wait_for(other.task, 20)
    await asyncio.wait_for(first.task, 20)

    assert first.texts == other.texts == [b"a", b"b"]
    tokens = await jobs.transactions.read(
        lambda each: StreamQueries(each).tokens(PROJECT, "run_1", 2)
    )
    assert tokens == [7, 8]


async def test_who_lost_its_job_to_its_own_process_is_not_heard(
    database: Database, jobs: Jobs
) -> None:
    """Its process stalled for a lease and then took the job itself: both writers are in one group
    commit, and one of them counts."""
    await create_stream(jobs, "run_1")
    process = make_process(database)
    lost = await claim(process)
    async with AsyncExitStack() as stack:
        async with process.committer.writer(lost, "run_1") as late:
            await process.leases.end(lost.claim, AttemptResult(Outcome.RELEASED))
            going_on = process.committer.writer(await claim(process), "run_1")
            writer = await stack.enter_async_context(going_on)
            await stack.enter_async_context(process.running())
            follower = process.follow("run_1")
            await late.add([b"never", b"ever"])
            await writer.add([b"a"])
            with pytest.raises(LeaseLost):
                await late.flush()
            assert await follower.until(1) == [b"a"]
        before = process.transactions.num_read
        await writer.add([b"b"])
        await writer.flush()
        assert await follower.until(2) == [b"a", b"b"]
        assert process.transactions.num_read == before  # the late one's end closes no tail
        await writer.finish(no_change)
        await asyncio.wait_for(follower.task, 20)

    assert follower.texts == [b"a", b"b"]


async def test_what_cannot_be_followed_is_told(here: StreamProcess, jobs: Jobs) -> None:
    """An unknown stream, another project's, a number without an event, a stream that is dropped."""
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
    await jobs.transactions.write(lambda each: StreamQueries(each).drop(PROJECT, "run_1"))
    with pytest.raises(BatchNotFound):
        await follower.task


async def test_a_name_that_no_database_takes_fails_alone(here: StreamProcess, jobs: Jobs) -> None:
    """Those who ask beside it are answered by the same read."""
    await create_stream(jobs, "run_1", b"a")
    follower, other = here.follow("run_1"), here.follow("run_\0")

    with pytest.raises(BatchNotFound):
        await other.task
    assert await follower.until(1) == [b"a"]
    await follower.cancel()


async def end_stream(stream_id: str, tx: Transaction) -> None:
    """Nothing follows."""
    await StreamQueries(tx).end(PROJECT, stream_id)


async def run_step(step: CleanupStep, tx: Transaction) -> Deleted:
    """Run a step of the sweeper now."""
    return await step(tx, utc_now())


async def events_of(stream_id: str, tx: Transaction) -> list[Event]:
    """All of a stream."""
    return await StreamQueries(tx).read(PROJECT, stream_id, -1)


async def test_the_events_of_an_ended_stream_go_after_a_while(
    here: StreamProcess, jobs: Jobs
) -> None:
    """Who reads it then hears why there are none; an open stream stays."""
    for stream_id in ("run_1", "run_2", "run_3"):
        await create_stream(jobs, stream_id, *numbered_events(3))
    for stream_id in ("run_1", "run_2"):
        await jobs.transactions.write(partial(end_stream, stream_id))
    swept = []
    for hours in (-1, 1, 1, 1):
        step = delete_streams_ended_before(timedelta(hours=-hours), limit=1)
        result = await jobs.transactions.write(partial(run_step, step))
        swept.append(result.num_rows)

    assert swept == [0, 1, 1, 0]
    with pytest.raises(StreamExpired):
        await here.follow("run_1").task
    assert await here.follow("run_3").until(3) == numbered_events(3)


# ---- what a change of rows keeps


async def test_a_change_happens_once_and_with_what_was_said_before_it(
    here: StreamProcess, jobs: Jobs
) -> None:
    """Also where the database's answer gets lost; the mark would not be made twice."""
    await create_stream(jobs, "run_1")
    context = await claim(here)

    async def mark(tx: Transaction) -> str:
        await insert_mark(tx, context.claim, "changed")
        return "done"

    async with here.committer.writer(context, "run_1") as writer:
        await writer.add([b"a"])
        here.transactions.faults = [Fault.UNAVAILABLE, Fault.RESPONSE_LOST, Fault.UNAVAILABLE]
        assert await writer.commit(mark) == "done"
        assert await here.follow("run_1").until(1) == [b"a"]
        here.transactions.faults = [Fault.RESPONSE_LOST]
        await writer.add([b"b"])
        await writer.flush()
        here.transactions.faults = [Fault.UNAVAILABLE]
        await writer.finish(no_change)

    follower = here.follow("run_1")
    await follower.task
    assert follower.texts == [b"a", b"b"]
    assert (await jobs.get(context.claim.job_id)).state is JobState.DONE


async def test_a_stream_may_stay_open_when_its_job_is_done(here: StreamProcess, jobs: Jobs) -> None:
    """A run that waits for its client has no job; whoever holds its row goes on with the stream."""
    await create_stream(jobs, "run_1")
    follower = here.follow("run_1")

    async def wait(_repositories: Transaction) -> FinalEvents:
        return FinalEvents((), is_end=False)

    async with here.committer.writer(await claim(here), "run_1") as writer:
        await writer.add([b"a"])
        await writer.conclude(wait)

    async def expire(tx: Transaction) -> int:
        number = await StreamQueries(tx).append(PROJECT, "run_1", [b"b"], turn=1, token_ids=[5])
        await StreamQueries(tx).end(PROJECT, "run_1", [b"c"])
        await StreamQueries(tx).end(PROJECT, "run_1", [b"never"])
        return number

    assert await jobs.transactions.write(expire) == 1
    await follower.task
    assert follower.texts == [b"a", b"b", b"c"]
    with pytest.raises(StreamClosed):
        await jobs.transactions.write(
            lambda each: StreamQueries(each).append(PROJECT, "run_1", [b"d"])
        )


async def test_the_log_tells_what_a_turn_was(jobs: Jobs) -> None:
    """Its tokens and its events, whichever way they were appended; events in chunks of a bounded
    size."""
    await create_stream(jobs, "run_1", *numbered_events(2))
    many = numbered_events(2 * MAX_CHUNK_EVENTS + 1, 2)

    async def append(tx: Transaction) -> None:
        await StreamQueries(tx).append(PROJECT, "run_1", [], turn=1, token_ids=[1, 2])
        await StreamQueries(tx).append(PROJECT, "run_1", many, turn=1, token_ids=[-3])
        await StreamQueries(tx).append(PROJECT, "run_1", [b"x"], turn=2, token_ids=[4])

    await jobs.transactions.write(append)

    async def look(tx: Transaction) -> None:
        streams = StreamQueries(tx)
        assert await streams.tokens(PROJECT, "run_1", 1) == [1, 2, -3]
        assert await streams.tokens(PROJECT, "run_1", 2) == [4]
        turn = await streams.events_of_turn(PROJECT, "run_1", 1)
        assert [event.data for event in turn] == many
        assert turn[0].number == 2
        assert await streams.read(PROJECT, "run_1", 300, 2) == turn[299:301]
        assert [
            event.data for event in await streams.read(PROJECT, "run_1", -1, 3)
        ] == numbered_events(3)
        stream = await streams.get(PROJECT, "run_1")
        assert stream is not None
        assert (stream.next_number, stream.state) == (3 + len(many), StreamState.OPEN)
        assert await streams.get("q", "run_1") is None

    await jobs.transactions.read(look)


# ---- what it costs


async def test_many_streams_are_one_commit_and_their_readers_one_read(
    here: StreamProcess, elsewhere: StreamProcess, jobs: Jobs
) -> None:
    """Counted: a round of events on 200 streams is a transaction; followers here read nothing for
    it, and those elsewhere read together."""
    names = [f"run_{number}" for number in range(MANY)]
    for name in names:
        await create_stream(jobs, name)
    async with AsyncExitStack() as stack:
        writers = []
        for _ in names:
            context = await claim(here)
            opened = here.committer.writer(context, context.claim.subject)
            writers.append(await stack.enter_async_context(opened))
        near = [here.follow(name) for name in names]
        far = [elsewhere.follow(name) for name in names]
        await say(writers, b"first")
        await asyncio.gather(*(follower.until(1) for follower in (*near, *far)))
        before = (here.transactions.num_written, here.transactions.num_read)
        for _ in range(5):
            await say(writers, b"next")
        await asyncio.gather(*(follower.until(6) for follower in (*near, *far)))

        written = here.transactions.num_written - before[0]
        assert written == 5
        assert here.transactions.num_read == before[1]
        assert elsewhere.transactions.num_read <= 4 * 6
        assert here.value("corral_stream_events_per_commit_sum") == 6 * MANY
        assert here.value("corral_streams_written") == MANY
        assert elsewhere.value("corral_streams_followed") == MANY
        for follower in (*near, *far):
            await follower.cancel()


async def say(writers: list[StreamWriter], event: bytes) -> None:
    """An event on each stream, committed."""
    for writer in writers:
        await writer.add([event])
    for writer in writers:
        await writer.flush()


async def test_a_writer_waits_while_too_much_is_unwritten(here: StreamProcess, jobs: Jobs) -> None:
    """The database is away: memory is bounded, and everything is there when it is back."""
    await create_stream(jobs, "run_1")
    event = b"x" * (UNWRITTEN_BYTES // 8)
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
        await writer.finish(no_change)

    follower = here.follow("run_1")
    await follower.task
    assert follower.texts == [event] * 9 + [b"last"]


async def test_the_group_leaves_alone_what_belongs_to_a_change(
    database: Database, jobs: Jobs
) -> None:
    """What is said right before a change is visible with it or never, also where a group waits
    for another one's commit."""
    process = make_process(database, group_bytes=0)  # each stream is a group of its own
    for stream_id in ("run_1", "run_2"):
        await create_stream(jobs, stream_id)

    async def refused(_repositories: Transaction) -> None:
        await committing  # so the group looks at the second stream while its change is under way
        raise ValueError("refused")

    async with AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(
                process.committer.writer(context, context.claim.subject)
            )
            for context in [await claim(process), await claim(process)]
        ]
        for writer in (first, second):
            await writer.add([b"said"])
        committing = asyncio.create_task(process.committer.commit())
        await asyncio.sleep(0)  # it begins with the first stream
        assert first.turn.locked()
        await second.commit(no_change)
        await second.add([b"never"])
        with pytest.raises(ValueError, match="refused"):
            await second.commit(refused)
        await committing

    for stream_id in ("run_1", "run_2"):
        events = await jobs.transactions.read(partial(events_of, stream_id))
        assert [event.data for event in events] == [b"said"]
