"""How much may wait."""

import pytest

from inference_svc.engine_client.queue_limits import QueueLimits
from svc_kit.errors import QueueFull

LIMITS = QueueLimits(requests=4, tokens=100)


def test_what_just_fits_may_wait() -> None:
    """The limits themselves are allowed."""
    LIMITS.check(requests=4, tokens=100, retry_after=0.0)


@pytest.mark.parametrize(
    ("requests", "tokens", "bound", "depth", "limit"),
    [(5, 0, "requests", "5", "4"), (4, 101, "tokens", "101", "100")],
)
def test_more_is_refused_with_the_sizes(
    requests: int, tokens: int, bound: str, depth: str, limit: str
) -> None:
    """Which bound, how much would wait, and how much may."""
    with pytest.raises(QueueFull) as refusal:
        LIMITS.check(requests=requests, tokens=tokens, retry_after=7.04)

    assert refusal.value.metadata == {"bound": bound, "depth": depth, "limit": limit}
    assert refusal.value.retry_after == 7.0


@pytest.mark.parametrize(("guess", "told"), [(0.01, 1.0), (3600.0, 60.0)])
def test_a_guess_is_held_to_what_a_client_would_do(guess: float, told: float) -> None:
    """Between a second and a minute."""
    with pytest.raises(QueueFull) as refusal:
        LIMITS.check(requests=9, tokens=0, retry_after=guess)

    assert refusal.value.retry_after == told
