"""Opens databases by URL.

SQLite allows one writer at a time; a second one gets "database is locked" after a timeout. So there
is one connection that writes, used in order of arrival, and the folders of the data and of the
SQLite file are locked against other processes. PostgreSQL allows any number of writers.
`limits.py` has the sizes of the pools, the timeouts and the isolation levels.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import (
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    closing,
)
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from control_svc.db.disk_reserve import DiskReserve
from control_svc.db.limits import (
    LIMITS,
    READ_ISOLATION,
    SQLITE_READ,
    SQLITE_READERS,
    SQLITE_WRITE,
    WRITE_ISOLATION,
    DatabaseLimits,
)
from control_svc.db.notifications import LocalNotifications, Notifications, PostgresNotifications
from control_svc.db.tables import check_owner
from control_svc.db.transaction import (
    Clock,
    CrossProjectTransactions,
    Transactions,
    TransactionTurns,
)
from control_svc.urls import parse_database_url
from svc_kit.fair_semaphore import FairSemaphore
from svc_kit.lifecycle import StartupError
from svc_kit.local_files import lock_folder

FILE_NAME: Final = "control.sqlite3"
LOCK_NAME: Final = "control.lock"


class Database(NamedTuple):
    writer: AsyncEngine
    migrator: AsyncEngine
    """For migrations: with their own limits, and without foreign keys on SQLite, where altering a
    table means to drop and recreate it, which would delete the referencing rows."""
    across_projects: CrossProjectTransactions
    is_shared: bool
    """Whether other control processes may use the database at the same time."""
    notifications: Notifications
    connect_dedicated: Callable[[], AsyncEngine] | None
    """Opens an engine with one connection outside the pool; None unless `is_shared`."""
    clock: Clock | None
    """Replaces the clock of the database."""

    @property
    def transactions(self) -> Transactions:
        return Transactions(self.across_projects)


@asynccontextmanager
async def open_database(
    url: str | None,
    data_dir: Path,
    clock: Clock | None = None,
    limits: DatabaseLimits = LIMITS,
) -> AsyncIterator[Database]:
    """Open the database of a URL, or SQLite in the data folder if `url` is None.

    `clock` replaces the clock of the database. Raises StartupError if the URL is invalid or another
    process uses the data folder.
    """
    target = _target(url, data_dir)
    is_postgres = target.get_backend_name() == "postgresql"
    async with (
        _open_postgres(target, clock, limits)
        if is_postgres
        else _open_sqlite(target, data_dir, clock, limits)
    ) as database:
        yield database


@asynccontextmanager
async def _open_postgres(
    target: sa.URL, clock: Clock | None, limits: DatabaseLimits
) -> AsyncIterator[Database]:
    settings = limits.postgres_settings()
    engine = _postgres(target, limits, settings, size=limits.pool_size)
    migrator = _postgres(target, limits, limits.postgres_migration_settings(), size=1)
    reader = engine.execution_options(isolation_level=READ_ISOLATION)
    notifications = PostgresNotifications(engine)
    # One connection receives notifications, and as many as the pool has are opened under load.
    semaphore = FairSemaphore(2 * limits.pool_size - 1)
    turns = TransactionTurns(semaphore, semaphore, limits.pool_s)
    transactions = CrossProjectTransactions(engine, reader, notifications, clock, turns=turns)
    try:
        async with notifications.running():
            yield Database(
                engine,
                migrator,
                transactions,
                True,
                notifications,
                lambda: _postgres(target, limits, settings, size=1),
                clock,
            )
    finally:
        await transactions.close()
        await engine.dispose()
        await migrator.dispose()


@asynccontextmanager
async def _open_sqlite(
    target: sa.URL, data_dir: Path, clock: Clock | None, limits: DatabaseLimits
) -> AsyncIterator[Database]:
    with ExitStack() as stack:
        for folder in _resolved(Path(str(target.database)).parent, data_dir):
            stack.enter_context(lock_data_folder(folder))
        await asyncio.to_thread(_check_owner, Path(str(target.database)))
        wait, migration_wait = map(_busy_timeout, (limits.lock_s, limits.migration_lock_s))
        migrator = _sqlite(target, limits, 1, SQLITE_WRITE, (migration_wait, *_MIGRATOR))
        writer = _sqlite(target, limits, 1, SQLITE_WRITE, (wait, *_WRITER))
        reader = _sqlite(target, limits, SQLITE_READERS, SQLITE_READ, (wait, *_READER))
        notifications = LocalNotifications()
        reserve = DiskReserve(Path(str(target.database)).parent)
        await asyncio.to_thread(reserve.check)
        await asyncio.to_thread(reserve.fill)
        transactions = CrossProjectTransactions(
            writer,
            reader,
            notifications,
            clock or _utc_now,
            reserve,
            TransactionTurns(FairSemaphore(SQLITE_READERS), FairSemaphore(1), limits.pool_s),
        )
        try:
            yield Database(writer, migrator, transactions, False, notifications, None, clock)
        finally:
            await transactions.close()
            for engine in (reader, writer, migrator):
                await engine.dispose()


def sqlite_file(url: str | None, data_dir: Path) -> Path | None:
    """The file of a URL, or in the data folder if `url` is None; None for PostgreSQL."""
    target = _target(url, data_dir)
    return None if target.get_backend_name() == "postgresql" else Path(str(target.database))


class ReadOnlyDatabase(NamedTuple):
    """A database that other processes may be using."""

    engine: AsyncEngine
    transactions: CrossProjectTransactions
    """Only for reads."""
    file: Path | None
    """The file of SQLite."""


@asynccontextmanager
async def open_read_only(url: str | None, data_dir: Path) -> AsyncIterator[ReadOnlyDatabase]:
    """Open an existing database without a lock and without changing it.

    Statements may take any time. Raises StartupError.
    """
    target, file = _target(url, data_dir), sqlite_file(url, data_dir)
    if file is None:
        unlimited = {"statement_timeout": "0", "idle_in_transaction_session_timeout": "0"}
        read_only = {"default_transaction_read_only": "on"}
        settings = LIMITS.postgres_settings() | unlimited | read_only
        engine = _postgres(target, LIMITS, settings, size=2)
        engine = engine.execution_options(isolation_level=READ_ISOLATION)
    else:
        if not file.is_file():
            raise StartupError(f"there is no database {file}")
        uri = target.set(database=f"file:{quote(str(file))}")
        uri = uri.update_query_dict({"mode": "ro", "uri": "true"})
        engine = _sqlite(uri, LIMITS, 2, SQLITE_READ, (_busy_timeout(LIMITS.lock_s), *_READER))
    try:
        transactions = CrossProjectTransactions(engine, engine, LocalNotifications())
        yield ReadOnlyDatabase(engine, transactions, file)
    finally:
        await engine.dispose()


def _resolved(*folders: Path) -> set[Path]:
    return {folder.resolve() for folder in folders}


def _utc_now() -> datetime:
    return datetime.now(UTC)


def _busy_timeout(timeout_s: float) -> str:
    return f"PRAGMA busy_timeout = {timeout_s * 1000:.0f}"


_FOREIGN_KEYS: Final = "PRAGMA foreign_keys = ON"
# FULL: a commit survives a power cut.
_DURABLE: Final = ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL")
_MIGRATOR: Final = (*_DURABLE, "PRAGMA foreign_keys = OFF")
_WRITER: Final = (*_DURABLE, _FOREIGN_KEYS)
_READER: Final = (_FOREIGN_KEYS, "PRAGMA query_only = ON")


def _target(url: str | None, data_dir: Path) -> sa.URL:
    if url is None:
        return sa.URL.create("sqlite+aiosqlite", database=str(data_dir / FILE_NAME))
    try:
        return parse_database_url(url)
    except ValueError as error:
        raise StartupError(str(error)) from None


def _postgres(
    target: sa.URL, limits: DatabaseLimits, settings: dict[str, str], *, size: int
) -> AsyncEngine:
    return create_async_engine(
        target,
        isolation_level=WRITE_ISOLATION,
        pool_pre_ping=True,
        pool_size=size,
        max_overflow=size,
        pool_timeout=limits.pool_s,
        json_serializer=str,  # documents are JSON text already
        connect_args={"server_settings": settings, "timeout": limits.connect_s},
    )


def _sqlite(
    target: sa.URL, limits: DatabaseLimits, size: int, begin: str, pragmas: tuple[str, ...]
) -> AsyncEngine:
    engine = create_async_engine(target, pool_size=size, max_overflow=0, pool_timeout=limits.pool_s)

    @sa.event.listens_for(engine.sync_engine, "connect")
    def prepare(connection: DBAPIConnection, _record: Any) -> None:
        # The driver would begin transactions itself, and deferred ones.
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in pragmas:
            cursor.execute(pragma)
        cursor.close()

    @sa.event.listens_for(engine.sync_engine, "begin")
    def start(connection: Any) -> None:
        connection.exec_driver_sql(begin)

    return engine


def lock_data_folder(folder: Path) -> AbstractContextManager[None]:
    """Lock a folder against other processes while the context is open. Raises StartupError."""
    return lock_folder(
        folder,
        LOCK_NAME,
        holder="control process",
        remedy="stop it, choose another data_dir, or use PostgreSQL (database_url), which several"
        " processes can share",
    )


def _check_owner(file: Path) -> None:
    """Raise StartupError for an SQLite file of another application, before it is changed: already
    the connections of the service would change its journal mode.
    """
    if not file.is_file():
        return
    try:
        uri = f"file:{quote(str(file))}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            check_owner(name for (name,) in rows)
    except sqlite3.Error as error:
        raise StartupError(f"the database {file} cannot be used: {error}") from error
