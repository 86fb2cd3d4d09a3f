"""Operations on limits, and the division of their amounts among holders."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from corral.control.v1.limit_service_pb2 import LimitBucket

from control_svc.audit.log import record_act
from control_svc.base.ids import KEY, is_id
from control_svc.base.pagination import Page, PageRequest, PageTokens
from control_svc.db.transaction import (
    Clock,
    CrossProjectTransaction,
    CrossProjectTransactions,
    cross_project_read,
    cross_project_write,
)
from control_svc.limits.buckets import read_state, read_used
from control_svc.limits.model import (
    MAX_LIMITS,
    BucketKey,
    Caller,
    Limit,
    Mode,
    Share,
    ShareRequest,
    grant,
)
from control_svc.limits.queries import LimitQueries, ShareQueries
from control_svc.projects.keys import KeyQueries
from control_svc.projects.projects import ProjectQueries
from svc_kit.auth.principal import DEFAULT_PROJECT
from svc_kit.errors import ProjectNotFound, TooManyLimits

MAX_PAGE = 1000
CheckModel = Callable[[str, str], Awaitable[object]]
"""Raises ModelNotFound unless a project may use a model, or UpstreamUnavailable."""


class Leased(NamedTuple):
    """All limits, and the shares of a holder in the order in which it asked."""

    limits: Sequence[Limit]
    shares: Sequence[Share]


@dataclass(frozen=True)
class Limits:
    """Operations on limits."""

    transactions: CrossProjectTransactions
    tokens: PageTokens
    clock: Clock

    check_model: CheckModel

    async def create(self, limit: Limit, *, allow_unknown: bool = False) -> Limit:
        """Create a limit. `allow_unknown`: its project, key and model need not exist.

        Raises MissingField, InvalidField, TooLong, OutOfRange, LimitExists, TooManyLimits,
        ProjectNotFound, ApiKeyNotFound or ModelNotFound, and UpstreamUnavailable if models cannot
        be looked up.
        """
        limit.check()
        if limit.model and not allow_unknown:
            await self.check_model(limit.project or DEFAULT_PROJECT, limit.model)
        return await self.transactions.write(lambda tx: self._create(tx, limit, allow_unknown))

    async def _create(
        self, tx: CrossProjectTransaction, limit: Limit, allow_unknown: bool
    ) -> Limit:
        if not allow_unknown:
            if limit.project and await ProjectQueries(tx).find(limit.project) is None:
                raise ProjectNotFound(project=limit.project, field="limit.project")
            if is_id(limit.key, KEY):  # others are names in the settings of services
                await KeyQueries(tx).get(limit.key)
        return await self.add(tx, limit)

    async def add_to_key(
        self, tx: CrossProjectTransaction, key: str, limits: Sequence[Limit], allow_unknown: bool
    ) -> None:
        """Create the limits of a new key, whose models have been checked. Raises as `create`."""
        for number, limit in enumerate(limits, 1):
            limit = replace(limit, id=limit.id or f"{key}-{number}", key=key)
            limit.check()
            await self._create(tx, limit, allow_unknown)

    async def add(self, tx: CrossProjectTransaction, limit: Limit) -> Limit:
        """Create a limit that has been checked. Raises LimitExists or TooManyLimits."""
        limits = LimitQueries(tx)
        if await limits.count() >= MAX_LIMITS:
            raise TooManyLimits(limit=MAX_LIMITS)
        limit = replace(limit, created_at=self.clock())
        await limits.add(limit)
        await record_act(tx, limit.id)
        return limit

    @cross_project_read
    async def page(self, tx: CrossProjectTransaction, page_request: PageRequest) -> Page[Limit]:
        """List limits by id. Raises InvalidField."""
        window = self.tokens.window(page_request, ("limits",), MAX_PAGE)
        return window.page(await LimitQueries(tx).page(window))

    @cross_project_write
    async def update(
        self, tx: CrossProjectTransaction, limit_id: str, amount: int | None, mode: Mode | None
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

    @cross_project_write
    async def delete(self, tx: CrossProjectTransaction, limit_id: str) -> None:
        """Delete a limit. Raises LimitNotFound."""
        await LimitQueries(tx).delete(limit_id)
        await record_act(tx, limit_id)

    @cross_project_read
    async def buckets(
        self, tx: CrossProjectTransaction, limit_id: str, page_request: PageRequest
    ) -> tuple[list[LimitBucket], str]:
        """List amounts of a limit, and the token of the next page.

        Raises LimitNotFound or InvalidField.
        """
        limit = await LimitQueries(tx).get(limit_id, lock=False)
        window = self.tokens.window(page_request, ("limit buckets", limit_id), MAX_PAGE)
        keys = await ShareQueries(tx).page(limit, window)
        page = window.page(keys if limit.per else keys or [BucketKey()])
        return [await read_state(tx, limit, key) for key in page.items], page.next_token

    async def lease(self, caller: Caller, requests: Sequence[ShareRequest]) -> Leased:
        """Return all limits, and grant shares."""
        if not requests:
            return Leased(await self.transactions.read(lambda tx: LimitQueries(tx).all()), ())
        return await self.transactions.write(lambda tx: _lease(tx, caller, requests))


async def _lease(
    tx: CrossProjectTransaction, caller: Caller, requests: Sequence[ShareRequest]
) -> Leased:
    limits = await LimitQueries(tx).all()
    by_id: Mapping[str, Limit] = {limit.id: limit for limit in limits}
    shares = [Share()] * len(requests)
    # In key order, to avoid deadlocks.
    for number, request in sorted(
        enumerate(requests), key=lambda each: (each[1].limit_id, each[1].bucket.id)
    ):
        if (limit := by_id.get(request.limit_id)) is not None:
            shares[number] = await _grant(tx, caller, limit, request)
    return Leased(limits, shares)


async def _grant(
    tx: CrossProjectTransaction, caller: Caller, limit: Limit, request: ShareRequest
) -> Share:
    """Grant a share of one bucket."""
    queries, bucket = ShareQueries(tx), request.bucket.id
    level = await queries.lock(limit, bucket)
    holdings = await queries.holdings(limit, bucket)
    used, reset_at = await read_used(tx, limit, request.bucket)
    now = await tx.now()
    division = grant(limit, level, holdings, caller, request, used=used, now=now)
    if division is None:
        return Share()
    await queries.save(limit, bucket, division.level)
    await queries.save_holding(
        limit, bucket, caller.holder, division.holding, is_new=caller.holder not in holdings
    )
    return division.share._replace(reset_at=reset_at)
