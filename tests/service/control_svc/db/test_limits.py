"""Statements that wait for locks of other sessions fail within their limits."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from control_svc.db import migrations
from control_svc.db.engine import FILE_NAME, Database, open_database
from control_svc.db.limits import DatabaseLimits
from control_svc.db.transaction import CrossProjectTransaction, CrossProjectTransactions
from control_svc.vector_stores.search.pgvector import add_vector_column
from svc_kit.errors import UpstreamUnavailable
from svc_kit.lifecycle import StartupError
from tests.support.jobs import open_test_database

SHORT = DatabaseLimits(
    pool_size=1,
    pool_s=0.2,
    lock_s=0.2,
    statement_s=2.0,
    migration_lock_s=0.2,
    migration_statement_s=2.0,
)
HANG_S = 8.0
LOCK_ROW = "SELECT * FROM counters FOR UPDATE"
WRITE_JOBS = "LOCK TABLE jobs IN ROW EXCLUSIVE MODE"
MIGRATE = "SELECT pg_advisory_xact_lock(5070451133)"
LOCK_CHUNKS = "LOCK TABLE vector_chunk_index IN ACCESS SHARE MODE"


@pytest.fixture
async def short(tmp_path: Path, database_url: str | None) -> AsyncIterator[Database]:
    """A database of each kind with short limits and one counter."""
    async with (
        open_test_database(tmp_path, database_url) as database,
        database.writer.begin() as connection,
    ):
        await connection.execute(sa.text("INSERT INTO counters VALUES ('a', 1)"))
    async with open_database(database_url, tmp_path, limits=SHORT) as database:
        yield database


@asynccontextmanager
async def locked(database: Database, folder: Path, statement: str) -> AsyncIterator[None]:
    """Hold the locks of a statement in another session; on SQLite, the lock of the file."""
    if database.connect_dedicated is None:
        with closing(sqlite3.connect(folder / FILE_NAME)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
        return
    engine = database.connect_dedicated()
    async with engine.begin() as connection:
        await connection.execute(sa.text(statement))
        yield
    await engine.dispose()


@contextmanager
def fails_in_time(error: type[Exception], match: str) -> Iterator[None]:
    """Expect an error that is raised within the short limits."""
    started_at = time.monotonic()
    with pytest.raises(error, match=match):
        yield
    assert time.monotonic() - started_at < HANG_S


async def increment(tx: CrossProjectTransaction) -> None:
    await tx.session.execute(sa.text("UPDATE counters SET value = value + 1"))


async def count(tx: CrossProjectTransaction) -> int | None:
    value: int | None = await tx.session.scalar(sa.text("SELECT value FROM counters"))
    return value


async def test_a_write_that_waits_for_another_session_is_unavailable(
    short: Database, tmp_path: Path
) -> None:
    """For a row on PostgreSQL, and for the file on SQLite. It succeeds once the lock is gone."""
    async with locked(short, tmp_path, LOCK_ROW):
        with fails_in_time(UpstreamUnavailable, "database"):
            await short.across_projects.write(increment)
    await short.across_projects.write(increment)

    assert await short.across_projects.read(count) == 2


async def test_a_write_that_waits_for_another_write_is_unavailable(
    short: Database, tmp_path: Path
) -> None:
    """For the connection that writes on SQLite, and for one of the pool on PostgreSQL."""
    release = asyncio.Event()

    async def block(tx: CrossProjectTransaction) -> None:
        await count(tx)
        await release.wait()

    writes = [asyncio.create_task(short.across_projects.write(block)) for _ in range(3)]
    failed, _ = await asyncio.wait(writes, timeout=HANG_S, return_when=asyncio.FIRST_EXCEPTION)
    release.set()
    await asyncio.wait(writes)
    await short.across_projects.write(increment)

    assert {type(each.exception()) for each in failed} == {UpstreamUnavailable}
    assert await short.across_projects.read(count) == 2


@pytest.mark.parametrize(
    ("held", "query"),
    [("LOCK TABLE counters", "SELECT value FROM counters"), ("SELECT 1", "SELECT pg_sleep(30)")],
)
@pytest.mark.parametrize("is_dedicated", [False, True])
async def test_a_statement_that_takes_long_is_unavailable(
    tmp_path: Path, postgres_url: str, held: str, query: str, *, is_dedicated: bool
) -> None:
    """For a lock on the table, or by itself; also on the connection of the heartbeats."""
    async with open_database(postgres_url, tmp_path, limits=SHORT) as database:
        assert database.connect_dedicated is not None
        transactions = database.across_projects
        if is_dedicated:
            engine = database.connect_dedicated()
            transactions = CrossProjectTransactions(engine, engine, database.notifications)
        async with locked(database, tmp_path, held):
            with fails_in_time(UpstreamUnavailable, "database"):
                await transactions.read(lambda tx: tx.session.execute(sa.text(query)))
        if is_dedicated:
            await engine.dispose()


@pytest.mark.parametrize(
    ("held", "problem"), [(WRITE_JOBS, "lock timeout"), (MIGRATE, "statement timeout")]
)
async def test_a_migration_that_waits_for_another_session_fails(
    short: Database, tmp_path: Path, database_url: str | None, held: str, problem: str
) -> None:
    """For a transaction that has written to the table, or for another migration. Nothing is
    changed, and the next upgrade succeeds."""
    await migrations.downgrade(short.migrator, "0013")
    try:
        async with locked(short, tmp_path, held):
            expected = f"({problem}|database is locked). Another program .* nothing was changed"
            with fails_in_time(StartupError, expected):
                await migrations.upgrade(short.migrator)
        assert await migrations.current(short.migrator) == "0013"
    finally:
        async with open_test_database(tmp_path / "other", database_url):
            pass
    await migrations.upgrade(short.migrator)

    assert await migrations.current(short.migrator) == migrations.head()


async def test_an_upgrade_does_not_wait_for_searches_to_add_pgvector(
    tmp_path: Path, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Vectors are compared in memory until the next upgrade."""
    async with open_database(postgres_url, tmp_path, limits=SHORT) as database:
        async with database.writer.begin() as connection:
            await connection.execute(
                sa.text("ALTER TABLE vector_chunk_index DROP COLUMN IF EXISTS embedding")
            )
        async with locked(database, tmp_path, LOCK_CHUNKS), asyncio.timeout(HANG_S):
            await add_vector_column(database.migrator)
        assert "canceling statement due to lock timeout" in caplog.text
        await add_vector_column(database.migrator)
