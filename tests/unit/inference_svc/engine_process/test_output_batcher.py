"""News that may wait a moment travels together; what may not wait takes it along."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from inference_svc.engine.events import Delta, Finished, FinishReason, ModelLoad, Started, Timings
from inference_svc.engine_client.messages import SnapshotDone
from inference_svc.engine_process.output_batcher import OutputBatcher, usual_interval_s

END = Finished(1, FinishReason.STOP, None, None, 2, Timings(0.0, 0.0, 0.0))
DONE = SnapshotDone(7, 0, None)
FOREVER_S = 3600.0


def delta(text: str, sequence_id: int = 1) -> Delta:
    """A token's text."""
    return Delta(sequence_id, text, (0,), ())


def test_the_first_token_after_a_pause_goes_at_once() -> None:
    """Nothing was sent for an interval, so nobody would notice a wait but as a wait."""
    outbox = OutputBatcher(FOREVER_S)
    outbox.put([delta("a")])
    assert outbox.take() == [[delta("a")]]


def test_tokens_of_an_interval_wait_for_each_other() -> None:
    """A token that follows too soon stays until its sequence has something urgent to say, in
    order; how busy the engine is goes along."""
    outbox = OutputBatcher(FOREVER_S)
    outbox.put([delta("a")])
    outbox.take()
    with ThreadPoolExecutor(1) as reader:
        taken = reader.submit(outbox.take)
        outbox.put([delta("b")])
        outbox.put([ModelLoad("m")])
        outbox.put([delta("c"), END])
        assert taken.result(10) == [[delta("b"), ModelLoad("m"), delta("c"), END]]


def test_what_is_urgent_for_one_sequence_leaves_the_others_waiting() -> None:
    """Each stream that is sent something is a message: one that begins or ends makes no messages
    for all. What waits keeps its order, and goes with what concerns all."""
    outbox = OutputBatcher(FOREVER_S)
    outbox.put([delta("x", 2)])
    outbox.take()
    outbox.put([delta("y", 2), delta("a"), delta("z", 2), END])
    assert outbox.take() == [[delta("a"), END]]

    outbox.put([delta("!", 2)])
    outbox.put(DONE)
    assert outbox.take() == [[delta("y", 2), delta("z", 2), delta("!", 2)], DONE]


def test_the_load_goes_with_the_end_that_it_tells_of() -> None:
    """Whoever has heard that nothing runs any more may ask what was done."""
    outbox = OutputBatcher(FOREVER_S)
    outbox.put([delta("x", 2)])
    outbox.take()
    outbox.put([delta("y", 2), END, ModelLoad("m")])
    assert outbox.take() == [[END, ModelLoad("m")]]


def test_a_first_token_waits_for_nobody() -> None:
    """Whoever waits for an answer to begin does not pay for what another stream was just sent; its
    second token does wait."""
    outbox = OutputBatcher(FOREVER_S)
    outbox.put([Started(1, 0, 0)])
    outbox.take()
    outbox.put([delta("a")])
    assert outbox.take() == [[delta("a")]]

    with ThreadPoolExecutor(1) as reader:
        taken = reader.submit(outbox.take)
        outbox.put([delta("b")])
        outbox.put([END])
        assert taken.result(10) == [[delta("b"), END]]


@pytest.mark.parametrize(("threads", "interval_s"), [(1, 0.04), (2, 0.08), (4, 0.08)])
def test_tokens_wait_longer_where_no_core_is_left(threads: int, interval_s: float) -> None:
    """Two cores: with one of them free, waking a frontend delays no step."""
    assert usual_interval_s(threads=threads, cores=2) == interval_s


def test_tokens_leave_when_their_interval_is_over() -> None:
    """The reader needs no further news to be let go."""
    now = 0.0
    outbox = OutputBatcher(50.0, clock=lambda: now)
    outbox.put([delta("a")])
    outbox.take()
    now = 100.0
    outbox.put([delta("b")])
    assert outbox.take() == [[delta("b")]]


@pytest.mark.parametrize(("streams", "left_s"), [(10, 0.0), (16, 30.0), (20, 50.0), (99, 50.0)])
def test_tokens_of_many_streams_wait_longer(streams: int, left_s: float) -> None:
    """Each stream is a message of its own, and their number is what costs; those that have ended
    do not count."""
    now = 0.0
    outbox = OutputBatcher(50.0, clock=lambda: now)
    outbox.put([Started(number, 0, 0) for number in range(streams)])
    outbox.put([Started(100, 0, 0), END._replace(sequence_id=100)])
    outbox.put(DONE)
    outbox.take()

    now = 50.0
    assert outbox.left_s == pytest.approx(left_s)


def test_what_is_no_list_of_events_keeps_its_place() -> None:
    """An answer about a snapshot is urgent, and neither overtakes nor is overtaken."""
    outbox = OutputBatcher(FOREVER_S)
    outbox.put([delta("a")])
    outbox.take()
    outbox.put([delta("b")])
    outbox.put(DONE)
    outbox.put([delta("c")])
    outbox.put([delta("d")])
    assert outbox.take() == [[delta("b")], DONE, [delta("c"), delta("d")]]


def test_without_an_interval_nothing_waits() -> None:
    """What came while the last was written goes together all the same."""
    outbox = OutputBatcher(0.0)
    for text in "ab":
        outbox.put([delta(text)])
    assert outbox.take() == [[delta("a"), delta("b")]]
    outbox.put([delta("c")])
    assert outbox.take() == [[delta("c")]]
