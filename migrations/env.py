"""Where Alembic meets a connection that `control_svc.db.migrations` has opened.

An upgrade is one transaction: all of it or nothing. On PostgreSQL an advisory lock lets one process
migrate at a time, and a migration that cannot have its locks soon gives up instead of stopping
everybody.
"""

from alembic import context
from sqlalchemy import Connection, text

from control_svc.schema import METADATA

_ADVISORY_LOCK = 5_070_451_133  # any number that nobody else takes
_PATIENCE = {"lock_timeout": "4s", "statement_timeout": "300s"}


def migrate(connection: Connection) -> None:
    """Run what the command asks for on an open connection."""
    is_sqlite = connection.dialect.name == "sqlite"
    context.configure(
        connection=connection,
        target_metadata=METADATA,
        transactional_ddl=True,
        render_as_batch=is_sqlite,  # SQLite changes a table by making it anew
        compare_server_default=True,
    )
    with context.begin_transaction():
        if not is_sqlite:
            for name, value in _PATIENCE.items():
                connection.execute(text(f"SET LOCAL {name} = '{value}'"))
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})"))
        context.run_migrations()


migrate(context.config.attributes["connection"])
