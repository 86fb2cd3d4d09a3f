"""The queue of an engine has the sums of what waits, whatever happened to its sequences."""

from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from inference_svc.engine.events import (
    Cancelled,
    Failed,
    Finished,
    FinishReason,
    Moved,
    Preempted,
    Resumed,
    Started,
    Timings,
)
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine_client.output_stream import ReaderLimits
from inference_svc.engine_client.queue_limits import QueueLimits, WaitingRequests
from inference_svc.engine_client.requests import RequestTracker, SequenceEvent
from svc_kit.errors import EngineRestarting
from svc_kit.queue_share import QueueEntry
from tests.support.sequences import make_request

EVENTS: list[Callable[[int], SequenceEvent]] = [
    lambda i: Started(i, 0, 0),
    Preempted,
    lambda i: Resumed(i, 1),
    lambda i: Moved(i, 2),
    lambda i: Cancelled(i, "decode", 1, 1),
    lambda i: Failed(i, EngineRestarting()),
    lambda i: Finished(i, FinishReason.STOP, None, None, 1, Timings(0.0, 0.0, 0.0)),
]
events = st.tuples(st.sampled_from(EVENTS), st.integers(0, 3))
"""An event of one of the oldest live sequences."""
submissions = st.builds(
    lambda project, priority, length: make_request(
        prompt=list(range(1, length + 1)), project=project, priority=priority
    ),
    st.sampled_from(["red", "blue"]),
    st.integers(0, 1),
    st.integers(1, 5),
)


class AskedLimits(QueueLimits):
    """Limits that refuse nothing, and keep what waits when they are asked."""

    waiting: WaitingRequests

    def check(self, waiting: WaitingRequests, *_: Any, **__: Any) -> None:
        object.__setattr__(self, "waiting", waiting)


@example(steps=[make_request(), (EVENTS[0], 0), (Preempted, 0)])
@given(steps=st.lists(st.one_of(submissions, *[events] * 5, st.none()), min_size=5, max_size=40))
async def test_a_queue_has_the_sums_of_what_waits(steps: list[Any]) -> None:
    """`None` is a lost engine."""
    limits = AskedLimits(0, 0, 0)
    tracker = RequestTracker(limits, ReaderLimits(9, 9.0), lambda _: None, lambda: None, count())
    for step in steps:
        if step is None:
            tracker.fail_all(EngineRestarting())
        elif isinstance(step, SequenceRequest):
            tracker.submit([step])
        elif tracker.live:
            make_event, place = step
            tracker.deliver(make_event([*tracker.live][place % len(tracker.live)]))
        tracker.check_queue([QueueEntry("red")])
        check_sums(limits.waiting, tracker)


def check_sums(waiting: WaitingRequests, tracker: RequestTracker) -> None:
    """Compare them with those over the live sequences without a slot."""
    requests, tokens = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    for each in tracker.live.values():
        if each.is_waiting:
            owner = each.request.project, int(each.request.priority)
            requests[owner] += 1
            tokens[owner] += each.request.num_prompt_tokens
    assert {each[:2]: each.amount for each in waiting.requests} == requests
    assert {each[:2]: each.amount for each in waiting.tokens} == tokens
    assert waiting.num_tokens == tokens.total()
