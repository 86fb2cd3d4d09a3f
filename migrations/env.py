"""Alembic environment: migrates over a connection that `control_svc.db.migrations` has opened.

An upgrade is one transaction. On PostgreSQL an advisory lock serializes migrations. The timeouts
are those of the connection, from `control_svc.db.limits`.
"""

import sqlalchemy as sa
from alembic import context

from control_svc.slices import METADATA

_ADVISORY_LOCK = 5_070_451_133  # an arbitrary number


def migrate(connection: sa.Connection) -> None:
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
            # Bounded by `statement_timeout`: waiting for another migration blocks no service.
            connection.execute(sa.text("SET LOCAL lock_timeout = 0"))
            connection.execute(sa.text(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})"))
            connection.execute(sa.text("SET LOCAL lock_timeout TO DEFAULT"))
        if check := context.config.attributes.get("check"):
            check(connection)
        context.run_migrations()


migrate(context.config.attributes["connection"])
