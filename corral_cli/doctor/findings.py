"""What `corral doctor` finds: one line a check, as text or JSON."""

from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

import click

from svc_kit.terminal import escape


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    """Corral runs, but not as well as it could."""
    ERROR = "error"
    """Corral does not start or does not work."""


_COLORS = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "red"}
_LEVEL_WIDTH = max(map(len, Level))
_RENEWAL_DAYS = 21


@dataclass(frozen=True)
class Finding:
    check: str
    level: Level
    message: str
    """What was found, with figures."""
    remedy: str = ""
    """What to do about it; empty if nothing, or if the message has it."""

    def as_json(self) -> dict[str, Any]:
        """The finding as a JSON object."""
        return asdict(self)

    def as_line(self, width: int) -> str:
        """The finding as one line; `width` is that of the longest name of a check."""
        level = click.style(self.level.ljust(_LEVEL_WIDTH), fg=_COLORS[self.level])
        remedy = f"; {self.remedy}" if self.remedy else ""
        return f"{level}  {escape(f'{self.check.ljust(width)}  {self.message}{remedy}')}"


def ok(check: str, message: str) -> Finding:
    """A check that passed."""
    return Finding(check, Level.OK, message)


def warning(check: str, message: str, remedy: str) -> Finding:
    """Something that will be in the way later."""
    return Finding(check, Level.WARNING, message, remedy)


def error(check: str, message: str, remedy: str) -> Finding:
    """Something without which Corral does not work."""
    return Finding(check, Level.ERROR, message, remedy)


def check_expiry(check: str, certificate: str, end: datetime, now: datetime) -> Finding:
    """A certificate that is valid until `end`; it is a warning three weeks before."""
    if end <= now:
        return error(check, f"{certificate} expired on {end:%Y-%m-%d}", "renew it")
    days = (end - now).days
    message = f"{certificate} is valid for {days} days"
    return warning(check, message, "renew it") if days < _RENEWAL_DAYS else ok(check, message)
