"""Headers that tell callers what their limits have left: OpenAI's or Anthropic's, and those of the
IETF draft.

`x-ratelimit-*` and `anthropic-ratelimit-*` are about the limit of requests, and of tokens, with the
least left. `RateLimit` and `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers-11) name all
enforced limits.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from corral.inference.v1.generation_pb2 import RateLimitStatus
from starlette.types import Scope

from gateway.http.dialect import Dialect, dialect_of
from svc_kit.errors import BudgetExceeded, RateLimited

_RATE_LIMITS: Final = "corral.rate_limits"
_UNITS: Final = {RateLimitStatus.UNIT_REQUESTS: "requests", RateLimitStatus.UNIT_TOKENS: "tokens"}
_QUOTA_UNITS: Final = {
    RateLimitStatus.UNIT_TOKENS: "tokens",
    RateLimitStatus.UNIT_CONCURRENT_REQUESTS: "concurrent-requests",
    RateLimitStatus.UNIT_UNSPECIFIED: "cost",
}
"""The default of the draft is "requests"."""
Headers = list[tuple[bytes, bytes]]


def set_rate_limits(scope: Scope, message: object) -> None:
    """Keep the limits in the first message of a call for the headers of the response."""
    source = getattr(message, "accepted", message)
    if statuses := getattr(source, "rate_limits", ()):
        scope[_RATE_LIMITS] = statuses


def rate_limit_headers(scope: Scope) -> Headers:
    """The headers of a response; none if no limit applies to it."""
    statuses = scope.get(_RATE_LIMITS, ())
    return _headers(statuses, dialect_of(scope)) if statuses else []


def refusal_headers(
    error: RateLimited | BudgetExceeded, dialect: Dialect = Dialect.OPENAI
) -> Headers:
    units = {name: unit for unit, name in _UNITS.items()}
    units["concurrent_requests"] = RateLimitStatus.UNIT_CONCURRENT_REQUESTS
    status = RateLimitStatus(
        name=error.name,
        unit=units.get(error.unit),
        amount=error.amount,
        remaining=error.remaining,
    )
    status.reset.FromSeconds(error.reset_s)
    if error.window_s:
        status.window.FromSeconds(error.window_s)
    return _headers([status], dialect)


def _headers(statuses: Sequence[RateLimitStatus], dialect: Dialect) -> Headers:
    write = _anthropic if dialect is Dialect.ANTHROPIC else _openai
    headers: Headers = []
    for unit, name in _UNITS.items():
        of_unit = [status for status in statuses if status.unit == unit]
        if of_unit:
            headers += write(min(of_unit, key=lambda each: each.remaining / each.amount), name)
    policies = ", ".join(map(_policy, statuses))
    limits = ", ".join(map(_limit, statuses))
    return [*headers, (b"ratelimit-policy", policies.encode()), (b"ratelimit", limits.encode())]


def _openai(status: RateLimitStatus, unit: str) -> Headers:
    values = {
        "limit": str(status.amount),
        "remaining": str(status.remaining),
        "reset": format_reset(status.reset.ToMilliseconds()),
    }
    return [
        (f"x-ratelimit-{name}-{unit}".encode(), value.encode()) for name, value in values.items()
    ]


def _anthropic(status: RateLimitStatus, unit: str) -> Headers:
    reset = datetime.now(UTC) + status.reset.ToTimedelta()
    values = {
        "limit": str(status.amount),
        "remaining": str(status.remaining),
        "reset": reset.isoformat(timespec="seconds").replace("+00:00", "Z"),
    }
    return [
        (f"anthropic-ratelimit-{unit}-{name}".encode(), value.encode())
        for name, value in values.items()
    ]


def _policy(status: RateLimitStatus) -> str:
    text = f'"{status.name}";q={status.amount}'
    if status.HasField("window"):
        text += f";w={status.window.seconds}"
    if unit := _QUOTA_UNITS.get(status.unit):
        text += f';qu="{unit}"'
    return text


def _limit(status: RateLimitStatus) -> str:
    return f'"{status.name}";r={status.remaining};t={-(-status.reset.ToMilliseconds() // 1000)}'


def format_reset(milliseconds: int) -> str:
    """Format a time as OpenAI does: "120ms", "1s", "6m0s", "1h0m0s"."""
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    seconds, rest = divmod(milliseconds, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    fraction = f".{rest:03}".rstrip("0") if rest else ""
    text = f"{seconds}{fraction}s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text
