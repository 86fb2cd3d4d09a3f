"""Operations on limits, and the division of their amounts among holders."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from corral.control.v1.limit_service_pb2 import LimitBucket

from control_svc.audit.log import record_act
from control_svc.base.pagination import Page, PageRequest, PageTokens
from control_svc.base.validation import check_length
from control_svc.db.transaction import (
    Clock,
    Transaction,
    Transactions,
    read_transaction,
    write_transaction,
)
from control_svc.limits.buckets import read_state, read_used
from control_svc.limits.model import (
    LEASE,
    MAX_LIMITS,
    MAX_SHARES,
    BucketKey,
    Limit,
    Mode,
    Share,
    ShareRequest,
    check_holder,
    divide,
)
from control_svc.limits.queries import LimitQueries, ShareQueries
from svc_kit.errors import TooManyLimits

MAX_PAGE = 1000


class Leased(NamedTuple):
    """All limits, and the shares of a holder in the order in which it asked."""

    limits: Sequence[Limit]
    shares: Sequence[Share]


@dataclass(frozen=True)
class Limits:
    """Operations on limits."""

    transactions: Transactions
    tokens: PageTokens
    clock: Clock

    @write_transaction
    async def create(self, tx: Transaction, limit: Limit) -> Limit:
        """Create a limit.

        Raises MissingField, InvalidField, TooLong, OutOfRange, LimitExists or TooManyLimits.
        """
        limit.check()
        limits = LimitQueries(tx)
        if await limits.count() >= MAX_LIMITS:
            raise TooManyLimits(limit=MAX_LIMITS)
        limit = replace(limit, created_at=self.clock())
        await limits.add(limit)
        await record_act(tx, limit.id)
        return limit

    @read_transaction
    async def page(self, tx: Transaction, page_request: PageRequest) -> Page[Limit]:
        """List limits by id. Raises InvalidField."""
        window = self.tokens.window(page_request, ("limits",), MAX_PAGE)
        return window.page(await LimitQueries(tx).page(window))

    @write_transaction
    async def update(
        self, tx: Transaction, limit_id: str, amount: int | None, mode: Mode | None
    ) -> Limit:
        """Change what is not None. Raises LimitNotFound or OutOfRange."""
        limits = LimitQueries(tx)
        limit = await limits.get(limit_id)
        if amount is not None:
            limit = replace(limit, amount=amount)
        limit = replace(limit, mode=mode or limit.mode)
        limit.check_amount()
        await limits.update(limit)
        await record_act(tx, limit_id)
        return limit

    @write_transaction
    async def delete(self, tx: Transaction, limit_id: str) -> None:
        """Delete a limit. Raises LimitNotFound."""
        await LimitQueries(tx).delete(limit_id)
        await record_act(tx, limit_id)

    @read_transaction
    async def buckets(
        self, tx: Transaction, limit_id: str, page_request: PageRequest
    ) -> tuple[list[LimitBucket], str]:
        """List amounts of a limit, and the token of the next page.

        Raises LimitNotFound or InvalidField.
        """
        limit = await LimitQueries(tx).get(limit_id, lock=False)
        window = self.tokens.window(page_request, ("limit buckets", limit_id), MAX_PAGE)
        keys = await ShareQueries(tx).page(limit, window)
        page = window.page(keys if limit.per else keys or [BucketKey()])
        return [await read_state(tx, limit, key) for key in page.items], page.next_token

    async def lease(self, holder: str, requests: Sequence[ShareRequest]) -> Leased:
        """Return all limits, and grant shares.

        Raises MissingField, TooLong, InvalidField or OutOfRange.
        """
        check_holder(holder)
        check_length("shares", requests, MAX_SHARES)
        for number, request in enumerate(requests):
            request.check(f"shares[{number}]")
        if not requests:
            return Leased(await self.transactions.read(lambda tx: LimitQueries(tx).all()), ())
        return await self.transactions.write(lambda tx: _lease(tx, holder, requests))


async def _lease(tx: Transaction, holder: str, requests: Sequence[ShareRequest]) -> Leased:
    limits = await LimitQueries(tx).all()
    by_id: Mapping[str, Limit] = {limit.id: limit for limit in limits}
    shares = [Share()] * len(requests)
    # In key order, to avoid deadlocks.
    for number, request in sorted(
        enumerate(requests), key=lambda each: (each[1].limit_id, each[1].bucket.id)
    ):
        if (limit := by_id.get(request.limit_id)) is not None:
            shares[number] = await _grant(tx, holder, limit, request)
    return Leased(limits, shares)


async def _grant(tx: Transaction, holder: str, limit: Limit, request: ShareRequest) -> Share:
    """Grant a share of one bucket."""
    queries, bucket = ShareQueries(tx), request.bucket.id
    level = await queries.lock(limit, bucket)
    others = await queries.held_by_others(limit, bucket, holder)
    held, reset_at = sum(others) + request.held, None
    if limit.is_rate:
        level = level.refill(limit.amount, await tx.now(), held=held, returned=request.returned)
        share = divide(level.level, request, len(others) + 1)
        await queries.save(limit, bucket, level.subtract(share.granted))
    else:
        used, reset_at = await read_used(tx, limit, request.bucket)
        share = divide(limit.amount - used - held, request, len(others) + 1)
        await queries.save(limit, bucket, replace(level, updated_at=await tx.now()))
    await queries.set_held(limit, bucket, holder, request.held + share.granted, LEASE)
    return share._replace(reset_at=reset_at)
