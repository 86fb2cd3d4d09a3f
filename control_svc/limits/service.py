"""Operations on limits, and the division of their amounts among holders."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from corral.control.v1 import limit_service_pb2 as pb

from control_svc.audit.log import record_call
from control_svc.base.ids import KEY, is_id
from control_svc.base.pagination import Page
from control_svc.base.proto import check_mask
from control_svc.base.resource import OperatorMethods
from control_svc.db.transaction import (
    Clock,
    CrossProjectTransaction,
    cross_project_read,
    cross_project_write,
)
from control_svc.limits.buckets import read_state, read_used
from control_svc.limits.model import (
    LEASE,
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
from control_svc.projects.prices import Price, Prices
from control_svc.projects.projects import ProjectQueries
from svc_kit.auth.principal import DEFAULT_PROJECT
from svc_kit.errors import ProjectNotFound, TooManyLimits
from svc_kit.rpc.message_mapper import EnumMapper, MessageMapper, encode_duration

CheckModel = Callable[[str, str], Awaitable[object]]
"""Raises ModelNotFound unless a project may use a model, or UpstreamUnavailable."""


_LIMIT: Final = MessageMapper(Limit, pb.Limit)
_MODE: Final = EnumMapper[Mode](Mode, pb.Limit.Mode)
_REQUEST: Final = MessageMapper(ShareRequest, pb.LimitShareRequest)
_SHARE: Final = MessageMapper(Share, pb.LimitShare)
_PRICE: Final = MessageMapper(Price, pb.Price)


class Leased(NamedTuple):
    """All limits, and the shares of a holder in the order in which it asked."""

    limits: Sequence[Limit]
    shares: Sequence[Share]


@dataclass(frozen=True)
class Limits(OperatorMethods[Limit]):
    service = pb.DESCRIPTOR.services_by_name["LimitService"]
    message, noun, plural = _LIMIT, "a limit", "limits"

    clock: Clock
    check_model: CheckModel
    prices: Prices

    async def CreateLimit(self, request: pb.CreateLimitRequest) -> Limit:
        """Create a limit. With `allow_unknown`, its project, key and model need not exist.

        Raises MissingField, InvalidField, TooLong, OutOfRange, LimitExists, TooManyLimits,
        ProjectNotFound, ApiKeyNotFound or ModelNotFound, and UpstreamUnavailable if models cannot
        be looked up.
        """
        limit, allow_unknown = _LIMIT.from_message(request.limit, "limit"), request.allow_unknown
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

    def to_add(
        self, messages: Sequence[pb.Limit], allow_unknown: bool
    ) -> Callable[[CrossProjectTransaction, str], Awaitable[None]]:
        """Convert the limits of a new key, whose models are checked elsewhere, and return what
        creates them. Raises InvalidField; that raises as `CreateLimit`.
        """
        limits = [
            _LIMIT.from_message(each, f"limits[{number}]") for number, each in enumerate(messages)
        ]

        async def add(tx: CrossProjectTransaction, key: str) -> None:
            for number, limit in enumerate(limits, 1):
                limit = replace(limit, id=limit.id or f"{key}-{number}", key=key)
                limit.check()
                await self._create(tx, limit, allow_unknown)

        return add

    async def add(self, tx: CrossProjectTransaction, limit: Limit) -> Limit:
        """Create a limit that has been checked. Raises LimitExists or TooManyLimits."""
        limits = LimitQueries(tx)
        if await limits.count() >= MAX_LIMITS:
            raise TooManyLimits(limit=MAX_LIMITS)
        limit = replace(limit, created_at=self.clock())
        await limits.add(limit)
        await record_call(tx, limit.id)
        return limit

    @cross_project_read
    async def ListLimits(
        self, tx: CrossProjectTransaction, request: pb.ListLimitsRequest
    ) -> Page[Limit]:
        """List limits by id. Raises OutOfRange or InvalidField."""
        window = self.window(request, "limits")
        return window.page(await LimitQueries(tx).page(window))

    @cross_project_write
    async def UpdateLimit(
        self, tx: CrossProjectTransaction, request: pb.UpdateLimitRequest
    ) -> Limit:
        """Change amount or mode. Raises InvalidField, MissingField, LimitNotFound or OutOfRange."""
        changes = request.limit
        paths = check_mask(request.update_mask, changes, ("amount", "mode")).paths
        mode = _MODE.decode(changes.mode, "limit.mode") if "mode" in paths else None
        limit = await LimitQueries(tx).get(changes.id)
        if "amount" in paths:
            limit = replace(limit, amount=changes.amount)
        limit = replace(limit, mode=mode or limit.mode)
        limit.check_amount()
        await LimitQueries(tx).update(limit)
        await record_call(tx, limit.id)
        return limit

    @cross_project_write
    async def DeleteLimit(
        self, tx: CrossProjectTransaction, request: pb.DeleteLimitRequest
    ) -> None:
        """Delete a limit. Raises LimitNotFound."""
        await LimitQueries(tx).delete(request.limit_id)
        await record_call(tx, request.limit_id)

    @cross_project_read
    async def ListLimitBuckets(
        self, tx: CrossProjectTransaction, request: pb.ListLimitBucketsRequest
    ) -> pb.ListLimitBucketsResponse:
        """List amounts of a limit, and what is left of them.

        Raises LimitNotFound or InvalidField.
        """
        limit = await LimitQueries(tx).get(request.limit_id, lock=False)
        window = self.window(request, "limit buckets", request.limit_id)
        keys = await ShareQueries(tx).page(limit, window)
        page = window.page(keys if limit.per else keys or [BucketKey()])
        return pb.ListLimitBucketsResponse(
            buckets=[await read_state(tx, limit, key) for key in page.items],
            next_page_token=page.next_token,
        )

    async def LeaseLimits(self, request: pb.LeaseLimitsRequest) -> pb.LeaseLimitsResponse:
        """Return all limits and prices, and grant shares to a service."""
        asked = [
            _REQUEST.from_message(share, f"shares[{number}]")
            for number, share in enumerate(request.shares)
        ]
        leased = await self._lease(Caller(request.holder, request.number), asked)
        return pb.LeaseLimitsResponse(
            limits=[_LIMIT.to_message(limit) for limit in leased.limits],
            shares=[_SHARE.to_message(share) for share in leased.shares],
            prices=[_PRICE.to_message(price) for price in self.prices],
            lease=encode_duration(LEASE),
        )

    async def _lease(self, caller: Caller, requests: Sequence[ShareRequest]) -> Leased:
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
