"""The database and the blob folder: that they belong together, and how each fails."""

import asyncio
import errno
import os
import re
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import pytest
from asyncpg import InternalClientError  # type: ignore[import-untyped]
from sqlalchemy.exc import DBAPIError

from control_svc.app import build, upgrade_database
from control_svc.blobs.local import FolderBlobs
from control_svc.config import ControlSettings
from control_svc.db.engine import open_database
from control_svc.db.transaction import CrossProjectTransaction, CrossProjectTransactions
from control_svc.files.queries import delete_expired_files
from control_svc.slices import BLOB_COLUMNS
from control_svc.sweeper import Sweeper
from svc_kit.errors import StorageFailed, UpstreamUnavailable
from svc_kit.lifecycle import StartupError, StartupOutage
from tests.support.control import SetClock
from tests.support.postgres import create_database, execute, fetch_value


async def start(data_dir: Path, url: str | None = None) -> None:
    """Start a control service with its own blob folder, and stop it."""
    settings = ControlSettings(
        listen="127.0.0.1:0", management_listen=None, data_dir=data_dir, database_url=url
    )
    async with build(settings):
        pass


async def store(blobs: FolderBlobs, content: bytes = b"kept") -> str:
    async with blobs.create() as sink:
        await sink.write(content)
        return (await sink.commit()).key


async def all_keys(blobs: FolderBlobs) -> list[str]:
    groups = blobs.keys()
    return [stored.key async for group in groups for stored in group]


@pytest.fixture
def blobs(tmp_path: Path) -> FolderBlobs:
    """The empty blob store of a control service whose data folder is `tmp_path`."""
    blobs = FolderBlobs(tmp_path / "control" / "blobs")
    blobs.prepare()
    return blobs


async def test_a_blob_folder_belongs_to_one_database(tmp_path: Path, blobs: FolderBlobs) -> None:
    """Another one would delete all of its files as orphans."""
    await start(tmp_path)
    await store(blobs)
    await start(tmp_path)

    with pytest.raises(StartupError, match="files of another database"):
        await start(tmp_path, f"sqlite:///{tmp_path / 'other' / 'db.sqlite3'}")


async def test_files_of_an_unknown_database_are_refused(tmp_path: Path, blobs: FolderBlobs) -> None:
    """Until the operator writes the installation id of the error message to a file."""
    await store(blobs)
    with pytest.raises(StartupError, match="files of an unknown database") as error:
        await start(tmp_path)

    installation = str(error.value).partition("write ")[2].split()[0]
    (tmp_path / "control" / "blobs" / "INSTALLATION").write_text(f"{installation}\n")
    await start(tmp_path)


async def test_a_data_folder_is_used_by_one_process(tmp_path: Path) -> None:
    """Even if each process has its own SQLite file elsewhere."""
    one, two = (f"sqlite:///{tmp_path / name / 'db.sqlite3'}" for name in ("one", "two"))
    async with open_database(one, tmp_path / "data"):
        holder = rf"another control process uses .*process {os.getpid()} on .*, since 20"
        with pytest.raises(StartupError, match=holder):
            async with open_database(two, tmp_path / "data"):
                pass


NOTES = "CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)"
VERSION = "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)"
FOREIGN = {
    "without migrations": [NOTES],
    "with other migrations": [NOTES, VERSION, "INSERT INTO alembic_version VALUES ('8f2b')"],
    "with a revision like ours": [NOTES, VERSION, "INSERT INTO alembic_version VALUES ('0001')"],
    "with a table like ours": ["CREATE TABLE files (id INTEGER PRIMARY KEY)"],
}


@pytest.mark.parametrize("journal", ["delete", "wal"])
@pytest.mark.parametrize("statements", FOREIGN.values(), ids=FOREIGN.keys())
async def test_an_sqlite_file_of_another_application_is_not_changed(
    tmp_path: Path, statements: list[str], journal: str
) -> None:
    """Not a byte of it, not even its journal mode, by neither start nor upgrade."""
    file = tmp_path / "notes.sqlite3"
    url = f"sqlite:///{file}"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(f"PRAGMA journal_mode = {journal}")
        for statement in statements:
            connection.execute(statement)
        connection.commit()
        before = file.read_bytes()

        with pytest.raises(StartupError, match="belongs to another application"):
            await start(tmp_path, url)
        with pytest.raises(StartupError, match="belongs to another application"):
            await upgrade_database(ControlSettings(data_dir=tmp_path, database_url=url))

        assert file.read_bytes() == before


@pytest.mark.parametrize("statements", FOREIGN.values(), ids=FOREIGN.keys())
async def test_a_postgres_database_of_another_application_is_not_changed(
    tmp_path: Path, postgres: str, statements: list[str]
) -> None:
    """`corral db upgrade` names its tables and leaves them alone."""
    server = re.sub(r"/test_\w+\?", "/NAME?", postgres)
    url = await asyncio.to_thread(create_database, server)
    await execute(url, *statements)
    tables = "SELECT string_agg(tablename, ' ') FROM pg_tables WHERE schemaname = 'public'"
    before = await fetch_value(url, tables)

    with pytest.raises(StartupError, match="belongs to another application"):
        await upgrade_database(ControlSettings(data_dir=tmp_path, database_url=url))

    assert await fetch_value(url, tables) == before


async def test_unknown_files_in_the_blob_folder_are_ignored(
    tmp_path: Path, blobs: FolderBlobs
) -> None:
    """File managers create some."""
    key = await store(blobs)
    folder = tmp_path / "control" / "blobs"
    shard = "ab" if not key.startswith("ab") else "cd"  # keys are random
    for name in (".DS_Store", shard):
        (folder / name).write_bytes(b"")

    assert await all_keys(blobs) == [key]


async def test_small_chunks_are_written_in_batches(tmp_path: Path, blobs: FolderBlobs) -> None:
    """One-byte chunks are written once 256 bytes are buffered; empty chunks are not written."""

    def written_sizes() -> list[int]:
        incoming = tmp_path / "control" / "blobs" / "incoming"
        return [path.stat().st_size for path in incoming.iterdir()]

    async with blobs.create() as sink:
        for _ in range(1000):
            await sink.write(b"")
        assert written_sizes() == []
        for _ in range(512):  # the second batch waits for the first
            await sink.write(b"x")
        assert written_sizes()[0] >= 256
        assert sink.size_bytes == 512


class FullTransactions(CrossProjectTransactions):
    async def delete(self, work: object) -> NoReturn:
        raise StorageFailed(problem="the database's disk is full")


async def test_orphans_are_deleted_while_the_database_is_full(
    tmp_path: Path, blobs: FolderBlobs
) -> None:
    """This frees the space that the rest of the round needs."""
    await upgrade_database(ControlSettings(data_dir=tmp_path))
    await store(blobs)
    clock = SetClock()
    clock.advance(days=1)
    async with open_database(None, tmp_path / "control") as database:
        transactions = FullTransactions(
            database.writer, database.writer, database.notifications, clock
        )
        steps = [delete_expired_files]
        sweeper = Sweeper(transactions, blobs, clock, timedelta(hours=1), steps, BLOB_COLUMNS)
        with pytest.raises(StorageFailed):
            await sweeper.sweep()

    assert await all_keys(blobs) == []


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("sslmode=require", "cannot be used"),
        ("sslmode=perhaps", "sslmode in database_url must be one of disable"),
        ("sslrootcert=a&connect_timeout=3", "unknown options: connect_timeout, sslrootcert"),
    ],
)
async def test_options_of_a_url_are_checked(tmp_path: Path, options: str, problem: str) -> None:
    """With valid options the connection is tried, and refused, which may change."""
    with pytest.raises((StartupOutage, ValueError), match=problem):
        await start(tmp_path, f"postgresql://nobody@127.0.0.1:1/x?{options}")


async def test_a_postgres_database_that_does_not_exist_is_no_outage(
    tmp_path: Path, postgres: str
) -> None:
    """It would be missing at the next start too."""
    with pytest.raises(StartupError, match='database "nowhere" does not exist') as failed:
        await start(tmp_path, re.sub(r"/test_\w+\?", "/nowhere?", postgres))

    assert not isinstance(failed.value, StartupOutage)


@pytest.mark.parametrize("state", ["55P03", "57014"])
async def test_timeouts_of_the_database_are_unavailable(tmp_path: Path, state: str) -> None:
    """Lock timeout and statement timeout."""

    class TimeoutExpired(Exception):
        sqlstate = state

    async def work(_: CrossProjectTransaction) -> None:
        raise DBAPIError("UPDATE", {}, TimeoutExpired())

    async with open_database(None, tmp_path) as database:
        with pytest.raises(UpstreamUnavailable):
            await database.across_projects.write(work)


class CodedError(Exception):
    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.sqlite_errorname = code if code.startswith("SQLITE") else None
        self.sqlstate = None if code.startswith("SQLITE") else code


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (DBAPIError("INSERT", {}, CodedError("53100")), "the database's disk is full"),
        (DBAPIError("INSERT", {}, CodedError("SQLITE_FULL")), "the database's disk is full"),
        *(
            (DBAPIError("INSERT", {}, CodedError(code)), "the database cannot use its files")
            for code in ("58030", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE", "SQLITE_CANTOPEN")
        ),
        *(
            (OSError(number, os.strerror(number)), os.strerror(number))
            for number in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE)
        ),
    ],
    ids=str,
)
async def test_a_full_or_broken_disk_is_a_failure_of_the_storage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception, problem: str
) -> None:
    """Not a database that cannot be reached; and a warning in the log."""

    async def work(_: CrossProjectTransaction) -> None:
        raise error

    async with open_database(None, tmp_path) as database:
        for run in (database.across_projects.write, database.across_projects.read):
            with pytest.raises(StorageFailed, match=problem):
                await run(work)

    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert len(warnings) == 2
    assert all(problem in each for each in warnings)


async def test_a_connection_closed_during_a_response_is_unavailable(tmp_path: Path) -> None:
    """asyncpg raises InternalClientError then."""

    async def work(_: CrossProjectTransaction) -> None:
        raise InternalClientError("got result for unknown protocol state 3")

    async with open_database(None, tmp_path) as database:
        for run in (database.across_projects.write, database.across_projects.read):
            with pytest.raises(UpstreamUnavailable):
                await run(work)
