"""Errors of rate limits and budgets."""

from svc_kit.errors.kinds import AlreadyExists, FailedPrecondition, NotFound, ResourceExhausted


class RateLimited(ResourceExhausted):
    """Rate limit '{name}' reached: {limit}. Remaining {remaining}, requested {requested}. Retry
    later."""

    name: str
    """The id of the limit."""
    limit: str
    """The limit in words, such as "60 requests per minute"."""
    unit: str
    """What is counted: "requests", "tokens", "concurrent_requests" or "cost"."""
    amount: int
    remaining: int
    requested: int
    window_s: int
    """The period; 0 for concurrent requests."""
    reset_s: int
    """Time until the whole amount can be used."""


class BudgetExceeded(FailedPrecondition):
    """Budget '{name}' exceeded: {limit}. Remaining {remaining}, requested {requested}. It begins
    again in {reset_s} s; an operator can raise it."""

    name: str
    """The id of the limit."""
    limit: str
    """The budget in words, such as "1000000 tokens per month"."""
    unit: str
    """What is counted: "requests", "tokens" or "cost"."""
    amount: int
    remaining: int
    requested: int
    window_s: int
    reset_s: int
    """Time until the budget begins again."""
    retry_after: float | None = None


class TooManyLimits(FailedPrecondition):
    """There are already {limit} limits, the maximum. Delete a limit first."""

    limit: int


class LimitNotFound(NotFound):
    """No such limit: {limit}"""

    limit: str
    field: str = "limit_id"


class LimitExists(AlreadyExists):
    """A limit with id '{limit}' already exists. Choose another id, or update that limit."""

    limit: str
    field: str = "limit.id"
