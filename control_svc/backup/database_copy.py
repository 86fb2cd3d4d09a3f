"""Copies of databases: SQLite by its online backup, PostgreSQL by COPY in one snapshot.

`pg_dump` is not needed: it must be at least as new as the server and installed beside Corral, while
the schema is that of the migrations anyway.
"""

import gzip
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import sqlalchemy as sa
from asyncpg.exceptions import (  # type: ignore[import-untyped]  # it has no types
    DataError,
    SyntaxOrAccessError,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from control_svc.backup.layout import Manifest, TableCopy
from control_svc.core import INSTALLATION
from control_svc.db import migrations
from control_svc.slices import METADATA
from svc_kit.lifecycle import StartupError
from svc_kit.local_files import open_regular

_COMPRESSION: Final = 1
# The column of pgvector is left out: it is filled from `vector_chunks`, and the extension may be
# missing where the backup is restored.
_COLUMNS: Final = sa.text(
    "SELECT c.relname, array_agg(a.attname::text ORDER BY a.attnum)"
    " FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid"
    " JOIN pg_type AS t ON t.oid = a.atttypid"
    " WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace"
    " AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''"
    " AND t.typname <> 'vector' AND c.relname <> 'alembic_version' GROUP BY c.relname"
)
_SQLITE_COLUMNS: Final = (
    "SELECT m.name, c.name, '' FROM sqlite_master AS m, pragma_table_xinfo(m.name) AS c"
    " WHERE m.type = 'table' UNION ALL"
    " SELECT type || ' ' || name, '', sql FROM sqlite_master WHERE type IN ('trigger', 'view')"
)
"""Tables with each column, then triggers and views with the statement that creates them. That of a
table depends on the way on which it came to its columns."""


def copy_sqlite(file: Path, copy: Path) -> None:
    """Copy an SQLite file in one step, which reads one snapshot and blocks no writer.

    Raises sqlite3.Error.
    """
    uri = f"file:{quote(str(file))}?mode=ro"
    with (
        closing(sqlite3.connect(uri, uri=True)) as source,
        closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target)
        target.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it


async def copy_tables(
    connection: AsyncConnection, new_file: Callable[[str], Path]
) -> list[TableCopy]:
    """Write all tables of PostgreSQL to files; the connection has a transaction with a snapshot."""
    rows = await connection.execute(_COLUMNS)
    columns: dict[str, list[str]] = {name: list(names) for name, names in rows}
    order = [table.name for table in METADATA.sorted_tables if table.name in columns]
    tables = [
        TableCopy(name, columns[name]) for name in (*order, *sorted(columns.keys() - set(order)))
    ]
    driver = await _driver(connection)
    for table in tables:
        query = f"SELECT {_names(table.columns)} FROM {_names([table.table])}"  # noqa: S608  (quoted)
        with gzip.open(new_file(table.file_name), "wb", compresslevel=_COMPRESSION) as file:
            await driver.copy_from_query(query, output=file)
    return tables


async def restore_tables(
    connection: AsyncConnection, folder: Path, tables: Sequence[TableCopy]
) -> None:
    """Fill the tables of a new PostgreSQL database, in the transaction of the connection.

    Raises StartupError if the database has no such table, or a file is not the copy of its table.
    """
    rows = await connection.execute(_COLUMNS)
    columns = {(table, column, "") for table, names in rows for column in names}
    _check_columns(
        columns, {(each.table, column, "") for each in tables for column in each.columns}
    )
    await connection.execute(sa.text("SET LOCAL statement_timeout = 0"))
    # Migrations may have inserted rows.
    await connection.execute(sa.text(f"TRUNCATE {_names([table.table for table in tables])}"))
    driver = await _driver(connection)
    for table in tables:
        path = folder / table.file_name
        try:
            with open_regular(path) as packed, gzip.open(packed) as file:
                await driver.copy_to_table(table.table, source=file, columns=table.columns)
        except (gzip.BadGzipFile, EOFError, zlib.error, DataError, SyntaxOrAccessError) as error:
            raise StartupError(f"the backup is damaged: {path}: {error}") from error


def check_sqlite(file: Path, manifest: Manifest) -> None:
    """Raise StartupError unless a file is a sound SQLite database, the one of a manifest. Creates
    no files beside it.
    """
    uri = f"file:{quote(str(file))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            (problem,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
            if problem != "ok":
                lines = " ".join(problem.split())
                raise StartupError(f"the backup is damaged: its database is not sound: {lines}")
            (revision,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
            query = "SELECT hex(value) FROM secrets WHERE name = ?"
            (installation,) = connection.execute(query, (INSTALLATION,)).fetchone()
            columns = _one_line(connection.execute(_SQLITE_COLUMNS))
    except (sqlite3.Error, TypeError) as error:
        raise StartupError(
            f"the backup is damaged: its database is not one of Corral ({error})"
        ) from error
    if (revision, installation.lower()) != (manifest.revision, manifest.installation):
        raise StartupError(
            f"the backup is damaged: its database is at revision {revision!r} of installation"
            f" {installation.lower()}, its manifest says {manifest.revision!r} of"
            f" {manifest.installation}"
        )
    if migrations.is_known(revision):  # else it is only verified
        with migrations.empty_sqlite(revision) as connection:
            needed = _one_line(connection.exec_driver_sql(_SQLITE_COLUMNS))
        own = {table for table, *_ in needed}
        # Tables of others are not used, but a trigger runs with Corral's statements.
        may_run = ("trigger ", "view ")
        _check_columns(needed, {e for e in columns if e[0] in own or e[0].startswith(may_run)})


def _one_line(rows: Iterable[Any]) -> set[tuple[str, str, str]]:
    """Rows of `_SQLITE_COLUMNS`, without the layout of their statements."""
    return {(table, column, " ".join(statement.split())) for table, column, statement in rows}


def _check_columns(needed: Set[tuple[str, str, str]], found: Set[tuple[str, str, str]]) -> None:
    """Compare the columns of tables, and the statements that create triggers and views, in a backup
    with those of its revision. Raises StartupError."""
    names = {each[:2] for each in needed} & {each[:2] for each in found}
    for each in sorted(needed ^ found, key=lambda each: (each[2], *each)):  # columns first
        problem = "is missing" if each in needed else "does not belong there"
        if each[:2] in names:
            problem = "is defined otherwise"
        raise StartupError(
            "the backup is damaged: its tables are not those of its revision:"
            f" {'.'.join(each[:2]).rstrip('.')} {problem}"
        )


async def _driver(connection: AsyncConnection) -> Any:
    """The connection of asyncpg."""
    return (await connection.get_raw_connection()).driver_connection


def _names(names: Sequence[str]) -> str:
    return ", ".join('"' + name.replace('"', '""') + '"' for name in names)
