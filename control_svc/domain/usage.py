"""What was used: deltas that services report, added to sums by project, model and hour."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple, Self
from urllib.parse import quote, unquote

from control_svc.domain.checks import check_text
from svc_kit.errors import InvalidField, MissingField, OutOfRange, TooLong

HOUR: Final = timedelta(hours=1)
MAX_DELTAS: Final = 1000
MAX_REPORT_ID_CHARACTERS: Final = 64
_MOST: Final = 2**40
"""More than anybody computes in an hour, and less than would run over a sum."""
OLDEST_REPORT: Final = timedelta(days=2)
REMEMBERED_FOR: Final = timedelta(days=3)
"""Longer than a report can be late: one that is forgotten is no longer taken."""


class Counts(NamedTuple):
    """Sums over requests."""

    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(frozen=True, order=True)
class UsagePlace:
    """Which sum is meant. Ordered as lists are: by time, project and model."""

    start: datetime
    project: str
    model: str


@dataclass(frozen=True)
class UsageSum:
    """A sum, or what is to be added to one."""

    place: UsagePlace
    counts: Counts

    @property
    def id(self) -> str:
        """Its place as a list's cursor: whatever its names hold, plain characters."""
        place = self.place
        return f"{int(place.start.timestamp())}/{_plain(place.project)}/{_plain(place.model)}"

    @staticmethod
    def place_of(cursor: str) -> UsagePlace:
        """The place that a cursor of ours stands for."""
        seconds, project, model = cursor.split("/")
        start = datetime.fromtimestamp(int(seconds), tz=UTC)
        return UsagePlace(start, unquote(project), unquote(model))


def _plain(name: str) -> str:
    return quote(name, safe="")


@dataclass(frozen=True)
class UsageReport:
    """What one service counted since its report before."""

    id: str
    deltas: Sequence[UsageSum]

    def check(self, now: datetime) -> Self:
        """Raises MissingField, TooLong, InvalidField or OutOfRange."""
        check_text("report_id", self.id, MAX_REPORT_ID_CHARACTERS)
        if not self.deltas:
            raise MissingField(field="deltas")
        if len(self.deltas) > MAX_DELTAS:
            raise TooLong(field="deltas", length=len(self.deltas), limit=MAX_DELTAS)
        for number, delta in enumerate(self.deltas):
            _check_delta(f"deltas[{number}]", delta, now)
        return self


def _check_delta(field: str, delta: UsageSum, now: datetime) -> None:
    place = delta.place
    check_text(f"{field}.project", place.project)
    check_text(f"{field}.model", place.model)
    if not now - OLDEST_REPORT <= place.start <= now + HOUR:
        raise InvalidField(field=f"{field}.hour", problem="it is not within the last two days")
    for name, value in zip(Counts._fields, delta.counts, strict=True):
        if not 0 <= value <= _MOST:
            raise OutOfRange(field=f"{field}.counts.{name}", value=value, minimum=0, maximum=_MOST)


def hour_of(time: datetime) -> datetime:
    """The begin of the hour that a time is in."""
    return time.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def day_of(time: datetime) -> datetime:
    """The begin of the day, in UTC, that a time is in."""
    return hour_of(time).replace(hour=0)


class Period(StrEnum):
    """What is summed up."""

    HOUR = "hour"
    DAY = "day"


@dataclass(frozen=True, kw_only=True)
class UsageQuery:
    """Which sums an operator asks for; empty and None leave nothing out."""

    project: str = ""
    model: str = ""
    start: datetime | None = None
    end: datetime | None = None
    period: Period = Period.DAY

    def check(self) -> None:
        """Raises TooLong or InvalidField."""
        for field in ("project", "model"):
            if value := getattr(self, field):
                check_text(field, value)
        if self.start is not None and self.end is not None and self.end <= self.start:
            raise InvalidField(field="end_time", problem="it is not after start_time")
