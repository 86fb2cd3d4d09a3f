"""Tests of the queue limits."""

import pytest

from inference_svc.engine_client.queue_limits import QueueLimits
from svc_kit.errors import QueueFull

LIMITS = QueueLimits(requests=4, tokens=100)


def test_a_queue_at_its_limits_is_accepted() -> None:
    """The limits are inclusive."""
    LIMITS.check(requests=4, tokens=100, retry_after=0.0)


@pytest.mark.parametrize(
    ("requests", "tokens", "bound", "depth", "limit"),
    [(5, 0, "requests", "5", "4"), (4, 101, "tokens", "101", "100")],
)
def test_a_queue_beyond_a_limit_is_refused(
    requests: int, tokens: int, bound: str, depth: str, limit: str
) -> None:
    """The error has the limit's name, the queue's size and the limit."""
    with pytest.raises(QueueFull) as refusal:
        LIMITS.check(requests=requests, tokens=tokens, retry_after=7.04)

    assert refusal.value.metadata == {"bound": bound, "depth": depth, "limit": limit}
    assert refusal.value.retry_after == 7.0


@pytest.mark.parametrize(("estimate", "retry_after"), [(0.01, 1.0), (3600.0, 60.0)])
def test_retry_after_is_between_a_second_and_a_minute(estimate: float, retry_after: float) -> None:
    """The estimate is clamped."""
    with pytest.raises(QueueFull) as refusal:
        LIMITS.check(requests=9, tokens=0, retry_after=estimate)

    assert refusal.value.retry_after == retry_after
