"""Event streams on both databases: written in groups, followed from anywhere."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from control_svc.app import utc_now
from control_svc.domain.ids import IdSource
from control_svc.storage.database import Database
from tests.support.jobs import Jobs, a_database
from tests.support.streams import StreamProcess, a_process, begin, claim, nothing


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
    async with a_process(database).running() as process:
        yield process


async def test_a_follower_sees_what_is_written_until_the_end(
    here: StreamProcess, jobs: Jobs
) -> None:
    """In order, with numbers from 0, and nothing after the end."""
    await begin(jobs, "run_1", b"created")
    follower = here.follow("run_1")
    async with here.committer.writer(await claim(here), "run_1") as writer:
        await writer.add([b"a", b"b"], [1, 2], turn=1)
        assert await follower.until(3) == [b"created", b"a", b"b"]
        await writer.add([b"c"], [3], turn=1)
        await writer.finish(nothing)
    await follower.reading

    assert [tuple(event) for event in follower.seen] == [
        (0, b"created"),
        (1, b"a"),
        (2, b"b"),
        (3, b"c"),
    ]
    late = here.follow("run_1", 1)
    await late.reading
    assert late.seen == follower.seen[2:]
