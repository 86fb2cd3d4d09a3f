"""One process's share of one amount of a limit.

Shares come from the control service (`limiter.py`). A request reserves what it will probably use,
uses it, and returns the rest.

A call of the control service may be lost, or its answer, or arrive late. So the bucket tells what
it holds and what it has used in total, from which control derives the rest. What it gives back is
from then on a part of what control has left, whether the call arrives or not.
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
_REFUSAL_S: Final = 0.2
"""A share that was refused is not asked for again within this time."""


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
        self.waiting = 0
        """What requests wait for."""
        self.remaining = 0
        """What control had left when it was last asked, and what was given back since; while the
        process serves alone, the parts of the others."""
        self.reset_s = 0.0
        """Time from the last answer to the end of a budget's period."""
        self.touched_at = now
        self.answered_at: float | None = None
        self.refused = (0, 0.0)
        """What control could not grant, and when it was asked."""
        self._num_holders = 1
        self._alone_at: float | None = None
        """Until when a rate was refilled without control; None unless the process serves alone."""
        self._taken = 0
        """Of what control had left, and has refilled, since it was asked."""
        self._unfilled = 0
        """What control refills of a rate until it is full, of the part of this process."""
        self._owed = 0
        """What was used beyond the share when control was asked."""
        self._total = 0
        """What was used of a rate, without what control has not refilled itself."""
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
    def period(self) -> str:
        """minute, day, month, or "" of concurrent requests."""
        if not self.limit.period:
            return ""
        return pb.Limit.Period.Name(self.limit.period).removeprefix("PERIOD_").lower()

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
        self._total += amount

    def on_reported(self, amount: int, now: float) -> None:
        """Usage has been reported: it is no longer counted as held, which control is told soon."""
        self.unreported = max(0, self.unreported - amount)
        self.touched_at = now

    # ---- the control service

    def is_due(self, now: float) -> bool:
        """Whether the lease has to be renewed, or the demand may have changed."""
        if self.answered_at is None or now - self.touched_at < _AHEAD_S:
            return True
        return bool(self.held or self.available) and now - self.answered_at > _RENEWAL_S

    def may_obtain(self, need: int, now: float) -> bool:
        """Whether the share has too little, and control may have enough."""
        refused, refused_at = self.refused
        was_refused = refused and need >= refused and now - refused_at < _REFUSAL_S
        return self.available < need <= self.limit.amount and not was_refused

    def ask(self, required: int, now: float, *, returns: bool) -> pb.LimitShareRequest:
        """Ask for a share that has `required`. `returns`: give back what is more than the predicted
        demand, and than other requests wait for."""
        target = max(self._demand(now), self.waiting - required)
        returned = 0
        if returns and not required and self.available > 2 * target:
            returned = self.available - target
            self.available = target
            self.remaining += returned
        self._owed, self._taken = max(0, -self.available), 0
        return pb.LimitShareRequest(
            **self.key._asdict(),
            held=self.held,
            used=self._total if self.is_rate and self.answered_at is not None else None,
            returned=returned - self._owed if self.is_rate else 0,  # for earlier releases
            required=required,
            desired=max(0, target - max(self.available, 0)),
        )

    def answer(
        self, asked: pb.LimitShareRequest, share: pb.LimitShare, now: float, wall_s: float
    ) -> None:
        """Add what control has granted; `wall_s` is the time since the epoch.

        While the process served alone, because the answer was late, it took of the same amount:
        what control would not have had left for that is not granted.
        """
        if self.is_rate:
            self.available += self._owed  # it has been paid
        else:  # what was used beyond the share counts as held, or as usage
            self.available = max(self.available, 0)
        self.available += share.granted - max(0, self._taken - share.remaining)
        self.reset_s = max(0.0, share.reset_time.ToMilliseconds() / 1000 - wall_s)
        self.remaining = max(0, share.remaining - self._taken)
        self.answered_at, self._alone_at = now, None
        self._num_holders = max(1, share.num_holders)
        if asked.required and share.granted < asked.required:
            self.refused = (asked.required, now)

    def serve_alone(self, now: float) -> bool:
        """Take an equal part of what control had left, and of what it would refill. Return whether
        control has answered before."""
        if self.answered_at is None:
            return False
        if self.is_budget and (late_s := now - self.answered_at - self.reset_s) >= 0:
            self.remaining = max(0, self.limit.amount - self.held)
            self.reset_s += (late_s // self._window_s + 1) * self._window_s
            self._alone_at = None
        if self._alone_at is None:
            self._alone_at = self.answered_at
            self._unfilled = max(0, self.limit.amount - self.remaining) // self._num_holders
            part = self.remaining // self._num_holders
            self.available += part
            self._taken += part
            self.remaining -= part
        if self.is_rate:
            self._refill(now)
        return True

    def _refill(self, now: float) -> None:
        """Refill a part of a rate. Control, which does the same, counts it until the rate is full:
        what was refilled beyond that was never a part of what it has."""
        rate = self.limit.amount / MINUTE_S / self._num_holders
        alone_at = self._alone_at if self._alone_at is not None else now
        refilled = math.floor((now - alone_at) * rate)
        self._alone_at = alone_at + refilled / rate
        most = max(self.available, self.limit.amount // self._num_holders)
        added = min(self.available + refilled, most) - self.available
        counted = min(added, self._unfilled)
        self.available += added
        self._unfilled -= counted
        self._taken += counted
        self._total -= added - counted

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
        """What all services have left, as far as this process knows; what it has left itself, while
        it serves alone."""
        if self._alone_at is not None:
            return max(0, min(self.available, self.limit.amount))
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

    def refusal(self, amount: int, now: float, *, is_in_doubt: bool) -> DomainError:
        """The error for a request that needs more than is left.

        It is UpstreamUnavailable if a budget may not be exhausted: other services may have a part
        that control would grant, or (`is_in_doubt`) control may have counted usage twice, since its
        answer to a report was lost.
        """
        may_be_left = is_in_doubt and self.unreported > 0
        if self._alone_at is not None:
            may_be_left = self.remaining > 0
        if self.is_budget and may_be_left and amount <= self.limit.amount:
            return UpstreamUnavailable(service="control")
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
        return f"{words} per {self.period}" if self.period else words


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
