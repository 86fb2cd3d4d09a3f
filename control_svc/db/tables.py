"""Base class of tables, column types, packed columns, and tables of the whole installation."""

import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from svc_kit.lifecycle import StartupError

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
"""Names of all constraints, so that later migrations can drop them."""


class Instant(sa.TypeDecorator[datetime]):
    """A time with a time zone. SQLite stores no time zones, so values are UTC there."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        """Convert to UTC."""
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> datetime | None:
        """Set the time zone UTC."""
        return None if value is None else value.replace(tzinfo=UTC)


# Ids and keys are ordered by their bytes, as in SQLite, whatever the collation of the database.
Key = sa.String(64).with_variant(sa.String(64, collation="C"), "postgresql")
Project = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


class Table(DeclarativeBase):
    """Base class of all tables."""

    metadata = sa.MetaData(naming_convention=NAMING)


class OwnedRow(Table):
    """Base class of tables whose rows belong to projects."""

    __abstract__ = True

    project: Mapped[str] = mapped_column(Project, primary_key=True, sort_order=-2)


class ObjectRow(OwnedRow):
    """Base class of tables whose rows are the objects of projects."""

    __abstract__ = True

    id: Mapped[str] = mapped_column(Key, primary_key=True, sort_order=-1)


BLOB: Final = "blob"
"""In the `info` of a column that refers to blobs: the columns of their size and SHA-256."""


def blob_key(size: str, digest: str | None = None) -> Mapped[str]:
    """A column that refers to a blob. Another one has its size, and one its SHA-256, if any."""
    return mapped_column(Key, unique=True, info={BLOB: (size, digest)})


def blob_columns() -> list[sa.Column[Any]]:
    """The columns of all imported tables that refer to blobs."""
    tables = Table.metadata.sorted_tables
    return [column for table in tables for column in table.columns if BLOB in column.info]


ValueT = TypeVar("ValueT")


def read_row(target: type[ValueT], row: Table, **others: Any) -> ValueT:
    """Build a dataclass from the columns that are named like its fields, and from `others`."""
    names = [name for name in _shared_names(target, row) if name not in others]
    return target(**{name: getattr(row, name) for name in names}, **others)


def row_values(table: type[Table], value: Any) -> dict[str, Any]:
    """The fields of a dataclass that are named like columns of the table."""
    return {name: getattr(value, name) for name in _shared_names(value, table)}


def _shared_names(dataclass: Any, table: Table | type[Table]) -> list[str]:
    columns = table.__table__.columns
    return [each.name for each in fields(dataclass) if each.name in columns]


_FIRST_TABLES: Final = frozenset({"files", "uploads", "upload_parts"})
"""Tables that exist since the first migration."""


def check_owner(tables: Iterable[str], *, is_migrated: bool = True) -> None:
    """Raise StartupError if a database with these tables belongs to another application: if it has
    some, but not those of Corral, or is not at a revision (`is_migrated`).
    """
    others = set(tables) - {"alembic_version"}
    if others and not (is_migrated and others >= _FIRST_TABLES):
        examples = ", ".join(sorted(others)[:3])
        raise StartupError(
            f"the database belongs to another application (it has the tables {examples});"
            " nothing was changed: give Corral a database of its own (database_url, data_dir)"
        )


class CounterRow(Table):
    """Monotonic counters shared by all control processes."""

    __tablename__ = "counters"

    name: Mapped[str] = mapped_column(sa.String(64), primary_key=True)
    value: Mapped[int] = mapped_column(sa.BigInteger)


class SecretRow(Table):
    """Secrets shared by all control processes."""

    __tablename__ = "secrets"

    name: Mapped[str] = mapped_column(sa.String(64), primary_key=True)
    value: Mapped[bytes] = mapped_column(sa.LargeBinary)


def pack_texts(texts: Sequence[bytes]) -> bytes:
    """Pack texts: their lengths, 4 bytes each, then the texts."""
    return pack_ints([len(text) for text in texts]) + b"".join(texts)


def unpack_texts(packed: bytes, count: int) -> list[bytes]:
    """Unpack texts; their count is stored separately."""
    start, texts = 4 * count, []
    for length in unpack_ints(packed[:start]):
        texts.append(packed[start : start + length])
        start += length
    return texts


def pack_ints(values: Sequence[int]) -> bytes:
    """Pack integers of 32 bits, little-endian. Raises OverflowError for larger ones."""
    return _swap_if_big_endian(array("i", values)).tobytes()


def unpack_ints(packed: bytes) -> list[int]:
    """Unpack integers."""
    values = array("i")
    values.frombytes(packed)
    return _swap_if_big_endian(values).tolist()


def _swap_if_big_endian(values: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        values.byteswap()
    return values
