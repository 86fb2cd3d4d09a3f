"""What the frontend knows of sequences that wait and run."""

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
from inference_svc.engine_client.requests import RequestTracker, SequenceEvent, Submission
from tests.support.sequences import a_request


async def test_it_follows_a_sequence_through_its_slots() -> None:
    """Started, moved, preempted, resumed; then it is forgotten."""
    sent: list[Command] = []
    jobs = RequestTracker(
        QueueLimits(4, 1000), ReaderLimits(9, 9.0), sent.append, on_left=lambda: None
    )
    jobs.submit([a_request()], Submission("r", "p", ""), first_id=7)
    events: list[SequenceEvent] = [
        Started(7, 3, 0, CacheSource.NONE),
        Moved(7, 1),
        Preempted(7),
        Resumed(7, 2),
    ]
    slots = []
    for event in events:
        jobs.deliver(event)
        slots.append(jobs.live[7].slot)
    jobs.deliver(Finished(7, FinishReason.STOP, None, None, 1, Timings(0.0, 0.0, 0.0)))

    assert [type(command) for command in sent] == [Submit]
    assert slots == [3, 1, None, 2]
    assert jobs.live == {}
    await jobs.wait_idle()


async def test_places_in_the_queue_are_counted_behind_the_slots() -> None:
    """With two slots, the fourth choice waits behind one."""
    jobs = RequestTracker(
        QueueLimits(4, 1000), ReaderLimits(9, 9.0), lambda _: None, on_left=lambda: None
    )
    jobs.slots = 2
    requests = [a_request()]
    ahead = [jobs.submit(requests, Submission(f"r{i}", "p", ""), first_id=i)[1] for i in range(4)]

    assert ahead == [0, 0, 0, 1]
