"""The base class of tables, types of columns, packed columns, tables of the installation."""

import sys
from array import array
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    DateTime,
    Dialect,
    LargeBinary,
    MetaData,
    String,
    Text,
    TypeDecorator,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

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


class CounterRow(Table):
    """Numbers that only grow, for all control processes."""

    __tablename__ = "counters"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[int] = mapped_column(BigInteger)


class SecretRow(Table):
    """Secrets that all control processes of an installation share."""

    __tablename__ = "secrets"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[bytes] = mapped_column(LargeBinary)


def pack_texts(texts: Sequence[bytes]) -> bytes:
    """The lengths, 4 bytes each, and then the texts."""
    return pack_ints([len(text) for text in texts]) + b"".join(texts)


def unpack_texts(packed: bytes, count: int) -> list[bytes]:
    """The texts that were packed; their count is kept beside them."""
    start, texts = 4 * count, []
    for length in unpack_ints(packed[:start]):
        texts.append(packed[start : start + length])
        start += length
    return texts


def pack_ints(values: Sequence[int]) -> bytes:
    """Numbers of 32 bits, little-endian. Raises OverflowError for larger ones."""
    return _in_order(array("i", values)).tobytes()


def unpack_ints(packed: bytes) -> list[int]:
    """The numbers that were packed."""
    values = array("i")
    values.frombytes(packed)
    return _in_order(values).tolist()


def _in_order(values: "array[int]") -> "array[int]":
    """Between this machine's byte order and the column's."""
    if sys.byteorder == "big":
        values.byteswap()
    return values
