"""Tests of tracking waiting and running sequences."""

from collections.abc import Callable
from itertools import count

import pytest

from inference_svc.engine.events import (
    CacheSource,
    Finished,
    FinishReason,
    Moved,
    Preempted,
    Resumed,
    Started,
    Timings,
)
from inference_svc.engine.request import Command, Submit
from inference_svc.engine_client.output_stream import ReaderLimits
from inference_svc.engine_client.queue_limits import QueueLimits
from inference_svc.engine_client.requests import RequestTracker, SequenceEvent
from svc_kit.errors import QueueFull
from tests.support.sequences import make_request


def make_tracker(send: Callable[[Command], None] = lambda _: None) -> RequestTracker:
    """A tracker without slots."""
    return RequestTracker(
        QueueLimits(4, 1000, 1000), ReaderLimits(9, 9.0), send, lambda: None, count(7)
    )


async def test_the_slot_of_a_sequence_is_tracked() -> None:
    """Started, moved, preempted, resumed; it is removed when it finishes."""
    sent: list[Command] = []
    tracker = make_tracker(sent.append)
    tracker.submit([make_request()])
    events: list[SequenceEvent] = [
        Started(7, 3, 0, CacheSource.NONE),
        Moved(7, 1),
        Preempted(7),
        Resumed(7, 2),
    ]
    slots = []
    for event in events:
        tracker.deliver(event)
        slots.append(tracker.live[7].slot)
    tracker.deliver(Finished(7, FinishReason.STOP, None, None, 1, Timings(0.0, 0.0, 0.0)))

    assert [type(command) for command in sent] == [Submit]
    assert slots == [3, 1, None, 2]
    assert tracker.live == {}
    await tracker.wait_idle()


async def test_queue_positions_start_after_the_slots() -> None:
    """With two slots, one choice waits in front of the fourth."""
    tracker = make_tracker()
    tracker.slots = 2
    positions = [tracker.submit([make_request()])[1] for _ in range(4)]

    assert positions == [0, 0, 0, 1]


async def test_pictures_are_held_once_for_all_choices_until_the_last_has_ended() -> None:
    tracker = make_tracker()
    tracker.slots = 9
    tracker.submit([make_request(choice=i, media_bytes=600, request_id="r") for i in range(2)])
    ended = Finished(7, FinishReason.STOP, None, None, 1, Timings(0.0, 0.0, 0.0))
    tracker.submit([make_request(media_bytes=400, request_id="s")])
    tracker.deliver(ended)

    with pytest.raises(QueueFull, match="bytes of pictures"):
        tracker.submit([make_request(media_bytes=1)])
    tracker.submit([make_request()])
    tracker.deliver(ended._replace(sequence_id=8))
    tracker.submit([make_request(media_bytes=600)])
