"""PostgreSQL servers for tests, without durability."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from control_svc.db.tables import Table
from control_svc.vector_stores.search.chunk_index import TABLE as INDEX_TABLE
from tools.postgres import Postgres as Postgres
from tools.postgres import create_database as create_database
from tools.postgres import execute as execute
from tools.postgres import fetch_value as fetch_value
from tools.postgres import run_postgres

_NOT_DURABLE = (
    "ALTER SYSTEM SET fsync = off",
    "ALTER SYSTEM SET full_page_writes = off",
    "SELECT pg_reload_conf()",
)


def empty(url: str) -> None:
    """Delete all rows. TRUNCATE is slower, since it recreates the files of each table."""
    deletes = [str(table.delete()) for table in reversed(Table.metadata.sorted_tables)]
    deletes.append(f"DELETE FROM {INDEX_TABLE}")  # noqa: S608  (a constant)
    without_triggers = "SET session_replication_role = replica"  # those of the audit log
    asyncio.run(execute(url, ";".join([without_triggers, *deletes])))  # one round trip


@contextmanager
def run_test_postgres() -> Iterator[str]:
    """Run an empty server; yield its URL, with NAME for the database."""
    with run_postgres_server() as server:
        yield server.url


@contextmanager
def run_postgres_server(*, durable: bool = False) -> Iterator[Postgres]:
    with run_postgres() as server:
        if not durable:
            asyncio.run(execute(server.url.replace("NAME", "postgres"), *_NOT_DURABLE))
        yield server
