"""One process's share of one amount of a limit.

Shares come from the control service (`limiter.py`). A request reserves what it will probably use,
uses it, and returns the rest.
"""

import math
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from corral.control.v1 import limit_service_pb2 as pb
from corral.inference.v1.generation_pb2 import RateLimitStatus

from svc_kit.errors import (
    BudgetExceeded,
    DomainError,
    RateLimited,
    UpstreamUnavailable,
)

MINUTE_S: Final = 60
_WINDOWS_S: Final = {pb.Limit.PERIOD_MINUTE: 60, pb.Limit.PERIOD_DAY: 86_400}
_UNITS: Final = {
    pb.Limit.UNIT_REQUESTS: RateLimitStatus.UNIT_REQUESTS,
    pb.Limit.UNIT_TOKENS: RateLimitStatus.UNIT_TOKENS,
    pb.Limit.UNIT_CONCURRENT_REQUESTS: RateLimitStatus.UNIT_CONCURRENT_REQUESTS,
}
_MONTH_S: Final = 30 * 86_400
_AHEAD_S: Final = 2.0
"""A share covers what is used in this time, so that requests seldom wait for control."""
_RENEWAL_S: Final = 5.0
"""A third of the lease."""
_SLOT_RETRY_S: Final = 1.0


class BucketKey(NamedTuple):
    """A limit, and the project, key and model if it has an amount for each."""

    limit_id: str
    project: str
    key: str
    model: str


class Bucket:
    """The share of an amount. Times are seconds of a monotonic clock."""

    def __init__(self, key: BucketKey, limit: pb.Limit, now: float) -> None:
        self.key = key
        self.limit = limit
        self.available = 0
        """Granted and not reserved; negative after more was used than granted."""
        self.reserved = 0
        """Reserved by running requests; of a rate, the part that is not used yet."""
        self.unreported = 0
        """Of a budget: used, but not reported as usage."""
        self.remaining = 0
        """What control had left when it was last asked."""
        self.reset_s = 0.0
        """Time from the last answer to the end of a budget's period."""
        self.touched_at = now
        self.answered_at: float | None = None
        self.refused = (0, 0.0)
        """What control could not grant, and when it was asked."""
        self._num_holders = 1
        self._alone_at: float | None = None
        self._used = 0
        self._used_since = now
        self._used_per_s = 0.0

    @property
    def is_rate(self) -> bool:
        """Whether the amount is refilled continuously."""
        return self.limit.period == pb.Limit.PERIOD_MINUTE

    @property
    def is_budget(self) -> bool:
        """Whether the amount is that of a day or month."""
        return self.limit.period in (pb.Limit.PERIOD_DAY, pb.Limit.PERIOD_MONTH)

    @property
    def is_enforced(self) -> bool:
        """Whether requests beyond the limit are refused."""
        return self.limit.mode != pb.Limit.MODE_SHADOW

    @property
    def held(self) -> int:
        """What control counts as held by this process."""
        return max(self.available, 0) + self.reserved + self.unreported

    # ---- requests

    def reserve(self, amount: int) -> "Reservation | None":
        """Reserve an amount; None if the share does not have it."""
        if amount > self.available:
            return None
        self.available -= amount
        self.reserved += amount
        return Reservation(self, amount)

    def count_use(self, amount: int) -> None:
        """Count what is used, from which the demand is predicted."""
        self._used += amount

    def on_reported(self, amount: int) -> None:
        """Usage has been reported: it is no longer counted as held."""
        self.unreported = max(0, self.unreported - amount)

    # ---- the control service

    def is_due(self, now: float) -> bool:
        """Whether the lease has to be renewed, or the demand may have changed."""
        if self.answered_at is None or now - self.touched_at < _AHEAD_S:
            return True
        return bool(self.held or self.available) and now - self.answered_at > _RENEWAL_S

    def ask(self, required: int, now: float) -> pb.LimitShareRequest:
        """Ask for a share, and give back what is more than the predicted demand."""
        target = self._demand(now)
        returned = 0
        if not required and self.available > 2 * target:
            returned = self.available - target
            self.available = target
        return pb.LimitShareRequest(
            **self.key._asdict(),
            held=self.held,
            returned=(returned if self.available >= 0 else self.available) if self.is_rate else 0,
            required=required,
            desired=max(0, target - max(self.available, 0)),
        )

    def answer(
        self, asked: pb.LimitShareRequest, share: pb.LimitShare, now: float, wall_s: float
    ) -> None:
        """Add what control has granted; `wall_s` is the time since the epoch."""
        if self.is_rate:
            self.available -= min(asked.returned, 0)  # what was owed has been paid
        else:  # what was used beyond the share counts as held, or as usage
            self.available = max(self.available, 0)
        self.available += share.granted
        self.reset_s = max(0.0, share.reset_time.ToMilliseconds() / 1000 - wall_s)
        self.remaining = share.remaining
        self.answered_at, self._alone_at = now, None
        self._num_holders = max(1, share.num_holders)
        if asked.required and share.granted < asked.required:
            self.refused = (asked.required, now)

    def serve_alone(self, now: float, grace_s: float) -> None:
        """Take an equal part of what control had left, and of what it would refill.

        Raises UpstreamUnavailable if control has not answered within `grace_s`.
        """
        if self.answered_at is None or now - self.answered_at > grace_s:
            raise UpstreamUnavailable(service="control")
        if self._alone_at is None:
            self.available += self.remaining // self._num_holders
            self.remaining, self._alone_at = 0, self.answered_at
        if self.is_rate:
            rate = self.limit.amount / MINUTE_S / self._num_holders
            refilled = math.floor((now - self._alone_at) * rate)
            self._alone_at += refilled / rate
            most = max(self.available, self.limit.amount // self._num_holders)
            self.available = min(self.available + refilled, most)

    def _demand(self, now: float) -> int:
        """What is used in `_AHEAD_S`, from an average of the last seconds."""
        if (elapsed_s := now - self._used_since) >= 0.5:
            self._used_per_s = (self._used_per_s + self._used / elapsed_s) / 2
            self._used, self._used_since = 0, now
        if self.limit.unit == pb.Limit.UNIT_CONCURRENT_REQUESTS or self._used_per_s < 0.01:
            return 0
        return math.ceil(self._used_per_s * _AHEAD_S)

    # ---- what callers are told

    def left(self, now: float) -> int:
        """What all services have left, as far as this process knows."""
        refilled = 0.0
        if self.is_rate and self.answered_at is not None:
            refilled = (now - self.answered_at) * self.limit.amount / MINUTE_S
        left = int(self.remaining + refilled) + self.available
        return max(0, min(left, self.limit.amount))

    def status(self, now: float) -> RateLimitStatus:
        """The state of the limit, for callers."""
        status = RateLimitStatus(
            name=self.limit.id,
            unit=_UNITS.get(self.limit.unit),
            amount=self.limit.amount,
            remaining=self.left(now),
        )
        status.reset.FromMilliseconds(round(self._reset_s(now) * 1000))
        if self.limit.period:
            status.window.FromSeconds(self._window_s)
        return status

    def refusal(self, amount: int, now: float) -> DomainError:
        """The error for a request that needs more than is left."""
        left, reset_s = self.left(now), self._reset_s(now)
        metadata: dict[str, Any] = {
            "name": self.limit.id,
            "limit": self._words,
            "unit": pb.Limit.Unit.Name(self.limit.unit).removeprefix("UNIT_").lower(),
            "amount": self.limit.amount,
            "remaining": left,
            "requested": amount,
            "window_s": self._window_s,
            "reset_s": math.ceil(reset_s),
        }
        if self.is_budget:
            return BudgetExceeded(**metadata, retry_after=reset_s)
        retry_after: float | None = _SLOT_RETRY_S
        if amount > self.limit.amount:
            retry_after = None
        elif self.is_rate:
            retry_after = max(0.05, (amount - left) * MINUTE_S / self.limit.amount)
        return RateLimited(**metadata, retry_after=retry_after)

    @property
    def _window_s(self) -> int:
        if not self.limit.period:
            return 0
        return _WINDOWS_S.get(self.limit.period, _MONTH_S)

    def _reset_s(self, now: float) -> float:
        if self.is_budget:
            return max(0.0, self.reset_s - (now - (self.answered_at or now)))
        if self.is_rate:
            return (self.limit.amount - self.left(now)) * MINUTE_S / self.limit.amount
        return 0.0

    @property
    def _words(self) -> str:
        amount, unit = f"{self.limit.amount:,}", pb.Limit.Unit.Name(self.limit.unit)
        if self.limit.unit == pb.Limit.UNIT_COST:
            amount = f"{self.limit.amount / 1e9:,.9f}".rstrip("0").rstrip(".")
        words = f"{amount} {unit.removeprefix('UNIT_').lower().replace('_', ' ')}"
        if self.limit.period:
            words += f" per {pb.Limit.Period.Name(self.limit.period)[7:].lower()}"
        return words


@dataclass(slots=True)
class Reservation:
    """What one request has reserved of a bucket."""

    bucket: Bucket
    amount: int
    used: int = 0

    def use(self, amount: int) -> None:
        """Count an amount as used. What exceeds the reservation is taken from the share, even if
        it has too little: a running request is never refused."""
        bucket = self.bucket
        self.used += amount
        bucket.count_use(amount)
        if (extra := self.used - self.amount) > 0:
            self.amount += extra
            bucket.available -= extra
            bucket.reserved += extra
        if bucket.is_rate:
            bucket.reserved -= amount

    def close(self) -> None:
        """Return what was not used."""
        bucket, rest = self.bucket, self.amount - self.used
        bucket.available += rest
        if bucket.is_rate:
            bucket.reserved -= rest
            return
        bucket.reserved -= self.amount
        bucket.unreported += self.used
