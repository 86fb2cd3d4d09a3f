"""The schema of a database: which revision it has, and how it gets the one of this release.

A migration must suit the release that is still running: columns are added before they are needed
and dropped one release after they are not.
"""

import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from control_svc.db.tables import Table
from svc_kit.lifecycle import StartupError

_log = logging.getLogger(__name__)
_PACKAGE: Final = Path(__file__).resolve().parents[1]
_INSTALLED: Final = _PACKAGE / "migrations"
MIGRATIONS: Final = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parent / "migrations"
"""In the package where Corral is installed, beside it in a checkout."""
_UNMAPPED_TABLE: Final = "vector_chunk_index"
"""The full-text index of chunks, which migrations make and no class maps."""
UPGRADE_HINT: Final = "run `corral db upgrade`"
ResultT = TypeVar("ResultT")


def configuration(connection: Connection | None = None) -> Config:
    """Alembic's configuration; commands that touch a database need the connection."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("file_template", "%%(rev)s_%%(slug)s")
    config.attributes["connection"] = connection
    return config


def head() -> str:
    """The revision of this release."""
    return _scripts(MIGRATIONS).get_current_head() or "nothing"


@cache
def _scripts(migrations: Path) -> ScriptDirectory:
    """All migrations of a folder, which are modules to read."""
    return ScriptDirectory(str(migrations))


async def current(engine: AsyncEngine) -> str | None:
    """The revision of a database; None: it is empty."""
    return await _run(engine, lambda connection: _context(connection).get_current_revision())


async def upgrade(engine: AsyncEngine) -> None:
    """Bring a database to the revision of this release; nothing where it has it.

    `engine` is the database's `migrator`. Raises StartupError for a database of a later release,
    and where rows would name parents that are not there.
    """
    found = await _known(engine)
    if found != head():
        await _run(engine, _upgrade)
        _log.info("the database is upgraded from revision %s to %s", found or "nothing", head())


async def downgrade(engine: AsyncEngine, revision: str) -> None:
    """Take a database back; "base" is the empty one. What the later tables hold is lost."""
    await _run(engine, lambda connection: command.downgrade(configuration(connection), revision))


async def check_revision(engine: AsyncEngine) -> None:
    """Raise StartupError unless a database has the revision of this release."""
    found = await _known(engine)
    if found != head():
        raise StartupError(
            f"the database is at revision {found or 'nothing'}, this release needs {head()}:"
            f" {UPGRADE_HINT}"
        )


async def check(engine: AsyncEngine) -> None:
    """As `check_revision`, and its tables are really those that the migrations make."""
    await check_revision(engine)
    differences = await _run(
        engine, lambda connection: compare_metadata(_context(connection), Table.metadata)
    )
    if differences:
        raise StartupError(f"the database is not as its migrations made it: {differences}")


async def _known(engine: AsyncEngine) -> str | None:
    """The revision of a database. Raises StartupError for one of a later release."""
    found = await current(engine)
    if found is not None and found not in {
        each.revision for each in _scripts(MIGRATIONS).walk_revisions()
    }:
        raise StartupError(
            f"the database is at revision {found}, which this release does not know:"
            " it was made by a later one"
        )
    return found


def _upgrade(connection: Connection) -> None:
    command.upgrade(configuration(connection), "head")
    if connection.dialect.name == "sqlite":
        # Foreign keys are off while tables are made anew; what they would have refused is undone.
        broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
        if broken:
            tables = ", ".join(sorted({row[0] for row in broken}))
            raise StartupError(f"the upgrade would leave rows without their parents in {tables}")


def _context(connection: Connection) -> MigrationContext:
    options = {"compare_server_default": True, "include_name": _is_ours}
    return MigrationContext.configure(connection, opts=options)


def _is_ours(name: str | None, kind: str, _parents: object) -> bool:
    """Ignore the full-text index of chunks and the tables that FTS5 keeps beside it."""
    return kind != "table" or name is None or not name.startswith(_UNMAPPED_TABLE)


async def _run(engine: AsyncEngine, work: Callable[[Connection], ResultT]) -> ResultT:
    try:
        async with engine.begin() as connection:
            return await connection.run_sync(work)
    except (OSError, DBAPIError) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        raise StartupError(f"the database cannot be used: {cause}") from error
