"""Restores the data of earlier releases, with all times moved so that it looks a minute old."""

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
"""Age of the restored data: longer than a lease, shorter than any expiry time."""
_EPOCH_ENDS = "2000"
_HISTORY = ("usage", "audit_events")
"""Tables whose times do not move: sums by hour and day, and a log that nobody can change."""


def read_client_state(release: str, database: str) -> dict[str, Any]:
    """The ids and contents that clients of the installation had received."""
    text = (STATES / release / f"{database}.json").read_text(encoding="utf-8")
    state: dict[str, Any] = json.loads(text)
    return state


def unpack(release: str, database: str, folder: Path, url: str | None = None) -> None:
    """Restore a folder, and an empty PostgreSQL database if there is a URL."""
    with tarfile.open(STATES / release / f"{database}.tar.xz") as packed:
        packed.extractall(folder, filter="data")
    made_at = datetime.fromisoformat(read_client_state(release, database)["made_at"])
    delta = datetime.now(UTC) - AGE - made_at
    if url is None:
        _shift_sqlite(folder / "control" / "control.sqlite3", delta)
    else:
        dump = folder / "dump.sql"
        asyncio.run(_load_postgres(url, dump.read_text(encoding="utf-8"), delta))
        dump.unlink()


def _shift_sqlite(path: Path, delta: timedelta) -> None:
    """Add `delta` to all times of a database."""
    connection = sqlite3.connect(path)
    connection.create_function("shift", 1, lambda text: _shift(text, delta), deterministic=True)
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (table,) in tables:
        for _, column, kind, *_ in connection.execute(f'PRAGMA table_info("{table}")').fetchall():
            if kind == "DATETIME" and table not in _HISTORY:
                statement = f'UPDATE "{table}" SET "{column}" = shift("{column}")'  # noqa: S608  # names of the schema
                connection.execute(statement)
    connection.commit()
    connection.close()


def _shift(text: str | None, delta: timedelta) -> str | None:
    if text is None or text < _EPOCH_ENDS:  # a span of time, which SQLAlchemy stores as a date
        return text
    return (datetime.fromisoformat(text) + delta).isoformat(" ", "microseconds")


async def _load_postgres(url: str, dump: str, delta: timedelta) -> None:
    """Load a dump and add `delta` to all its times."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(dump)
        columns = await connection.fetch(
            "SELECT table_name, column_name FROM information_schema.columns"
            " WHERE table_schema = 'public' AND data_type = 'timestamp with time zone'"
        )
        for table, column in columns:
            if table not in _HISTORY:
                statement = f'UPDATE public."{table}" SET "{column}" = "{column}" + $1'  # noqa: S608  # names of the schema
                await connection.execute(statement, delta)
    finally:
        await connection.close()
