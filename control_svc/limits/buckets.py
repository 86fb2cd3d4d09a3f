"""What is left of the amounts of limits: for operators, and in the answers of responses and runs.

What inference services hold counts as not left, also what they have leased for the next requests.
"""

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from corral.inference.v1.generation_pb2 import RateLimitStatus

from control_svc.db.transaction import Transaction, Transactions
from control_svc.limits.model import BucketKey, BucketState, Limit, Mode, Period, Unit
from control_svc.limits.queries import LimitQueries, ShareQueries
from control_svc.projects.usage import UsageQueries
from svc_kit.auth.principal import current_key, current_principal
from svc_kit.errors import DomainError
from svc_kit.rpc.message_mapper import encode_duration

_log = logging.getLogger(__name__)
_UNITS: Final = {
    Unit.REQUESTS: RateLimitStatus.UNIT_REQUESTS,
    Unit.TOKENS: RateLimitStatus.UNIT_TOKENS,
    Unit.CONCURRENT_REQUESTS: RateLimitStatus.UNIT_CONCURRENT_REQUESTS,
}
_WINDOWS: Final = {
    Period.MINUTE: timedelta(minutes=1),
    Period.DAY: timedelta(days=1),
    Period.MONTH: timedelta(days=30),
}


async def read_used(tx: Transaction, limit: Limit, key: BucketKey) -> tuple[int, datetime | None]:
    """The usage of a budget in its period, and when it begins again; 0 and None for others."""
    if limit.is_rate or limit.period is None:
        return 0, None
    start, reset_at = limit.window(await tx.now())
    subjects = {
        name: value or getattr(limit, name)
        for name, value in zip(BucketKey._fields, key, strict=True)
    }
    return limit.used(await UsageQueries(tx).total(start, **subjects)), reset_at


async def read_state(tx: Transaction, limit: Limit, key: BucketKey) -> BucketState:
    """Read one amount of a limit, without locking it."""
    shares = ShareQueries(tx)
    held = sum(await shares.held_by_others(limit, key.name))
    used, reset_at = await read_used(tx, limit, key)
    free: float = limit.amount - used - held
    if limit.is_rate and (level := await shares.read(limit, key.name)) is not None:
        free = level.refill(limit.amount, await tx.now(), held=held, returned=0).level
    return BucketState(
        limit_id=limit.id,
        **key._asdict(),
        amount=limit.amount,
        used=used,
        held=held,
        remaining=max(0, int(free)),
        reset_at=reset_at,
    )


@dataclass(frozen=True)
class RateLimits:
    """The enforced limits of callers, which answers tell them."""

    transactions: Transactions

    async def of_caller(self, model: str) -> list[RateLimitStatus]:
        """The limits of the running call, if it uses this model; none while the database is away,
        so that an answer is not lost."""
        caller = BucketKey(current_principal().project, current_key(), model)
        try:
            return await self.transactions.read(lambda tx: _read_statuses(tx, caller))
        except DomainError as error:
            _log.warning("the limits of a caller cannot be read: %s", error)
            return []


async def _read_statuses(tx: Transaction, caller: BucketKey) -> list[RateLimitStatus]:
    limits = [
        limit
        for limit in await LimitQueries(tx).all()
        if limit.mode is Mode.ENFORCE and limit.applies_to(caller)
    ]
    return [
        _status(limit, await read_state(tx, limit, limit.bucket_of(caller)), await tx.now())
        for limit in limits
    ]


def _status(limit: Limit, state: BucketState, now: datetime) -> RateLimitStatus:
    status = RateLimitStatus(
        name=limit.id, unit=_UNITS.get(limit.unit), amount=limit.amount, remaining=state.remaining
    )
    reset = timedelta()
    if state.reset_at is not None:
        reset = state.reset_at - now
    elif limit.is_rate:
        reset = timedelta(minutes=(limit.amount - state.remaining) / limit.amount)
    status.reset.CopyFrom(encode_duration(reset))
    if limit.period is not None:
        status.window.CopyFrom(encode_duration(_WINDOWS[limit.period]))
    return status
