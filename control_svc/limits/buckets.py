"""What is left of the amounts of limits: for operators, and in the answers of responses and runs.

What inference services hold counts as not left, also what they have leased for the next requests.
"""

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from corral.control.v1 import limit_service_pb2 as pb
from corral.inference.v1.generation_pb2 import RateLimitStatus

from control_svc.db.transaction import CrossProjectTransaction, CrossProjectTransactions
from control_svc.limits.model import BucketKey, Limit, Mode, Period, Unit
from control_svc.limits.queries import LimitQueries, ShareQueries
from control_svc.projects.usage import UsageQueries
from svc_kit.auth.principal import current_key, current_principal
from svc_kit.errors import DomainError

_log = logging.getLogger(__name__)
_WINDOWS_S: Final = {Period.MINUTE: 60, Period.DAY: 86_400, Period.MONTH: 30 * 86_400}


async def read_used(
    tx: CrossProjectTransaction, limit: Limit, key: BucketKey
) -> tuple[int, datetime | None]:
    """The usage of a budget in its period, and when it begins again; 0 and None for others."""
    if limit.is_rate or limit.period is None:
        return 0, None
    start, reset_at = limit.window(await tx.now())
    subjects = {
        name: value or getattr(limit, name)
        for name, value in zip(BucketKey._fields, key, strict=True)
    }
    return limit.used(await UsageQueries(tx).total(start, **subjects)), reset_at


async def read_state(tx: CrossProjectTransaction, limit: Limit, key: BucketKey) -> pb.LimitBucket:
    """Read one amount of a limit, without locking it."""
    shares = ShareQueries(tx)
    now = await tx.now()
    holdings = (await shares.holdings(limit, key.id)).values()
    held = sum(each.held for each in holdings if each.is_leased(now))
    used, reset_at = await read_used(tx, limit, key)
    free: float = limit.amount - used - held
    if limit.is_rate and (level := await shares.read(limit, key.id)) is not None:
        free = level.refill(limit.amount, now, held).level
    state = pb.LimitBucket(limit_id=limit.id, **key._asdict(), amount=limit.amount)
    state.used, state.held, state.remaining = used, held, max(0, int(free))
    if reset_at is not None:
        state.reset_time.FromDatetime(reset_at)
    return state


@dataclass(frozen=True)
class RateLimits:
    """The enforced limits of callers, which answers tell them."""

    transactions: CrossProjectTransactions

    async def of_caller(self, model: str) -> list[RateLimitStatus]:
        """The limits of the running call, if it uses this model; none while the database is away,
        so that an answer is not lost."""
        caller = BucketKey(current_principal().project, current_key(), model)
        try:
            return await self.transactions.read(lambda tx: _read_statuses(tx, caller))
        except DomainError as error:
            _log.warning("the limits of a caller cannot be read: %s", error)
            return []


async def _read_statuses(tx: CrossProjectTransaction, caller: BucketKey) -> list[RateLimitStatus]:
    limits = [
        limit
        for limit in await LimitQueries(tx).all()
        if limit.mode is Mode.ENFORCE and limit.applies_to(caller)
    ]
    return [
        _status(limit, await read_state(tx, limit, limit.bucket_of(caller)), await tx.now())
        for limit in limits
    ]


def _status(limit: Limit, state: pb.LimitBucket, now: datetime) -> RateLimitStatus:
    unit = None if limit.unit is Unit.COST else f"UNIT_{limit.unit.upper()}"
    left = state.remaining
    status = RateLimitStatus(name=limit.id, unit=unit, amount=limit.amount, remaining=left)
    if state.HasField("reset_time"):
        status.reset.FromTimedelta(state.reset_time.ToDatetime(UTC) - now)
    elif limit.is_rate:
        status.reset.FromMilliseconds((limit.amount - left) * 60_000 // limit.amount)
    if limit.period is not None:
        status.window.FromSeconds(_WINDOWS_S[limit.period])
    return status
