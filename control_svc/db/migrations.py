"""Runs the migrations of the database schema and checks its revision.

All control processes stop before it. Rows are not converted in it but while the new release runs,
which reads both forms; a column is dropped one release after its last use.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from asyncpg import PostgresError  # type: ignore[import-untyped]
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_svc.db.database_errors import is_outage, is_timeout
from control_svc.db.documents import OLD_SUFFIX
from control_svc.db.tables import Table, check_owner
from svc_kit.lifecycle import StartupError, StartupOutage

_log = logging.getLogger(__name__)
_PACKAGE: Final = Path(__file__).resolve().parents[1]
_INSTALLED: Final = _PACKAGE / "migrations"
MIGRATIONS: Final = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parent / "migrations"
"""Folder of the migrations: in the package if Corral is installed, beside it in a checkout."""
_UNMAPPED_TABLE: Final = "vector_chunk_index"
"""The full-text index of chunks, which migrations create and no class maps."""
UPGRADE_HINT: Final = "run `corral db upgrade`"
_TIMEOUT_HINT: Final = (
    ". Another program uses the database; nothing was changed: end its transaction, or try again"
)
ResultT = TypeVar("ResultT")


def configuration(connection: sa.Connection | None = None, folder: Path = MIGRATIONS) -> Config:
    """Alembic's configuration; commands that use a database need the connection."""
    config = Config()
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.set_main_option("file_template", "%%(rev)s_%%(slug)s")
    config.attributes["connection"] = connection
    return config


def head(folder: Path = MIGRATIONS) -> str:
    """The newest revision."""
    return _scripts(folder).get_current_head() or "nothing"


@cache
def _scripts(folder: Path) -> ScriptDirectory:
    return ScriptDirectory(str(folder))  # imports all migrations


async def current(engine: AsyncEngine) -> str | None:
    """The revision of a database; None if it is empty."""
    return await _run(engine, read_revision)


def read_revision(connection: sa.Connection) -> str | None:
    """The revision of a database; None if it is empty."""
    return _context(connection).get_current_revision()


async def upgrade(engine: AsyncEngine, folder: Path = MIGRATIONS) -> None:
    """Upgrade a database to the newest revision.

    `engine` is `Database.migrator`. Raises StartupError if the database belongs to a later release,
    or if rows would reference missing ones afterwards.
    """
    revision = await _known_revision(engine, folder)
    newest = head(folder)
    if revision != newest:
        await _run(engine, lambda connection: _upgrade(connection, folder))
        _log.info("upgraded the database from revision %s to %s", revision or "nothing", newest)


async def check_empty(engine: AsyncEngine) -> None:
    """Raise StartupError if a database has tables."""
    await _run(engine, _check_empty)


async def create(connection: AsyncConnection, revision: str) -> None:
    """Create the tables of the revision of a backup, in the transaction of the connection.

    Other migrations wait for its end. Raises StartupError if the database has tables by now.
    """

    def work(sync: sa.Connection) -> None:
        config = configuration(sync)
        config.attributes["check"] = _check_empty
        command.upgrade(config, revision)

    with _translated_errors():
        await connection.run_sync(work)


@contextmanager
def empty_sqlite(revision: str) -> Iterator[sa.Connection]:
    """A new SQLite database in memory with the tables of a known revision."""
    with sa.create_engine("sqlite://").begin() as connection:
        command.upgrade(configuration(connection), revision)
        yield connection


def is_known(revision: str, folder: Path = MIGRATIONS) -> bool:
    """Whether this release has a revision, that is, whether it is not from a later one."""
    return revision in {script.revision for script in _scripts(folder).walk_revisions()}


async def downgrade(engine: AsyncEngine, revision: str) -> None:
    """Downgrade a database; "base" empties it. The data of dropped columns and tables is lost."""
    await _run(engine, lambda connection: command.downgrade(configuration(connection), revision))


async def check_revision(engine: AsyncEngine) -> None:
    """Raise StartupError unless a database has the revision of this release."""
    revision = await _known_revision(engine, MIGRATIONS)
    if revision != head():
        raise StartupError(
            f"the database is at revision {revision or 'nothing'}, this release needs {head()}:"
            f" {UPGRADE_HINT}"
        )


async def check(engine: AsyncEngine) -> None:
    """Raise StartupError unless a database has the revision and the tables of this release."""
    await check_revision(engine)
    differences = await _run(
        engine, lambda connection: compare_metadata(_context(connection), Table.metadata)
    )
    if differences:
        raise StartupError(f"the tables differ from those of the migrations: {differences}")


async def _known_revision(engine: AsyncEngine, folder: Path) -> str | None:
    """The revision of a database. Raises StartupError if it is unknown, or if the database belongs
    to another application."""
    revision = await current(engine)
    tables = await _run(engine, lambda connection: sa.inspect(connection).get_table_names())
    check_owner(tables, is_migrated=revision is not None)
    if revision is not None and not is_known(revision, folder):
        raise StartupError(
            f"the database is at revision {revision}, which this release does not know:"
            " it was made by a later one"
        )
    return revision


def _check_empty(connection: sa.Connection) -> None:
    revision = read_revision(connection)
    check_owner(sa.inspect(connection).get_table_names(), is_migrated=revision is not None)
    if revision is not None:
        raise StartupError(
            "the database has tables of Corral: a backup is restored only where nothing is"
        )


def _upgrade(connection: sa.Connection, folder: Path) -> None:
    command.upgrade(configuration(connection, folder), "head")
    if connection.dialect.name == "sqlite":
        # Foreign keys are off while tables are recreated; an error rolls the upgrade back.
        broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
        if broken:
            tables = ", ".join(sorted({row[0] for row in broken}))
            raise StartupError(f"the upgrade would leave rows with missing parents in {tables}")


def _context(connection: sa.Connection) -> MigrationContext:
    options = {"compare_server_default": True, "include_name": _is_mapped}
    return MigrationContext.configure(connection, opts=options)


def _is_mapped(name: str | None, kind: str, _parents: object) -> bool:
    """Whether to compare a table or column. Not the full-text index of chunks, the tables of FTS5,
    and columns that are being converted."""
    if name is None or kind not in ("table", "column"):
        return True
    return not (name.startswith(_UNMAPPED_TABLE) or name.endswith(OLD_SUFFIX))


async def _run(engine: AsyncEngine, work: Callable[[sa.Connection], ResultT]) -> ResultT:
    with _translated_errors():
        async with engine.begin() as connection:
            return await connection.run_sync(work)


@contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        yield
    except (DBAPIError, PostgresError) as error:  # the second of a connection that is refused
        is_statement = isinstance(error, DBAPIError)
        reason = error.orig if is_statement else error
        hint = _TIMEOUT_HINT if is_statement and is_timeout(error) else ""
        kind = StartupOutage if is_outage(error) else StartupError
        raise kind(f"the database cannot be used: {reason}{hint}") from error
    except OSError as error:
        reason = str(error) or "it does not answer"
        raise StartupOutage(f"the database cannot be used: {reason}") from error
