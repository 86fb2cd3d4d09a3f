"""Tests of the queue limits."""

from collections.abc import Iterable

import pytest

from inference_svc.engine_client.queue_limits import QueueLimits, WaitingRequests
from svc_kit.errors import QueueFull
from svc_kit.queue_share import QueueEntry

LIMITS = QueueLimits(requests=4, tokens=100, media_bytes=50)
NEW = QueueEntry("a", 2, 10)


def waiting_requests(entries: Iterable[QueueEntry]) -> WaitingRequests:
    waiting = WaitingRequests()
    for entry in entries:
        waiting.add(entry)
    return waiting


def test_a_queue_at_its_limits_is_accepted() -> None:
    """The limits are inclusive."""
    LIMITS.check(WaitingRequests(), [NEW], requests=4, tokens=100, wait_s=lambda: 0.0)


@pytest.mark.parametrize(
    ("requests", "tokens", "bound", "depth", "limit"),
    [(5, 0, "requests", "5", "4"), (4, 101, "tokens", "101", "100")],
)
def test_a_queue_beyond_a_limit_and_a_share_is_refused(
    requests: int, tokens: int, bound: str, depth: str, limit: str
) -> None:
    """The error has the limit's name, the queue's size, the limit and the share."""
    waiting = waiting_requests([QueueEntry("a", 2, 30)] * 4)
    with pytest.raises(QueueFull) as refusal:
        LIMITS.check(waiting, [NEW], requests=requests, tokens=tokens, wait_s=lambda: 7.04)

    held = {"requests": "4", "tokens": "120"}[bound]
    shown = {"bound": bound, "depth": depth, "limit": limit, "held": held, "share": limit}
    assert refusal.value.metadata == shown
    assert refusal.value.retry_after == 7.0


@pytest.mark.parametrize("owner", ["other", "a"])
def test_a_full_queue_accepts_a_project_or_a_priority_below_its_share(owner: str) -> None:
    """Interactive requests get in beside the batches of their project, and one prompt of any length
    beside those of others."""
    waiting = waiting_requests([QueueEntry(owner, 3, 30)] * 4)

    LIMITS.check(waiting, [NEW, NEW], requests=6, tokens=140, wait_s=lambda: 1.0)
    LIMITS.check(waiting, [QueueEntry("a", 2, 900)], requests=5, tokens=1020, wait_s=lambda: 1.0)
    with pytest.raises(QueueFull, match="share of 2"):
        LIMITS.check(waiting, [NEW] * 3, requests=7, tokens=150, wait_s=lambda: 1.0)


@pytest.mark.parametrize(("estimate", "retry_after"), [(0.01, 1.0), (3600.0, 60.0)])
def test_retry_after_is_between_a_second_and_a_minute(estimate: float, retry_after: float) -> None:
    """The estimate is clamped."""
    waiting = waiting_requests([NEW] * 4)
    with pytest.raises(QueueFull) as refusal:
        LIMITS.check(waiting, [NEW], requests=5, tokens=0, wait_s=lambda: estimate)

    assert refusal.value.retry_after == retry_after


@pytest.mark.parametrize(
    ("held", "size", "is_accepted"),
    [
        ([], 900, True),  # one request, however large
        ([40], 10, True),
        ([40], 11, False),
        ([60], 1, False),
    ],
)
def test_the_bytes_of_pictures_have_a_limit(held: list[int], size: int, is_accepted: bool) -> None:
    entries, new = [QueueEntry("a", 2, each) for each in held], QueueEntry("a", 2, size)
    if is_accepted:
        LIMITS.check_media(entries, new, retry_after=1.0)
        return
    with pytest.raises(QueueFull, match="bytes of pictures") as refusal:
        LIMITS.check_media(entries, new, retry_after=0.5)
    assert (refusal.value.limit, refusal.value.depth) == (50, sum(held) + size)
    assert refusal.value.retry_after == 1.0


def test_a_project_has_its_share_of_the_pictures() -> None:
    held = [QueueEntry("other", 2, 50)]
    LIMITS.check_media(held, QueueEntry("a", 2, 25), retry_after=1.0)
    with pytest.raises(QueueFull, match="share of 25"):
        LIMITS.check_media(held, QueueEntry("a", 2, 26), retry_after=1.0)
