"""The PostgreSQL of the tests: fast, because nothing in it outlives its test."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from control_svc.db.tables import Table
from tools.postgres import Postgres as Postgres
from tools.postgres import create_database as create_database
from tools.postgres import execute as execute
from tools.postgres import run_postgres
from tools.postgres import value_of as value_of

# Nothing needs to survive a power cut.
_CARELESS = (
    "ALTER SYSTEM SET fsync = off",
    "ALTER SYSTEM SET full_page_writes = off",
    "SELECT pg_reload_conf()",
)


def empty(url: str) -> None:
    """Take everything out of our tables. (TRUNCATE makes the files of each of them anew.)"""
    tables = reversed(Table.metadata.sorted_tables)
    asyncio.run(execute(url, *(str(table.delete()) for table in tables)))


@contextmanager
def a_postgres() -> Iterator[str]:
    """A server with nothing in it; its URL, without the name of a database."""
    with a_postgres_server() as server:
        yield server.url


@contextmanager
def a_postgres_server(*, careless: bool = True) -> Iterator[Postgres]:
    """A server with nothing in it."""
    with run_postgres() as server:
        if careless:
            asyncio.run(execute(server.url.replace("NAME", "postgres"), *_CARELESS))
        yield server
