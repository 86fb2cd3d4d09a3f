"""Tables and SQL of limits, their buckets and the shares of holders."""

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Final

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from control_svc.base.pagination import Window, apply_window
from control_svc.base.validation import PROJECT_ID_PATTERN
from control_svc.db.cleanup import ROWS_AT_ONCE, Deleted, delete_some
from control_svc.db.tables import Instant, Key, Project, Table, read_row
from control_svc.db.transaction import CrossProjectQueries, CrossProjectTransaction
from control_svc.limits.model import (
    BucketKey,
    Holding,
    Limit,
    Mode,
    Period,
    RateBucket,
    Subject,
    Unit,
)
from svc_kit.errors import LimitExists, LimitNotFound

_SHARES_KEPT_FOR: Final = timedelta(days=1)
_BUCKETS_KEPT_FOR: Final = timedelta(days=32)
"""Longer than the period of any budget, so that operators see all amounts that were used in it."""


class LimitRow(Table):
    """A limit."""

    __tablename__ = "limits"

    id: Mapped[str] = mapped_column(Key, primary_key=True)
    project: Mapped[str] = mapped_column(sa.Text)
    key: Mapped[str] = mapped_column(sa.Text)
    model: Mapped[str] = mapped_column(sa.Text)
    per: Mapped[str] = mapped_column(sa.String(64))
    unit: Mapped[str] = mapped_column(sa.String(32))
    amount: Mapped[int] = mapped_column(sa.BigInteger)
    period: Mapped[str | None] = mapped_column(sa.String(16))
    mode: Mapped[str] = mapped_column(sa.String(16))
    created_at: Mapped[datetime] = mapped_column(Instant)


class LimitBucketRow(Table):
    """One amount of a limit. Its row is locked while shares of it are divided."""

    __tablename__ = "limit_buckets"

    limit_id: Mapped[str] = mapped_column(Key, primary_key=True)
    bucket: Mapped[str] = mapped_column(Project, primary_key=True)
    level: Mapped[float] = mapped_column(sa.Double)
    updated_at: Mapped[datetime] = mapped_column(Instant, index=True)


class LimitShareRow(Table):
    __tablename__ = "limit_shares"
    __table_args__ = (sa.Index(None, "expires_at"),)

    limit_id: Mapped[str] = mapped_column(Key, primary_key=True)
    bucket: Mapped[str] = mapped_column(Project, primary_key=True)
    holder: Mapped[str] = mapped_column(Key, primary_key=True)
    held: Mapped[int] = mapped_column(sa.BigInteger)
    expires_at: Mapped[datetime] = mapped_column(Instant)
    used: Mapped[int] = mapped_column(sa.BigInteger, server_default=sa.text("0"))
    number: Mapped[int] = mapped_column(sa.BigInteger, server_default=sa.text("0"))


class LimitQueries(CrossProjectQueries):
    async def add(self, limit: Limit) -> None:
        """Insert a limit. Raises LimitExists."""
        if await self._session.get(LimitRow, limit.id) is not None:
            raise LimitExists(limit=limit.id)
        values = {**asdict(limit), "per": ",".join(limit.per)}
        await self._session.execute(sa.insert(LimitRow).values(**values))

    async def get(self, limit_id: str, *, lock: bool = True) -> Limit:
        """Return a limit. Its row is locked by default. Raises LimitNotFound."""
        row = None
        if PROJECT_ID_PATTERN.fullmatch(limit_id):
            row = await self._session.get(LimitRow, limit_id, with_for_update=lock)
        if row is None:
            raise LimitNotFound(limit=limit_id)
        return _limit(row)

    async def count(self) -> int:
        return (await self._session.scalars(sa.select(sa.func.count()).select_from(LimitRow))).one()

    async def page(self, window: Window) -> list[Limit]:
        """List the limits of a window, by id."""
        return [
            _limit(row)
            for row in await self._session.scalars(
                apply_window(sa.select(LimitRow), LimitRow.id, window)
            )
        ]

    async def all(self) -> list[Limit]:
        """List all limits, by id."""
        rows = await self._session.scalars(sa.select(LimitRow).order_by(LimitRow.id))
        return [_limit(row) for row in rows]

    async def update(self, limit: Limit) -> None:
        """Update amount and mode of a locked limit."""
        await self._session.execute(
            sa.update(LimitRow)
            .where(LimitRow.id == limit.id)
            .values(amount=limit.amount, mode=limit.mode)
        )

    async def delete(self, limit_id: str) -> None:
        """Delete a limit with its buckets and shares, in the order in which shares are granted.
        Raises LimitNotFound."""
        await self.get(limit_id)
        for table in (LimitBucketRow, LimitShareRow):
            await self._session.execute(sa.delete(table).where(table.limit_id == limit_id))
        await self._session.execute(sa.delete(LimitRow).where(LimitRow.id == limit_id))


class ShareQueries(CrossProjectQueries):
    """Buckets and the shares of holders."""

    async def lock(self, limit: Limit, bucket: str) -> RateBucket:
        """Lock a bucket; a new one is full. A concurrent insert fails, and its transaction is
        retried."""
        row = await self._session.get(LimitBucketRow, (limit.id, bucket), with_for_update=True)
        if row is not None:
            return RateBucket(row.level, row.updated_at)
        full = RateBucket(float(limit.amount), await self._tx.now())
        await self._session.execute(
            sa.insert(LimitBucketRow).values(limit_id=limit.id, bucket=bucket, **asdict(full))
        )
        return full

    async def read(self, limit: Limit, bucket: str) -> RateBucket | None:
        """Return a bucket without locking it; None if it was not used lately."""
        row = await self._session.get(LimitBucketRow, (limit.id, bucket))
        return None if row is None else RateBucket(row.level, row.updated_at)

    async def page(self, limit: Limit, window: Window) -> list[BucketKey]:
        """List the buckets of a limit."""
        query = sa.select(LimitBucketRow.bucket).where(LimitBucketRow.limit_id == limit.id)
        ids = await self._session.scalars(apply_window(query, LimitBucketRow.bucket, window))
        return list(map(BucketKey.parse, ids))

    async def save(self, limit: Limit, bucket: str, level: RateBucket) -> None:
        """Update a locked bucket."""
        await self._session.execute(
            sa.update(LimitBucketRow)
            .where(LimitBucketRow.limit_id == limit.id, LimitBucketRow.bucket == bucket)
            .values(**asdict(level))
        )

    async def holdings(self, limit: Limit, bucket: str) -> dict[str, Holding]:
        """What each holder has of a bucket, also those whose leases expired lately."""
        rows = await self._session.scalars(
            sa.select(LimitShareRow).where(
                LimitShareRow.limit_id == limit.id, LimitShareRow.bucket == bucket
            )
        )
        return {row.holder: Holding(row.held, row.used, row.number, row.expires_at) for row in rows}

    async def save_holding(
        self, limit: Limit, bucket: str, holder: str, holding: Holding, *, is_new: bool
    ) -> None:
        """Store what a holder has of a locked bucket."""
        key = {"limit_id": limit.id, "bucket": bucket, "holder": holder}
        values = holding._asdict()
        if is_new:
            await self._session.execute(sa.insert(LimitShareRow).values(**key, **values))
        else:
            await self._session.execute(sa.update(LimitShareRow).filter_by(**key).values(**values))


async def delete_unused_shares(tx: CrossProjectTransaction, now: datetime) -> Deleted:
    """Delete expired shares and unused buckets. A step of the sweeper."""
    expired = LimitShareRow.expires_at < now - _SHARES_KEPT_FOR
    unused = LimitBucketRow.updated_at < now - _BUCKETS_KEPT_FOR
    shares = await delete_some(tx, LimitShareRow, expired)
    buckets = await delete_some(tx, LimitBucketRow, unused, limit=ROWS_AT_ONCE)
    return Deleted(len(shares) + len(buckets))


def _limit(row: LimitRow) -> Limit:
    per = tuple(Subject(each) for each in row.per.split(",") if each)
    period = None if row.period is None else Period(row.period)
    return read_row(Limit, row, per=per, unit=Unit(row.unit), period=period, mode=Mode(row.mode))
