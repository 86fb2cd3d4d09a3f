"""A request's stream on the event loop."""

import asyncio

import pytest

from inference_svc.engine.events import Delta, Event, Failed, Finished, FinishReason, Timings
from inference_svc.engine_client.output_stream import ChoiceEvent, OutputStream, ReaderLimits
from svc_kit.errors import DecodeFailed, EngineRestarting, SlowReader

END = Timings(0.0, 0.0, 0.0)


def a_delta(text: str, sequence_id: int = 10) -> Delta:
    """A delta of one token."""
    return Delta(sequence_id, text, (1,), ())


def an_end(sequence_id: int = 10) -> Finished:
    """The end of a sequence."""
    return Finished(sequence_id, FinishReason.STOP, None, 2, 1, END)


class Stream:
    """A generation with the commands it gave."""

    def __init__(self, ids: tuple[int, ...] = (10,), limits: ReaderLimits | None = None) -> None:
        self.steered: list[bool] = []
        self.ended = 0
        self.was_ended = asyncio.Event()
        self.generation = OutputStream(
            "req", ids, limits or ReaderLimits(4, 60.0), steer=self.steered.append, end=self._end
        )

    def _end(self) -> None:
        self.ended += 1
        self.was_ended.set()

    def deliver(self, *events: Event) -> None:
        """Events from the engine."""
        for event in events:
            self.generation.deliver(event)  # type: ignore[arg-type]  # never a load here

    async def read(self, into: list[list[ChoiceEvent]] | None = None) -> list[list[ChoiceEvent]]:
        """All batches to the end; those before an error are in `into`."""
        seen = [] if into is None else into
        async for batch in self.generation.batches():
            seen.append(batch)
        return seen


async def test_what_is_pending_comes_as_one_batch() -> None:
    """A reader that lags gets fewer, larger batches."""
    stream = Stream()
    stream.deliver(a_delta("a"), a_delta("b"), an_end())

    (batch,) = await stream.read()

    assert [type(event).__name__ for _, event in batch] == ["Delta", "Delta", "Finished"]


async def test_events_carry_their_choice() -> None:
    """Sequence ids become choice numbers; the stream ends with the last choice."""
    stream = Stream((10, 11))
    stream.deliver(a_delta("a", 11), an_end(10))
    assert not stream.generation.is_over
    stream.deliver(an_end(11))

    (batch,) = await stream.read()

    assert [choice for choice, _ in batch] == [1, 0, 1]


async def test_a_failure_comes_after_what_is_pending_and_ends_the_other_choices() -> None:
    """Nothing that was produced is lost."""
    stream = Stream((10, 11))
    stream.deliver(a_delta("a"), Failed(11, DecodeFailed(request_id="r")))
    seen: list[list[ChoiceEvent]] = []
    with pytest.raises(DecodeFailed):
        await stream.read(seen)

    assert [len(batch) for batch in seen] == [1]
    assert stream.ended == 1


async def test_a_lagging_reader_pauses_and_unpauses_the_sequences() -> None:
    """Once each, at the limit and when it has caught up."""
    stream = Stream()
    stream.deliver(*(a_delta("x") for _ in range(6)))
    assert (stream.steered, stream.generation.is_paused) == ([True], True)
    batches = stream.generation.batches()
    await anext(batches)

    assert (stream.steered, stream.generation.is_paused) == ([True, False], False)
    stream.generation.close()


async def test_patience_with_a_reader_ends() -> None:
    """Its sequences are cancelled and what it did not read is forgotten."""
    stream = Stream(limits=ReaderLimits(2, 0.01))
    stream.deliver(a_delta("x"), a_delta("y"))
    await stream.was_ended.wait()

    with pytest.raises(SlowReader):
        await anext(stream.generation.batches())
    assert stream.ended == 1


async def test_closing_cancels_once_and_only_what_runs() -> None:
    """A finished stream has nothing to cancel."""
    running, finished = Stream(), Stream()
    finished.deliver(an_end())
    for stream in (running, finished):
        stream.generation.close()
        stream.generation.close()

    assert (running.ended, finished.ended) == (1, 0)


async def test_the_first_error_stands_and_late_events_are_ignored() -> None:
    """A stream ends in one way."""
    stream = Stream()
    stream.generation.fail(EngineRestarting(retry_after=1.0))
    stream.generation.fail(DecodeFailed(request_id="r"))
    stream.deliver(a_delta("late"))

    with pytest.raises(EngineRestarting):
        await stream.read()
