"""From tokens to text and to the end of a sequence, through the engine."""

from array import array

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.events import FinishReason, ModelLoad
from tests.support.fake_backend import (
    END_TOKEN,
    VOCABULARY_SIZE,
    FakeBackend,
)
from tests.support.sequences import EngineBench, expected_tokens, make_request


def test_the_end_token_stops_without_text() -> None:
    """STOP has the token, which counts as output and has no text."""
    bench = EngineBench(FakeBackend(end_after=1))
    bench.submit(make_request())
    bench.run()

    finished = bench.finished(0)
    assert (finished.reason, finished.stop_token) == (FinishReason.STOP, END_TOKEN)
    assert (finished.num_output_tokens, bench.text(0)) == (1, "")


def test_ignore_eos_continues() -> None:
    """The end token is then an ordinary token."""
    bench = EngineBench(FakeBackend(end_after=1))
    bench.submit(make_request(ignore_eos=True, max_tokens=3))
    bench.run()

    assert bench.finished(0).reason is FinishReason.LENGTH
    assert bench.tokens(0) == [END_TOKEN] * 3


def test_a_stop_text_ends_the_sequence_and_is_not_emitted() -> None:
    """The text before it is emitted, and the slot is freed at once."""
    free = EngineBench()
    free.submit(make_request(max_tokens=8))
    free.run()
    stop = free.text(0)[3:5]
    bench = EngineBench()
    bench.submit(make_request(max_tokens=8, stop=(stop,)))
    bench.run()

    assert bench.text(0) == free.text(0)[: free.text(0).index(stop)]
    assert bench.finished(0)[1:3] == (FinishReason.STOP, stop)


def test_a_stop_text_in_the_last_allowed_token_is_a_stop() -> None:
    """Also if it is only complete once the end of an unfinished character is known."""
    tokens = expected_tokens([65, 66, 67], 4)
    bench = EngineBench()
    bench.submit(
        make_request(0, max_tokens=4, stop=(chr(tokens[3]),)),
        make_request(1, max_tokens=2, stop=("\ufffd",), resumed=array("i", [97, 0xC3])),
    )
    bench.run()

    assert bench.finished(0)[1:3] == (FinishReason.STOP, chr(tokens[3]))
    assert bench.finished(1)[1:3] == (FinishReason.STOP, "\ufffd")


def test_a_stop_token_ends_the_sequence() -> None:
    """A caller's own stop token works as the model's."""
    token = expected_tokens([65, 66, 67], 4)[3]
    bench = EngineBench()
    bench.submit(make_request(max_tokens=8, stop_tokens=frozenset({token})))
    bench.run()

    assert bench.finished(0).stop_token == token


def test_a_full_context_ends_with_length() -> None:
    """There is no context shift."""
    limits = NativeLimits(64, 4, 4, 10, VOCABULARY_SIZE)
    bench = EngineBench(FakeBackend(limits))
    bench.submit(make_request(prompt=[65] * 7, max_tokens=100))
    bench.run()

    assert bench.finished(0).reason is FinishReason.LENGTH
    assert bench.finished(0).num_output_tokens == 3


def test_resuming_continues_exactly() -> None:
    """Resumed tokens are not emitted again."""
    whole = EngineBench()
    whole.submit(make_request(max_tokens=8))
    whole.run()
    bench = EngineBench()
    bench.submit(make_request(max_tokens=8, resumed=array("i", whole.tokens(0)[:3])))
    bench.run()

    assert bench.tokens(0) == whole.tokens(0)[3:]
    assert bench.finished(0).num_output_tokens == 8


def test_resuming_inside_a_stop_text_holds_its_text_back() -> None:
    """It is neither lost nor emitted too early."""
    tokens = expected_tokens([65, 66, 67], 8)
    text = bytes(tokens).decode()
    bench = EngineBench()
    bench.submit(make_request(max_tokens=8, stop=(text[2:6],), resumed=array("i", tokens[:4])))
    bench.run()

    assert (bench.text(0), bench.finished(0).stop_text) == ("", text[2:6])


def test_resuming_a_finished_sequence_ends_at_once() -> None:
    """An end token or the last allowed token needs no computing."""
    bench = EngineBench()
    bench.submit(
        make_request(0, resumed=array("i", [97, END_TOKEN])),
        make_request(1, max_tokens=2, resumed=array("i", [97, 98])),
    )
    bench.run()

    assert bench.finished(0).reason is FinishReason.STOP
    assert bench.finished(1).reason is FinishReason.LENGTH
    assert bench.backend.batches == []


def test_deltas_have_the_logprobs_of_their_tokens() -> None:
    """One per token."""
    bench = EngineBench()
    bench.submit(make_request(max_tokens=3, top_logprobs=2))
    bench.run()

    assert all(
        len(delta.logprobs) == len(delta.tokens) and len(delta.logprobs[0].top) == 2
        for delta in bench.deltas(0)
        if delta.tokens
    )


def test_the_sampler_accepts_every_output_token_and_is_closed() -> None:
    """Resumed tokens too, for penalties."""
    bench = EngineBench()
    made = []
    new_sampler = bench.backend.new_sampler
    bench.backend.new_sampler = lambda request: made.append(new_sampler(request)) or made[-1]  # type: ignore[method-assign, func-returns-value]
    bench.submit(make_request(max_tokens=4, resumed=array("i", [97])))
    bench.run()

    assert made[0].accepted == [97, *bench.tokens(0)]
    assert made[0].closed


def test_deltas_precede_the_finish_event() -> None:
    """Events of a step are in order."""
    bench = EngineBench()
    bench.submit(make_request(max_tokens=1))
    bench.run()

    kinds = [type(event).__name__ for event in bench.events if not isinstance(event, ModelLoad)]
    assert kinds == ["Started", "Delta", "Finished"]
