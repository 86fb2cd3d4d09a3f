"""Tests of the output stream of a request."""

import asyncio

import pytest

from inference_svc.engine.events import Delta, Failed, Finished, FinishReason, Started, Timings
from inference_svc.engine_client.output_stream import OutputStream, ReaderLimits, StreamEvent
from svc_kit.errors import DecodeFailed, EngineRestarting, SlowReader


def make_delta(text: str, sequence_id: int = 10) -> Delta:
    return Delta(sequence_id, (text,), (1,), ())


def make_finished(sequence_id: int = 10) -> Finished:
    return Finished(sequence_id, FinishReason.STOP, None, 2, 1, Timings(0.0, 0.0, 0.0))


class StreamHarness:
    """An output stream that records its calls of `set_paused` and `cancel`."""

    def __init__(self, ids: tuple[int, ...] = (10,), limits: ReaderLimits | None = None) -> None:
        self.pauses: list[bool] = []
        self.num_cancels = 0
        self.cancelled = asyncio.Event()
        self.output = OutputStream(
            "req",
            ids,
            limits or ReaderLimits(4, 60.0),
            set_paused=self.pauses.append,
            cancel=self._cancel,
        )

    def _cancel(self) -> None:
        self.num_cancels += 1
        self.cancelled.set()

    def deliver(self, *events: Started | Delta | Finished | Failed) -> None:
        for event in events:
            self.output.deliver(event)

    async def read(
        self, into: list[list[StreamEvent]] | None = None, interval_s: float = 0.0
    ) -> list[list[StreamEvent]]:
        """Read to the end; `into` gets what was read before an error."""
        batches = [] if into is None else into
        while batch := await self.output.read(interval_s):
            batches.append(batch)
        return batches


async def test_unread_deltas_of_a_sequence_are_joined() -> None:
    """A slow reader gets fewer, larger deltas, each with its tokens, then the end."""
    stream = StreamHarness((10, 11))
    started = Started(10, 3, 0)
    stream.deliver(started, make_delta("a"), make_delta("x", 11), make_delta("b"), make_finished())
    assert not stream.output.is_finished
    stream.deliver(make_finished(11))

    assert await stream.read() == [
        [
            *(started, Delta(10, ("a", "b"), (1, 1), ()), make_finished()),
            *(make_delta("x", 11), make_finished(11)),
        ]
    ]


async def test_a_delta_that_was_read_is_not_joined() -> None:
    """A fast reader gets every token by itself."""
    stream = StreamHarness()
    for text in ("a", "b"):
        stream.deliver(make_delta(text))
        assert await stream.output.read() == [make_delta(text)]


async def test_a_failure_follows_pending_events_and_cancels_the_other_choices() -> None:
    """No output is lost."""
    stream = StreamHarness((10, 11))
    stream.deliver(make_delta("a"), Failed(11, DecodeFailed(request_id="r")))
    batches: list[list[StreamEvent]] = []
    with pytest.raises(DecodeFailed):
        await stream.read(batches)

    assert [len(batch) for batch in batches] == [1]
    assert stream.num_cancels == 1


async def test_a_slow_reader_pauses_the_sequences_until_it_reads() -> None:
    """Once each, at the limit and when it has caught up."""
    stream = StreamHarness()
    stream.deliver(*(make_delta("x") for _ in range(6)))
    assert (stream.pauses, stream.output.is_paused) == ([True], True)
    await stream.output.read()

    assert (stream.pauses, stream.output.is_paused) == ([True, False], False)
    stream.output.close()


async def test_a_stream_that_stays_paused_fails() -> None:
    """Its sequences are cancelled and its unread events are dropped."""
    stream = StreamHarness(limits=ReaderLimits(2, 0.01))
    stream.deliver(make_delta("x"), make_delta("y"))
    await stream.cancelled.wait()

    with pytest.raises(SlowReader):
        await stream.output.read()
    assert stream.num_cancels == 1


async def test_closing_cancels_running_sequences_once() -> None:
    running, finished = StreamHarness(), StreamHarness()
    finished.deliver(make_finished())
    for stream in (running, finished):
        stream.output.close()
        stream.output.close()

    assert (running.num_cancels, finished.num_cancels) == (1, 0)


async def test_only_the_first_error_is_raised_and_late_events_are_ignored() -> None:
    """A stream ends once."""
    stream = StreamHarness()
    stream.output.fail(EngineRestarting(retry_after=1.0))
    stream.output.fail(DecodeFailed(request_id="r"))
    stream.deliver(make_delta("late"))

    with pytest.raises(EngineRestarting):
        await stream.read()


@pytest.mark.parametrize("end", [make_finished(), Started(10, 0, 0)])
async def test_deltas_are_gathered_until_something_else_comes(end: Finished | Started) -> None:
    """The end of a choice is not delayed by the interval."""
    stream = StreamHarness(limits=ReaderLimits(100, 60.0))
    reading = asyncio.ensure_future(stream.output.read(interval_s=600.0))
    stream.deliver(make_delta("a"))
    await asyncio.sleep(0)
    stream.deliver(make_delta("b"), end)

    assert await reading == [Delta(10, ("a", "b"), (1, 1), ()), end]


async def test_gathering_ends_after_the_interval() -> None:
    stream = StreamHarness()
    stream.deliver(make_delta("a"))

    assert await stream.output.read(interval_s=0.001) == [make_delta("a")]


async def test_gathering_pauses_no_sequence() -> None:
    """It ends before a slow reader would be noticed."""
    stream = StreamHarness(limits=ReaderLimits(4, 60.0))
    reading = asyncio.ensure_future(stream.output.read(interval_s=600.0))
    stream.deliver(make_delta("a"), make_delta("b"))

    assert await reading == [Delta(10, ("a", "b"), (1, 1), ())]
    assert stream.pauses == []


async def test_a_failure_ends_gathering() -> None:
    stream = StreamHarness()
    reading = asyncio.ensure_future(stream.read(interval_s=600.0))
    stream.deliver(make_delta("a"))
    stream.output.fail(EngineRestarting(retry_after=1.0))

    with pytest.raises(EngineRestarting):
        await reading
