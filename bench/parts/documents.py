"""The conversion of the documents of release 0.1 to JSON: its time for each row."""

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import orjson

from bench.measurement import CORRAL, Measurement, Result
from bench.stage import Part, Stage
from control_svc.db import migrations
from control_svc.db.documents import convert_rows
from control_svc.db.engine import open_database
from tools.postgres import create_database, run_postgres

ROWS, QUICK_ROWS = 1_000_000, 2_000
BEFORE: Final = "0014"
"""The last revision with documents as bytes."""
DOCUMENT: Final = orjson.dumps(
    {
        "kind": "message",
        "role": "assistant",
        "content": [{"kind": "text", "text": "The quick brown fox. " * 30, "annotations": []}],
    }
)
MAX_SCHEMA_S: Final = 5.0
"""Maximum time of `corral db upgrade`, which changes no rows."""
FILL: Final = (
    "WITH RECURSIVE numbers(number) AS"
    " (SELECT 1 UNION ALL SELECT number + 1 FROM numbers WHERE number < {rows})"
    " INSERT INTO items (project, id, status, created_at, document)"
    " SELECT 'p', 'msg_' || number, 'completed', '2026-01-01', {document} FROM numbers"
)


def measure(stage: Stage) -> Iterator[Measurement]:
    """Upgrade a database with items of release 0.1 and convert them, on both databases."""
    with run_postgres() as postgres, tempfile.TemporaryDirectory() as folder:
        for name, url in (("SQLite", None), ("PostgreSQL", create_database(postgres.url))):
            rows = stage.sizes(ROWS, QUICK_ROWS)
            schema_s, conversion_s = stage.runner.run(_upgrade(Path(folder), url, rows))
            yield Measurement(f"{name}, schema", 0, CORRAL, round(schema_s, 3), {"rows": rows})
            yield Measurement(
                f"{name}, rows", 0, CORRAL, round(conversion_s / rows * 1e6, 1), {"rows": rows}
            )


async def _upgrade(folder: Path, url: str | None, rows: int) -> tuple[float, float]:
    """Return the seconds of the schema's migration and of the conversion."""
    async with open_database(url, folder) as database:
        await migrations.upgrade(database.migrator)
        await migrations.downgrade(database.migrator, BEFORE)
        document = f"X'{DOCUMENT.hex()}'" if url is None else f"'\\x{DOCUMENT.hex()}'::bytea"
        async with database.migrator.begin() as connection:
            if url is not None:
                await connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
            await connection.exec_driver_sql(FILL.format(rows=rows, document=document))
        started = time.perf_counter()
        await migrations.upgrade(database.migrator)
        migrated = time.perf_counter()
        while await database.across_projects.write(convert_rows):
            pass
        return migrated - started, time.perf_counter() - migrated


def conclude(measurements: Sequence[Measurement]) -> list[Result]:
    """The time of the migration, which has a limit, and of each row, which has none."""
    return [
        Result(
            measurement.load,
            (measurement.value,) if is_schema else (),
            MAX_SCHEMA_S,
            measurement.value,
            0,
            "",
            unit="s" if is_schema else "µs a row",
            bound="at most",
        )
        for measurement in measurements
        for is_schema in [measurement.load.endswith("schema")]
    ]


PART = Part(
    name="documents",
    title="Conversion of documents to JSON",
    text=(
        "A database of release 0.1 with a million items of 700 bytes: the time of the migration of"
        " its schema, and the time for each row of the conversion, which runs in the background."
    ),
    measure=measure,
    conclude=conclude,
)
