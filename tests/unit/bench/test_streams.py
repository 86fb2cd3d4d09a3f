"""Figures of recorded streams."""

import pytest

from bench.streams import Arrival, LoadError, LoadFigures, Stream, check_streams, decode_rate


def make_stream(start: float, tokens: int, period: float, *, first_tokens: int = 1) -> Stream:
    """Build a stream that starts at `start` with a token every `period` seconds."""
    arrivals = [Arrival(start, first_tokens)]
    arrivals += [Arrival(start + period * n, 1) for n in range(1, tokens)]
    return Stream(start - 1.0, arrivals[-1].time, tuple(arrivals), 8, tokens)


def test_decode_rate_of_one_stream_excludes_its_first_token() -> None:
    """The time before the first token is prefill."""
    assert decode_rate([make_stream(5.0, 11, 0.1)]) == pytest.approx(10.0)


def test_decode_rate_covers_only_the_overlap_of_all_streams() -> None:
    """Tokens before the last start and after the first end are excluded."""
    early = make_stream(0.0, 41, 0.1)
    late = make_stream(2.05, 41, 0.1)

    assert decode_rate([early, late], least_overlap=0.4) == pytest.approx(20.0)


def test_decode_rate_excludes_tokens_before_a_time() -> None:
    """Such as tokens generated while other streams were decoding."""
    slower_at_first = make_stream(0.0, 11, 0.2)
    later = Stream(
        -1.0,
        4.0,
        (*slower_at_first.arrivals, *(Arrival(2.0 + 0.1 * n, 1) for n in range(1, 21))),
        8,
        31,
    )

    assert decode_rate([later], after=2.0) == pytest.approx(10.0)


def test_decode_rate_refuses_a_short_overlap() -> None:
    """Such a rate is not representative."""
    with pytest.raises(LoadError, match="while all streams were decoding"):
        decode_rate([make_stream(0.0, 41, 0.1), make_stream(3.5, 41, 0.1)])


@pytest.mark.parametrize(
    ("outputs", "problem"), [([8], "7 tokens instead of 8"), ([7, 7], "1 of 2 requests")]
)
def test_other_lengths_and_missing_responses_are_errors(outputs: list[int], problem: str) -> None:
    """Figures of incomplete loads are not comparable."""
    with pytest.raises(LoadError, match=problem):
        check_streams([make_stream(0.0, 7, 0.1)], outputs)


def test_figures_of_a_load() -> None:
    """Wall time is from the first request to the last byte."""
    figures = LoadFigures.from_streams([make_stream(1.0, 11, 0.1), make_stream(2.0, 11, 0.1)])

    assert figures.wall_s == pytest.approx(3.0)
    assert figures.tokens_per_s == pytest.approx(22 / 3.0)
    assert figures.first_token_p50_ms == pytest.approx(1000.0)
    assert figures.token_p50_ms == pytest.approx(100.0)


def test_a_stream_without_text_has_no_latencies() -> None:
    """Its tokens still count."""
    silent = Stream(0.0, 2.0, (), 8, 8)

    figures = LoadFigures.from_streams([silent])

    assert (figures.tokens_per_s, figures.first_token_p50_ms) == (4.0, 0.0)
