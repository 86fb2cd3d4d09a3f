"""gRPC servicer of limits."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from corral.control.v1 import limit_service_pb2 as pb
from corral.control.v1 import limit_service_pb2_grpc as rpc

from control_svc.base.proto import Context, check_mask, page_request
from control_svc.db.transaction import CrossProjectTransaction
from control_svc.limits.model import LEASE, Caller, Limit, Mode, Share, ShareRequest
from control_svc.limits.service import Limits
from control_svc.projects.prices import Price, Prices
from svc_kit.rpc.message_mapper import EnumMapper, MessageMapper, encode_duration

_LIMIT: Final = MessageMapper(Limit, pb.Limit)
_MODE: Final = EnumMapper[Mode](Mode, pb.Limit.Mode)
_REQUEST: Final = MessageMapper(ShareRequest, pb.LimitShareRequest)
_SHARE: Final = MessageMapper(Share, pb.LimitShare)
_PRICE: Final = MessageMapper(Price, pb.Price)


def limits_to_add(
    limits: Limits, messages: Sequence[pb.Limit], allow_unknown: bool
) -> Callable[[CrossProjectTransaction, str], Awaitable[None]]:
    """Convert the limits of a new key, and return what creates them. Raises InvalidField."""
    decoded = [
        _LIMIT.from_message(each, f"limits[{number}]") for number, each in enumerate(messages)
    ]
    return lambda tx, key: limits.add_to_key(tx, key, decoded, allow_unknown)


class LimitServicer(rpc.LimitServiceServicer):
    """gRPC servicer of limits."""

    def __init__(self, limits: Limits, prices: Prices) -> None:
        self._limits = limits
        self._prices = prices

    async def CreateLimit(
        self, request: pb.CreateLimitRequest, context: Context
    ) -> pb.CreateLimitResponse:
        """Create a limit."""
        limit = await self._limits.create(
            _LIMIT.from_message(request.limit, "limit"), allow_unknown=request.allow_unknown
        )
        return pb.CreateLimitResponse(limit=_LIMIT.to_message(limit))

    async def ListLimits(
        self, request: pb.ListLimitsRequest, context: Context
    ) -> pb.ListLimitsResponse:
        """List limits."""
        page = await self._limits.page(page_request(request, 0, newest_first=False))
        limits = [_LIMIT.to_message(limit) for limit in page.items]
        return pb.ListLimitsResponse(limits=limits, next_page_token=page.next_token)

    async def UpdateLimit(
        self, request: pb.UpdateLimitRequest, context: Context
    ) -> pb.UpdateLimitResponse:
        """Change amount or mode."""
        mask = check_mask(request.update_mask, request.limit, ("amount", "mode"))
        limit = await self._limits.update(
            request.limit.id,
            request.limit.amount if "amount" in mask.paths else None,
            _MODE.decode(request.limit.mode, "limit.mode") if "mode" in mask.paths else None,
        )
        return pb.UpdateLimitResponse(limit=_LIMIT.to_message(limit))

    async def DeleteLimit(
        self, request: pb.DeleteLimitRequest, context: Context
    ) -> pb.DeleteLimitResponse:
        """Delete a limit."""
        await self._limits.delete(request.limit_id)
        return pb.DeleteLimitResponse()

    async def ListLimitBuckets(
        self, request: pb.ListLimitBucketsRequest, context: Context
    ) -> pb.ListLimitBucketsResponse:
        """List the amounts of a limit and what is left of them."""
        asked = page_request(request, 0, newest_first=False)
        buckets, next_token = await self._limits.buckets(request.limit_id, asked)
        return pb.ListLimitBucketsResponse(buckets=buckets, next_page_token=next_token)

    async def LeaseLimits(
        self, request: pb.LeaseLimitsRequest, context: Context
    ) -> pb.LeaseLimitsResponse:
        """Return all limits, and shares to a service."""
        asked = [
            _REQUEST.from_message(share, f"shares[{number}]")
            for number, share in enumerate(request.shares)
        ]
        leased = await self._limits.lease(Caller(request.holder, request.number), asked)
        return pb.LeaseLimitsResponse(
            limits=[_LIMIT.to_message(limit) for limit in leased.limits],
            shares=[_SHARE.to_message(share) for share in leased.shares],
            prices=[_PRICE.to_message(price) for price in self._prices],
            lease=encode_duration(LEASE),
        )
