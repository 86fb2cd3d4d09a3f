"""What the tables share: their root, the names of their constraints, the types of their columns."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import DateTime, Dialect, MetaData, String, Text, TypeDecorator
from sqlalchemy.orm import DeclarativeBase

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
"""A name for every constraint, so that a migration can drop what an earlier one made."""


class Instant(TypeDecorator[datetime]):
    """A time with its zone. SQLite has no zones: there it is UTC, and gets its zone back."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """To UTC."""
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """From UTC."""
        return None if value is None else value.replace(tzinfo=UTC)


# Ids and keys are ordered by their bytes, as in SQLite; a database's own language may differ.
Key = String(64).with_variant(String(64, collation="C"), "postgresql")
Project = Text().with_variant(Text(collation="C"), "postgresql")


class Table(DeclarativeBase):
    """The root of all tables."""

    metadata = MetaData(naming_convention=NAMING)
