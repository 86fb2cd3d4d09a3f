"""Limits of the connections to the database: pools, timeouts and isolation levels.

Every statement that can wait for a lock has a bound. Beyond it transactions raise
UpstreamUnavailable, which callers retry, and migrations StartupError; nothing was changed then.
Deadlocks need no bound: PostgreSQL detects them after a second and one of the two is retried.
"""

from typing import Final, NamedTuple

WRITE_ISOLATION: Final = "READ COMMITTED"
"""Of writes and migrations on PostgreSQL: writers lock the rows that they depend on, and must see
what the one before them has committed."""
READ_ISOLATION: Final = "REPEATABLE READ"
"""Of reads on PostgreSQL: all queries of a read see the same snapshot. Reads lock no rows."""
SQLITE_WRITE: Final = "BEGIN IMMEDIATE"
"""Begins writes and migrations on SQLite: waits for other writers at the start, since a transaction
that has read cannot wait for them later."""
SQLITE_READ: Final = "BEGIN"
"""Begins reads on SQLite, which see one snapshot and wait for no lock."""
SQLITE_READERS: Final = 4
"""Connections that read on SQLite; each has a thread. One more writes, and one migrates."""


class DatabaseLimits(NamedTuple):
    """Sizes of pools, and times in seconds."""

    pool_size: int = 10
    """Connections of a process to PostgreSQL that stay open; as many again are opened under load.
    One of them receives notifications."""
    connect_s: float = 10.0
    """Wait for a new connection to PostgreSQL."""
    pool_s: float = 30.0
    """Wait for a free connection, on SQLite for the one that writes: the default deadline of a
    call, whose result is not used later."""
    lock_s: float = 10.0
    """Wait for one lock: on a row, a table or an advisory lock of PostgreSQL, or of another program
    on the file of SQLite. Transactions take milliseconds, so its holder hangs."""
    statement_s: float = 30.0
    """Duration of a statement on PostgreSQL: as `pool_s`."""
    idle_transaction_s: float = 60.0
    """Time without a statement in a transaction on PostgreSQL, which then ends with its locks: its
    process hangs or is unreachable."""
    migration_lock_s: float = 4.0
    """As `lock_s`, in migrations: all statements on a table wait behind an ALTER TABLE that waits,
    and must not fail because of it."""
    migration_statement_s: float = 300.0
    """As `statement_s`, in migrations, which build indexes and rewrite tables. Also the wait for
    the migration of another process, during which no lock is held."""

    def postgres_settings(self) -> dict[str, str]:
        """Server settings of the connections of the service."""
        return self._settings(self.lock_s, self.statement_s)

    def postgres_migration_settings(self) -> dict[str, str]:
        return self._settings(self.migration_lock_s, self.migration_statement_s)

    def _settings(self, lock_s: float, statement_s: float) -> dict[str, str]:
        times = {
            "lock_timeout": lock_s,
            "statement_timeout": statement_s,
            "idle_in_transaction_session_timeout": self.idle_transaction_s,
        }
        return {name: f"{time_s * 1000:.0f}ms" for name, time_s in times.items()}


LIMITS: Final = DatabaseLimits()
