"""JSON documents in tables: plain SQL on them, and the conversion of those of release 0.1."""

import asyncio
import signal
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import pytest
import sqlalchemy as sa

from control_svc.assistants.queries import MessageQueries, ThreadQueries
from control_svc.base.pagination import Window
from control_svc.db import migrations
from control_svc.db.documents import ConversionRow, convert_rows
from control_svc.db.engine import FILE_NAME, Database, open_database
from control_svc.db.limits import DatabaseLimits
from control_svc.db.transaction import Transaction
from control_svc.items.queries import TimelineQueries
from control_svc.runs.model import Run
from tests.support.control import SetClock
from tests.support.jobs import PROJECT, open_test_database
from tests.support.processes import Program
from tests.support.runs import RunWorld, execute_run, get_run, list_steps
from tests.support.scripted_turns import ScriptedTurns, text_script
from tests.support.services import start

TEXTS = ("plain", "NUL \0, backslashes \\ \\u0000, U+0001 \1", "Grüße")
BEFORE = "0014"
"""The last revision with documents as bytes."""
NUM_ITEMS = 20_000
COPY_ITEMS = (
    "WITH RECURSIVE numbers(number) AS"
    " (SELECT 1 UNION ALL SELECT number + 1 FROM numbers WHERE number < 20000)"
    " INSERT INTO items (project, id, status, created_at, document)"
    " SELECT 'copies', 'msg_' || number, status, created_at, document FROM numbers, items"
    " WHERE items.id = (SELECT min(id) FROM items)"
)


def make_world(database: Database) -> RunWorld:
    """A project with a model that says a few words."""
    return RunWorld(database, ScriptedTurns(lambda _request: text_script("one two")), SetClock())


async def create_run(world: RunWorld) -> Run:
    """Create an assistant, a thread with messages, and a run with its step."""
    assistant = await world.assistant(metadata={"key": "value"})
    thread = await world.thread(*TEXTS)
    async with world.process().run_jobs() as process:
        run, _ = await execute_run(process, assistant, thread, metadata={"z": "1", "a": "2"})
    return run


async def read_all(world: RunWorld, run: Run) -> Any:
    """Everything of the run and its thread that has a document, by the queries of the services."""

    async def read(tx: Transaction) -> Any:
        window = Window(100, newest_first=False)
        return (
            await MessageQueries(tx).page(run.thread_id, window),
            await TimelineQueries(tx).num_bytes(run.thread_id) > 0,
        )

    return (
        await world.get_thread(run.thread_id),
        await get_run(world.process(), run),
        await list_steps(world.process(), run),
        await world.database.transactions.of(PROJECT).read(read),
    )


async def as_release_0_1(database: Database) -> None:
    """Store all documents as release 0.1 did, and upgrade the schema."""
    await migrations.downgrade(database.migrator, BEFORE)
    await migrations.upgrade(database.migrator)


async def test_tables_are_read_while_they_are_converted(
    tmp_path: Path, database_url: str | None
) -> None:
    """Before, after each table, and after a change of a row that is not converted."""
    async with open_test_database(tmp_path, database_url) as database:
        world = make_world(database)
        run = await create_run(world)
        expected = await read_all(world, run)
        await as_release_0_1(database)
    async with open_database(database_url, tmp_path) as database:
        world = make_world(database)
        states = [await read_all(world, run)]
        thread = replace(await world.get_thread(run.thread_id), revision=1)
        await database.transactions.of(PROJECT).write(lambda tx: ThreadQueries(tx).update(thread))
        while await database.across_projects.write(convert_rows):
            states.append(await read_all(world, run))
        left = await database.across_projects.read(
            lambda tx: tx.session.scalar(sa.select(ConversionRow))
        )

    changed = (thread, *expected[1:])
    assert states == [expected, *[changed] * (len(states) - 1)]
    assert len(states) == 7  # assistants, items, messages, run_steps, runs, threads
    assert left is None


async def query(folder: Path, url: str | None, sql: str) -> list[tuple[Any, ...]]:
    """Run plain SQL without our code."""
    if url is None:
        with closing(sqlite3.connect(folder / FILE_NAME)) as connection:
            return connection.execute(sql).fetchall()
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(sql)]
    finally:
        await connection.close()


@pytest.mark.parametrize("is_upgraded", [False, True])
async def test_documents_are_read_by_plain_sql(
    tmp_path: Path, database_url: str | None, is_upgraded: bool
) -> None:
    """Of this release, and converted ones; no document is left as bytes."""
    async with open_test_database(tmp_path, database_url) as database:
        run = await create_run(make_world(database))
        if is_upgraded:
            await as_release_0_1(database)
            while await database.across_projects.write(convert_rows):
                pass
    [(state,)] = await query(tmp_path, database_url, "SELECT document ->> 'state' FROM runs")
    texts = await query(
        tmp_path,
        database_url,
        "SELECT document -> 'content' -> 0 ->> 'text' FROM items ORDER BY id",
    )

    assert state == run.state.value
    assert [text for (text,) in texts][::2] == [TEXTS[0], TEXTS[2]]
    if database_url is None:  # any column has values of any type
        sql = "SELECT typeof(document) FROM items UNION SELECT typeof(settings) FROM runs"
        assert await query(tmp_path, None, sql) == [("text",)]


@pytest.mark.timeout(180)
async def test_a_killed_conversion_continues(tmp_path: Path, database_url: str | None) -> None:
    """At the next start, after the rows that were committed."""
    folder = tmp_path / "data" / "control"
    async with open_test_database(folder, database_url) as database:
        await create_run(make_world(database))
        await migrations.downgrade(database.migrator, BEFORE)
        async with database.migrator.begin() as connection:
            await connection.exec_driver_sql(COPY_ITEMS)
        await migrations.upgrade(database.migrator)
    with serve(tmp_path, database_url) as program:
        await program.line("the documents of the table assistants are converted", patience_s=60)
        program.signal(signal.SIGKILL)
        await asyncio.to_thread(program.wait)
    left = await query(folder, database_url, "SELECT name FROM document_conversions ORDER BY name")
    with serve(tmp_path, database_url) as program:
        await program.line("the documents of the table threads are converted", patience_s=60)
    kinds = "SELECT document ->> 'kind', count(*) FROM items WHERE project = 'copies' GROUP BY 1"

    assert ("items",) in left
    assert await query(folder, database_url, kinds) == [("message", NUM_ITEMS)]
    assert await query(folder, database_url, "SELECT name FROM document_conversions") == []


def serve(folder: Path, url: str | None) -> Program:
    settings = {"listen": "127.0.0.1:0"} | ({} if url is None else {"database_url": url})
    return start(folder, "serve", "control", control=settings)


async def test_slow_rows_are_converted(postgres_url: str, tmp_path: Path) -> None:
    """The conversion has the time of a migration, not that of other statements."""
    limits = DatabaseLimits(statement_s=0.1)
    async with open_test_database(tmp_path, postgres_url) as database:
        await make_world(database).thread("\0" * 500_000)  # takes half a second
        await as_release_0_1(database)
    async with open_database(postgres_url, tmp_path, limits=limits) as database:
        while await database.across_projects.write(convert_rows):
            pass
    assert await query(tmp_path, postgres_url, "SELECT name FROM document_conversions") == []
