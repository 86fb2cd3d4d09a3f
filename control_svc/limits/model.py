"""Limits, and how the amount of a limit is divided among the services that enforce it.

The services are holders. A holder gets shares and uses them without asking again. What all holders
have together, and what is left here, is never more than the amount of the limit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from control_svc.base.validation import (
    PROJECT_ID_PATTERN,
    check_range,
)
from control_svc.projects.usage import UsageTotal
from svc_kit.errors import InvalidField, MissingField

MAX_AMOUNT: Final = 10**15
MAX_LIMITS: Final = 1000
LEASE: Final = timedelta(seconds=15)
"""How long a share stays reserved for a holder that does not call again."""
_MOST_SKEW: Final = timedelta(minutes=1)
"""Between clocks of control services; one that goes back further was set."""


class Unit(StrEnum):
    """What is counted."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    CONCURRENT_REQUESTS = "concurrent_requests"
    COST = "cost"


class Period(StrEnum):
    """The time in which the amount can be used."""

    MINUTE = "minute"
    DAY = "day"
    MONTH = "month"


class Mode(StrEnum):
    """What happens to requests beyond the limit."""

    ENFORCE = "enforce"
    SHADOW = "shadow"


class Subject(StrEnum):
    """What has an amount of its own under a limit."""

    PROJECT = "project"
    KEY = "key"
    MODEL = "model"


class BucketKey(NamedTuple):
    """Project, key and model of requests, or of an amount: those that its limit has one for."""

    project: str = ""
    key: str = ""
    model: str = ""

    @property
    def id(self) -> str:
        """The name of the amount among those of its limit."""
        return "/".join(quote(value, safe="") for value in self)

    @classmethod
    def parse(cls, bucket_id: str) -> "BucketKey":
        """Decode an id."""
        return cls(*map(unquote, bucket_id.split("/")))


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A limit; see `corral.control.v1.Limit`."""

    id: str
    project: str = ""
    key: str = ""
    model: str = ""
    per: tuple[Subject, ...] = ()
    unit: Unit
    amount: int
    period: Period | None = None
    mode: Mode = Mode.ENFORCE
    created_at: datetime | None = None

    def check(self) -> None:
        """Validate a new limit. Raises MissingField, InvalidField, TooLong or OutOfRange."""
        if not self.id:
            raise MissingField(field="limit.id")
        if not PROJECT_ID_PATTERN.fullmatch(self.id):
            problem = (
                'it must have 1 to 63 lower-case letters, digits, ".", "_" and "-", and start with'
                " a letter or digit"
            )
            raise InvalidField(field="limit.id", problem=problem)
        for subject in Subject:
            if self.per.count(subject) > 1:
                raise InvalidField(field="limit.per", problem=f"{subject} is named twice")
        self.check_amount()
        if (self.unit is Unit.CONCURRENT_REQUESTS) != (self.period is None):
            problem = "concurrent requests have no period, and all other units have one"
            raise InvalidField(field="limit.period", problem=problem)

    def check_amount(self) -> None:
        """Raise OutOfRange for an amount that is too small or too large."""
        check_range("limit.amount", self.amount, 1, MAX_AMOUNT)

    @property
    def is_rate(self) -> bool:
        """Whether the amount is refilled continuously."""
        return self.period is Period.MINUTE

    def applies_to(self, caller: BucketKey) -> bool:
        return all(getattr(self, each) in ("", getattr(caller, each)) for each in BucketKey._fields)

    def bucket_of(self, caller: BucketKey) -> BucketKey:
        """The amount that requests with this project, key and model use."""
        return BucketKey(*(getattr(caller, each) if each in self.per else "" for each in Subject))

    def window(self, now: datetime) -> tuple[datetime, datetime]:
        """Start and end of the day or month of a budget, in UTC."""
        start = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        if self.period is Period.DAY:
            return start, start + timedelta(days=1)
        start = start.replace(day=1)
        return start, (start + timedelta(days=32)).replace(day=1)

    def used(self, total: UsageTotal) -> int:
        """What usage counts against the budget."""
        match self.unit:
            case Unit.REQUESTS:
                return total.counts.requests
            case Unit.COST:
                return total.cost_nanos
            case _:
                return total.counts.prompt_tokens + total.counts.completion_tokens


@dataclass(frozen=True, kw_only=True)
class ShareRequest:
    """A holder asks for a share; see `corral.control.v1.LimitShareRequest`."""

    limit_id: str
    project: str = ""
    key: str = ""
    model: str = ""
    held: int = 0
    returned: int = 0
    required: int = 0
    desired: int = 0
    used: int | None = None

    @property
    def bucket(self) -> BucketKey:
        """The amount that is asked for."""
        return BucketKey(self.project, self.key, self.model)


class Caller(NamedTuple):
    """A holder, and which of its calls this is; 0 in earlier releases."""

    holder: str
    number: int = 0


class Holding(NamedTuple):
    """What a holder has of an amount since its last call, for as long as its lease lasts."""

    held: int
    used: int
    """What it has used of a rate, in total."""
    number: int
    """Of the call."""
    expires_at: datetime

    def is_leased(self, now: datetime) -> bool:
        """Whether others may not use it. A lease that is much too long was given before a clock was
        set back."""
        return timedelta(0) < self.expires_at - now <= 2 * LEASE

    def returned(self, request: ShareRequest, amount: int, now: datetime) -> int:
        """What the holder has given back to a rate since; negative after it used more.

        It follows from totals, so that calls whose request or answer was lost need no correction.
        After the lease, others may have used its share, and the rate may have been refilled: it
        owes one amount at most.
        """
        used = 0 if request.used is None else request.used - self.used
        returned = self.held - request.held - used
        return returned if self.is_leased(now) else max(returned, -amount)


class Share(NamedTuple):
    """What a holder gets; see `corral.control.v1.LimitShare`."""

    granted: int = 0
    remaining: int = 0
    num_holders: int = 1
    reset_at: datetime | None = None


@dataclass(frozen=True)
class RateBucket:
    """What is left of a rate, as a token bucket; negative after more was used than granted."""

    level: float
    updated_at: datetime

    def refill(self, amount: int, now: datetime, held: int) -> "RateBucket":
        """Add what time has brought. `held` is what all holders had meanwhile.

        A bucket is full when level and `held` are the amount, so that returned shares cannot be
        used on top of it.
        """
        elapsed_s = max(0.0, (now - self.updated_at).total_seconds())
        level = min(self.level + elapsed_s * amount / 60, float(amount - held))
        is_set_back = self.updated_at - now > _MOST_SKEW
        return RateBucket(level, now if is_set_back else max(now, self.updated_at))

    def add(self, returned: int, amount: int, held: int) -> "RateBucket":
        """Add what a holder returns; `held` is what all holders have now."""
        return replace(self, level=min(self.level + returned, float(amount - held)))

    def subtract(self, granted: int) -> "RateBucket":
        return replace(self, level=self.level - granted)


def divide(free: float, request: ShareRequest, num_holders: int) -> Share:
    """Grant what is required if it is free, and of the rest at most what is desired.

    A holder gets no more than half of an equal part of the rest in advance: what is granted to one
    cannot be used by the others.
    """
    granted = request.required if request.required <= free else 0
    rest = max(0, int(free) - granted)
    granted += min(request.desired, rest // (2 * num_holders))
    return Share(granted, max(0, int(free) - granted), num_holders)


class Division(NamedTuple):
    """A granted share, and what is stored of it."""

    share: Share
    level: RateBucket
    holding: Holding


def grant(
    limit: Limit,
    level: RateBucket,
    holdings: Mapping[str, Holding],
    caller: Caller,
    request: ShareRequest,
    *,
    used: int,
    now: datetime,
) -> Division | None:
    """Grant a share of an amount; `used` is the usage of a budget. None if the holder has called
    again since."""
    own = holdings.get(caller.holder)
    if own is not None and 0 < caller.number <= own.number:
        return None
    others = [
        each.held
        for holder, each in holdings.items()
        if holder != caller.holder and each.is_leased(now)
    ]
    held = sum(others) + request.held
    if limit.is_rate:
        # What the holder has used of its share, it may have used just now.
        before = own.held if own is not None and own.is_leased(now) else 0
        returned = request.returned
        if caller.number:
            returned = own.returned(request, limit.amount, now) if own is not None else 0
        level = level.refill(limit.amount, now, sum(others) + before)
        level = level.add(returned, limit.amount, held)
        share = divide(level.level, request, len(others) + 1)
        level = level.subtract(share.granted)
    else:
        share = divide(limit.amount - used - held, request, len(others) + 1)
        level = replace(level, updated_at=now)
    holding = Holding(request.held + share.granted, request.used or 0, caller.number, now + LEASE)
    return Division(share, level, holding)
