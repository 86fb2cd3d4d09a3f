"""The shares of projects in a queue."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc_kit.errors import QueueFull
from svc_kit.queue_share import QueueEntry, check_queue

NEW = st.builds(QueueEntry, st.sampled_from("abcd"), st.integers(0, 1), st.integers(1, 4))
STEPS = st.lists(st.tuples(NEW, st.integers(0, 3)), max_size=60)


def is_admitted(waiting: Sequence[QueueEntry], new: QueueEntry, limit: int) -> bool:
    depth = sum(each.amount for each in (*waiting, new))
    try:
        check_queue("requests", limit, waiting, new, depth=depth)
    except QueueFull:
        return False
    return True


@given(STEPS, st.integers(0, 24))
def test_a_project_gets_its_share_and_the_queue_stays_bounded(
    steps: list[tuple[QueueEntry, int]], limit: int
) -> None:
    """Whatever others have: the oracle divides the limit by projects, then by priorities. What is
    refused would exceed the limit, which one project exceeds by the share of its other priority."""
    queue: list[QueueEntry] = []
    for new, num_served in steps:
        del queue[:num_served]
        before = sum(each.amount for each in queue)
        classes: dict[str, set[int]] = {}
        for each in (*queue, new):
            classes.setdefault(each.project, set()).add(each.priority)
        part = limit / len(classes) / len(classes[new.project])
        held = sum(each.amount for each in queue if each[:2] == new[:2])
        fits = before + new.amount <= limit
        admitted = is_admitted(queue, new, limit)
        assert admitted == (fits or held + new.amount <= max(part, min(limit, 1)))
        if admitted:
            queue.append(new)
        held_by = Counter[str]()
        for each in queue:
            held_by[each.project] += each.amount
        assert max(held_by.values(), default=0) <= limit + max(limit // 2, min(limit, 1))
        assert held_by.total() <= 1.5 * limit * (1 + 1 / 2 + 1 / 3 + 1 / 4) + 8


def test_a_project_alone_may_fill_the_queue_and_others_still_get_in() -> None:
    """The issue's case: 300 requests of one project, then those of another."""
    queue: list[QueueEntry] = []
    for project in ["a"] * 300 + ["b"] * 300 + ["a"]:
        if is_admitted(queue, QueueEntry(project), 256):
            queue.append(QueueEntry(project))

    assert Counter(each.project for each in queue) == {"a": 256, "b": 128}


def test_the_error_names_the_share() -> None:
    queue = [QueueEntry("a")] * 4 + [QueueEntry("b")] * 2
    with pytest.raises(QueueFull) as refusal:
        check_queue("requests", 4, queue, QueueEntry("b"), depth=7, retry_after=3.0)

    error = refusal.value
    assert error.metadata == {
        "bound": "requests", "depth": "7", "limit": "4", "held": "2", "share": "2",
    }  # fmt: skip
    assert error.retry_after == 3.0
    assert "Your project has 2 of its share of 2" in str(error)
