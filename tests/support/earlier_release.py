"""States of installations of earlier releases, brought into a folder and a database as if they had
been left a minute ago."""

import asyncio
import json
import sqlite3
import tarfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]

STATES = Path(__file__).resolve().parents[1] / "upgrade" / "data"
AGE = timedelta(minutes=1)
"""Longer than a lease, shorter than anything that expires."""
_EPOCH_ENDS = "2000"
_HISTORY = "usage"
"""A table of sums over hours and days, which stay where they are."""


def known_of(release: str, database: str) -> dict[str, Any]:
    """What clients of the installation knew."""
    text = (STATES / release / f"{database}.json").read_text(encoding="utf-8")
    known: dict[str, Any] = json.loads(text)
    return known


def unpack(release: str, database: str, folder: Path, url: str | None = None) -> None:
    """Bring a state into a folder, and into an empty database where it is one of PostgreSQL."""
    with tarfile.open(STATES / release / f"{database}.tar.xz") as packed:
        packed.extractall(folder, filter="data")
    made_at = datetime.fromisoformat(known_of(release, database)["made_at"])
    delta = datetime.now(UTC) - AGE - made_at
    if url is None:
        _move_sqlite(folder / "control" / "control.sqlite3", delta)
    else:
        dump = folder / "dump.sql"
        asyncio.run(_load_postgres(url, dump.read_text(encoding="utf-8"), delta))
        dump.unlink()


def _move_sqlite(path: Path, delta: timedelta) -> None:
    """Move all times of a database."""
    connection = sqlite3.connect(path)
    connection.create_function("moved", 1, lambda text: _moved(text, delta), deterministic=True)
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (table,) in tables:
        for _, column, kind, *_ in connection.execute(f'PRAGMA table_info("{table}")').fetchall():
            if kind == "DATETIME" and table != _HISTORY:
                statement = f'UPDATE "{table}" SET "{column}" = moved("{column}")'  # noqa: S608  # names of the schema
                connection.execute(statement)
    connection.commit()
    connection.close()


def _moved(text: str | None, delta: timedelta) -> str | None:
    if text is None or text < _EPOCH_ENDS:  # a span of time, which SQLAlchemy stores as a date
        return text
    return (datetime.fromisoformat(text) + delta).isoformat(" ", "microseconds")


async def _load_postgres(url: str, dump: str, delta: timedelta) -> None:
    """Load a dump, and move all times of it."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(dump)
        columns = await connection.fetch(
            "SELECT table_name, column_name FROM information_schema.columns"
            " WHERE table_schema = 'public' AND data_type = 'timestamp with time zone'"
        )
        for table, column in columns:
            if table != _HISTORY:
                statement = f'UPDATE public."{table}" SET "{column}" = "{column}" + $1'  # noqa: S608  # names of the schema
                await connection.execute(statement, delta)
    finally:
        await connection.close()
