"""JSON documents in columns: TEXT on SQLite, JSONB on PostgreSQL.

Release 0.1 stored them as bytes. Migration 0015 declares the columns, and the service converts the
rows: on SQLite in place, on PostgreSQL from a column NAME_old, which is NULL in converted rows.
Until then both forms are read. The next release drops the old columns and what reads them.
"""

import asyncio
import logging
import re
from itertools import accumulate
from typing import Annotated, Any, Final

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute, Mapped, mapped_column

from control_svc.db.limits import LIMITS
from control_svc.db.tables import Table
from control_svc.db.transaction import CrossProjectTransaction, CrossProjectTransactions
from svc_kit.logs import log_errors

_log = logging.getLogger(__name__)
OLD_SUFFIX: Final = "_old"
ROWS_AT_ONCE: Final = 500
"""Maximum number of rows that one transaction converts."""
BYTES_AT_ONCE: Final = 4 * 1024 * 1024
"""Maximum size of the rows that one transaction converts, except for a single larger one. On
PostgreSQL, text that consists of NUL characters takes up to 2 s per megabyte, other text 20 ms."""

# JSONB refuses the NUL character and unpaired surrogates. They are stored as U+0001 and four
# hexadecimal digits, and so is U+0001 itself.
_REFUSED: Final = "0000|0001|[dD][89a-fA-F][0-9a-fA-F]{2}"
_ESCAPED: Final = re.compile(rf"\\(?:u({_REFUSED})|.)")
_UNESCAPED: Final = re.compile(r"\\(?:u0001([0-9a-fA-F]{4})|.)")


def _escape(document: str) -> str:
    if "\\u" not in document:
        return document
    return _ESCAPED.sub(lambda found: rf"\u0001{found[1]}" if found[1] else found[0], document)


def _unescape(document: str) -> str:
    if "\\u0001" not in document:
        return document
    return _UNESCAPED.sub(lambda found: rf"\u{found[1]}" if found[1] else found[0], document)


def _to_jsonb(document: sa.ColumnElement[bytes]) -> sa.ColumnElement[Any]:
    """Escape and convert bytes in SQL. Backslashes in pairs do not begin an escape sequence."""
    escaped = sa.func.regexp_replace(
        sa.func.convert_from(document, sa.literal_column("'UTF8'")),
        sa.literal_column(rf"'(?<!\\)((?:\\\\)*)\\u({_REFUSED})'"),
        sa.literal_column(r"'\1\\u0001\2'"),
        sa.literal_column("'g'"),
    )
    return sa.cast(escaped, JSONB)


class _JsonText(sa.TypeDecorator[bytes]):
    """A document on SQLite. Rows that are not converted have bytes."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: bytes | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else value.decode()

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> bytes | None:
        """Convert to bytes."""
        return value.encode() if isinstance(value, str) else value


class _Jsonb(sa.TypeDecorator[bytes]):
    """A document on PostgreSQL.

    JSONB sorts the keys of objects and writes numbers without exponents. No reader depends on
    either: JSON that a client sends or a model writes is a string in a document, and the digits of
    a float remain.
    """

    impl = JSONB
    cache_ok = True

    def process_bind_param(self, value: bytes | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else _escape(value.decode())

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> bytes | None:
        """Unescape and convert to bytes."""
        return None if value is None else _unescape(value).encode()

    def column_expression(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """Read text, which the driver does not parse, and the old column in rows to convert."""
        return sa.type_coerce(sa.cast(_current(column), sa.Text), self)


def _old_column(document: Any) -> sa.ColumnElement[bytes]:
    return sa.column(f"{document.name}{OLD_SUFFIX}", sa.LargeBinary, _selectable=document.table)


def _current(document: Any) -> sa.ColumnElement[Any]:
    return sa.func.coalesce(document, _to_jsonb(_old_column(document)), type_=JSONB())


_DOCUMENT: Final = _JsonText().with_variant(_Jsonb(), "postgresql")
Document = Annotated[bytes, mapped_column(_DOCUMENT, nullable=True)]
"""The JSON text of an object or array, in UTF-8. NULL in rows that PostgreSQL has to convert."""


def document_value(
    document: InstrumentedAttribute[bytes], session: AsyncSession
) -> sa.ColumnElement[Any]:
    """A document in an SQL expression, as TEXT or JSONB."""
    if _is_sqlite(session):
        return sa.cast(document, sa.Text)
    return _current(document)


def document_size(
    document: InstrumentedAttribute[bytes], session: AsyncSession
) -> sa.ColumnElement[int]:
    """The size of a document in bytes."""
    if _is_sqlite(session):
        return sa.func.length(sa.cast(document, sa.LargeBinary))
    return sa.func.octet_length(sa.cast(document_value(document, session), sa.Text))


def _is_sqlite(session: AsyncSession) -> bool:
    return session.get_bind().dialect.name == "sqlite"


class ConversionRow(Table):
    """A table whose documents are not all converted."""

    __tablename__ = "document_conversions"

    name: Mapped[str] = mapped_column(sa.String(64), primary_key=True)
    last_key: Mapped[str] = mapped_column(sa.Text)  # of the converted rows, as a JSON array


class _RowsToConvert:
    """Columns and new values of a table's rows, in the SQL of its database."""

    def __init__(self, name: str, *, is_sqlite: bool) -> None:
        mapped = Table.metadata.tables[name]
        documents = [each.name for each in mapped.columns if isinstance(each.type, _JsonText)]
        self.keys = [sa.column(each.name, each.type) for each in mapped.primary_key]
        new: list[sa.ColumnClause[Any]] = [sa.column(each) for each in documents]
        old = new if is_sqlite else [sa.column(f"{each}{OLD_SUFFIX}") for each in documents]
        self.table = sa.table(name, *self.keys, *dict.fromkeys([*new, *old]))
        self.size = sum(
            (sa.func.coalesce(sa.func.length(each), 0) for each in old), start=sa.literal(0)
        )
        self.values: dict[sa.ColumnElement[Any], sa.ColumnElement[Any]]
        if is_sqlite:
            self.values = {each: sa.cast(each, sa.Text) for each in new}
        else:
            self.values = {each: _current(each) for each in new} | dict.fromkeys(old, sa.null())


async def convert_documents(transactions: CrossProjectTransactions, interval_s: float) -> None:
    """Convert all rows, until cancelled. What failed, or was left by another process that ended, is
    converted after `interval_s` seconds.
    """
    while True:
        with log_errors(_log, "documents could not be converted"):
            while await transactions.write(convert_rows):
                pass
        await asyncio.sleep(interval_s)


async def convert_rows(tx: CrossProjectTransaction) -> bool:
    """Convert the next rows of a table that no other process is converting; False if there is none.

    The progress is stored with the converted rows, so that an interrupted conversion continues.
    """
    session = tx.session
    conversion = await session.scalar(
        sa.select(ConversionRow)
        .order_by(ConversionRow.name)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    if conversion is None:
        return False
    if not _is_sqlite(session):
        limit = LIMITS.postgres_migration_settings()["statement_timeout"]
        await session.execute(sa.text(f"SET LOCAL statement_timeout = '{limit}'"))
    rows = _RowsToConvert(conversion.name, is_sqlite=_is_sqlite(session))
    key, last_key = sa.tuple_(*rows.keys), orjson.loads(conversion.last_key)
    is_next = key > last_key if last_key else sa.true()
    query = sa.select(*rows.keys, rows.size).where(is_next).order_by(*rows.keys).limit(ROWS_AT_ONCE)
    found = (await session.execute(query)).all()
    num_fitting = sum(size <= BYTES_AT_ONCE for size in accumulate(row[-1] for row in found))
    converted = found[: max(num_fitting, 1)]
    if converted:
        last_key = list(converted[-1][:-1])
        await session.execute(
            sa.update(rows.table).where(is_next, key <= last_key).values(rows.values)
        )
        conversion.last_key = orjson.dumps(last_key).decode()
    if len(converted) == len(found) < ROWS_AT_ONCE:
        await session.delete(conversion)
        _log.info("the documents of the table %s are converted", conversion.name)
    return True
