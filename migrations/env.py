"""Alembic environment: migrates over a connection that `control_svc.db.migrations` has opened.

An upgrade is one transaction. On PostgreSQL an advisory lock serializes migrations, and a short
`lock_timeout` makes a migration fail rather than block the running services.
"""

from alembic import context
from sqlalchemy import Connection, text

from control_svc.schema import METADATA

_ADVISORY_LOCK = 5_070_451_133  # an arbitrary number
_TIMEOUTS = {"lock_timeout": "4s", "statement_timeout": "300s"}


def migrate(connection: Connection) -> None:
    """Run the migrations of the current command."""
    is_sqlite = connection.dialect.name == "sqlite"
    context.configure(
        connection=connection,
        target_metadata=METADATA,
        transactional_ddl=True,
        render_as_batch=is_sqlite,  # SQLite alters a table by recreating it
        compare_server_default=True,
    )
    with context.begin_transaction():
        if not is_sqlite:
            for name, value in _TIMEOUTS.items():
                connection.execute(text(f"SET LOCAL {name} = '{value}'"))
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})"))
        context.run_migrations()


migrate(context.config.attributes["connection"])
