"""Outputs that may be delayed are batched; urgent ones are sent at once."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from inference_svc.engine.events import (
    Delta,
    Finished,
    FinishReason,
    ModelLoad,
    PromptTokens,
    Started,
    Timings,
)
from inference_svc.engine_client.messages import SnapshotDone
from inference_svc.engine_process.output_batcher import Output, OutputBatcher

END = Finished(1, FinishReason.STOP, None, None, 2, Timings(0.0, 0.0, 0.0))
DONE = SnapshotDone(7, 0, None)
FOREVER_S = 3600.0


def delta(text: str, sequence_id: int = 1) -> Delta:
    return Delta(sequence_id, (text,), (0,), ())


def make_batcher(
    output: Output,
    interval_s: float = FOREVER_S,
    is_behind: Callable[[], bool] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> OutputBatcher:
    """A batcher whose interval begins now, since it has just returned `output`."""
    outbox = OutputBatcher(interval_s, is_behind, clock)
    outbox.put(output)
    assert outbox.get() == [output]
    return outbox


def test_the_first_token_after_a_pause_is_sent_at_once() -> None:
    """Nothing was sent for an interval."""
    make_batcher([delta("a")])


def test_tokens_of_an_interval_are_batched() -> None:
    """They are sent in order with the next urgent event of their sequence; the engine's load does
    not flush them."""
    outbox = make_batcher([delta("a")])
    with ThreadPoolExecutor(1) as reader:
        outputs = reader.submit(outbox.get)
        outbox.put([delta("b")])
        outbox.put([ModelLoad("m")])
        outbox.put([delta("c"), END])
        assert outputs.result(10) == [[delta("b"), ModelLoad("m"), delta("c"), END]]


def test_an_urgent_event_does_not_flush_other_sequences() -> None:
    """Each stream in a batch costs a message. Delayed tokens keep their order and are sent with the
    next output that flushes everything."""
    outbox = make_batcher([delta("x", 2)])
    outbox.put([delta("y", 2), delta("a"), delta("z", 2), END])
    assert outbox.get() == [[delta("a"), END]]

    outbox.put([delta("!", 2)])
    outbox.put(DONE)
    assert outbox.get() == [[delta("y", 2), delta("z", 2), delta("!", 2)], DONE]


def test_the_load_is_sent_with_the_end_of_a_sequence() -> None:
    """A client that sees the end can rely on the load being current."""
    outbox = make_batcher([delta("x", 2)])
    outbox.put([delta("y", 2), END, ModelLoad("m")])
    assert outbox.get() == [[END, ModelLoad("m")]]


def test_a_first_token_is_urgent() -> None:
    """The time to first token does not depend on other streams; the second token is delayed."""
    outbox = make_batcher([Started(1, 0, 0)])
    outbox.put([delta("a")])
    assert outbox.get() == [[delta("a")]]

    with ThreadPoolExecutor(1) as reader:
        outputs = reader.submit(outbox.get)
        outbox.put([delta("b")])
        outbox.put([END])
        assert outputs.result(10) == [[delta("b"), END]]


def test_log_probabilities_of_prompts_are_batched() -> None:
    now = 0.0
    outbox = make_batcher([PromptTokens(1, ())], 50.0, clock=lambda: now)
    assert outbox.remaining_s == 50.0


def test_a_load_does_not_delay_the_next_tokens() -> None:
    """A prompt that is computed beside streams has an output without tokens."""
    now = 0.0
    outbox = make_batcher([delta("a")], 0.08, clock=lambda: now)
    now = 0.1
    outbox.put([ModelLoad("m")])
    assert outbox.get() == [[ModelLoad("m")]]
    outbox.put([delta("b")])
    assert outbox.remaining_s <= 0
    assert outbox.get() == [[delta("b")]]


def test_tokens_are_sent_once_the_receiver_has_caught_up() -> None:
    """Without any further output, and long before the interval is over."""
    answers = iter([True] * 5)
    outbox = make_batcher([delta("a")], is_behind=lambda: next(answers, False))
    outbox.put([delta("b")])
    assert outbox.get() == [[delta("b")]]
    assert next(answers, None) is None

    outbox.put([delta("c")])
    assert outbox.get() == [[delta("c")]]


def test_a_receiver_that_stays_behind_gets_the_tokens_of_an_interval() -> None:
    now = 0.0

    def tick() -> float:
        nonlocal now
        now += 0.25
        return now

    outbox = make_batcher([delta("a")], 5.0, lambda: True, tick)
    outbox.put([delta("b")])
    outbox.put([delta("c")])
    assert outbox.get() == [[delta("b"), delta("c")]]
    assert now >= 5.0


def test_tokens_are_sent_when_the_interval_is_over() -> None:
    """Without any further output."""
    now = 0.0
    outbox = make_batcher([delta("a")], 50.0, clock=lambda: now)
    now = 100.0
    outbox.put([delta("b")])
    assert outbox.get() == [[delta("b")]]


@pytest.mark.parametrize(
    ("streams", "remaining_s"), [(16, 0.0), (24, 25.0), (32, 50.0), (99, 50.0)]
)
def test_the_interval_grows_with_the_number_of_streams(streams: int, remaining_s: float) -> None:
    """Finished streams do not count."""
    now = 0.0
    outbox = OutputBatcher(50.0, clock=lambda: now)
    outbox.put([Started(number, 0, 0) for number in range(streams)])
    outbox.put([Started(100, 0, 0), END._replace(sequence_id=100)])
    outbox.put([delta("a")])
    outbox.put(DONE)
    outbox.get()

    now = 50.0
    assert outbox.remaining_s == pytest.approx(remaining_s)


def test_outputs_other_than_events_keep_their_order() -> None:
    """The result of a snapshot command flushes everything, without reordering."""
    outbox = make_batcher([delta("a")])
    outbox.put([delta("b")])
    outbox.put(DONE)
    outbox.put([delta("c")])
    outbox.put([delta("d")])
    assert outbox.get() == [[delta("b")], DONE, [delta("c"), delta("d")]]


def test_without_an_interval_nothing_is_delayed() -> None:
    """Outputs that are available together are still batched."""
    outbox = OutputBatcher(0.0)
    for text in "ab":
        outbox.put([delta(text)])
    assert outbox.get() == [[delta("a"), delta("b")]]
    outbox.put([delta("c")])
    assert outbox.get() == [[delta("c")]]
