"""Figures made from observed streams."""

import pytest

from bench.streams import Arrival, LoadError, LoadFigures, Stream, check_streams, decode_rate


def a_stream(start: float, tokens: int, period: float, *, first_tokens: int = 1) -> Stream:
    """One stream that begins at `start` and gets a token every `period` seconds."""
    arrivals = [Arrival(start, first_tokens)]
    arrivals += [Arrival(start + period * n, 1) for n in range(1, tokens)]
    return Stream(start - 1.0, arrivals[-1].time, tuple(arrivals), 8, tokens)


def test_decode_rate_of_one_stream_is_its_tokens_after_the_first_over_their_time() -> None:
    """The time before the first token is prefill and does not count."""
    assert decode_rate([a_stream(5.0, 11, 0.1)]) == pytest.approx(10.0)


def test_decode_rate_counts_only_the_time_in_which_all_streams_decode() -> None:
    """What a stream does before the others started, or after one ended, does not count."""
    early = a_stream(0.0, 41, 0.1)
    late = a_stream(2.05, 41, 0.1)

    assert decode_rate([early, late], least_overlap=0.4) == pytest.approx(20.0)


def test_decode_rate_can_begin_later() -> None:
    """What came while further streams were decoding does not count."""
    slower_at_first = a_stream(0.0, 11, 0.2)
    later = Stream(
        -1.0,
        4.0,
        (*slower_at_first.arrivals, *(Arrival(2.0 + 0.1 * n, 1) for n in range(1, 21))),
        8,
        31,
    )

    assert decode_rate([later], after=2.0) == pytest.approx(10.0)


def test_decode_rate_refuses_streams_that_hardly_met() -> None:
    """A rate over a short stretch says nothing."""
    with pytest.raises(LoadError, match="while all streams were decoding"):
        decode_rate([a_stream(0.0, 41, 0.1), a_stream(3.5, 41, 0.1)])


def test_an_output_of_another_length_fails_the_run() -> None:
    """Systems that made different numbers of tokens cannot be compared."""
    with pytest.raises(LoadError, match="7 tokens came out, not 8"):
        check_streams([a_stream(0.0, 7, 0.1)], [8])


def test_a_missing_answer_fails_the_run() -> None:
    """A dropped request must not look like a fast one."""
    with pytest.raises(LoadError, match="1 of 2"):
        check_streams([a_stream(0.0, 8, 0.1)], [8, 8])


def test_figures_of_a_load() -> None:
    """Throughput is over the wall time from the first request to the last byte."""
    figures = LoadFigures.of([a_stream(1.0, 11, 0.1), a_stream(2.0, 11, 0.1)])

    assert figures.wall_s == pytest.approx(3.0)
    assert figures.tokens_per_s == pytest.approx(22 / 3.0)
    assert figures.first_token_p50_ms == pytest.approx(1000.0)
    assert figures.token_p50_ms == pytest.approx(100.0)


def test_a_stream_without_a_whole_character_has_no_latencies() -> None:
    """Noise may hold back all of its text; its tokens still count."""
    silent = Stream(0.0, 2.0, (), 8, 8)

    figures = LoadFigures.of([silent])

    assert (figures.tokens_per_s, figures.first_token_p50_ms) == (4.0, 0.0)
