"""Growth is told from a trend, not from jumps."""

import pytest

from bench.growth import growth, slope


def test_the_slope_of_a_line_is_found() -> None:
    """Two more for every step."""
    assert slope([(float(x), 2.0 * x + 7.0) for x in range(5)]) == pytest.approx(2.0)


def test_a_few_jumps_do_not_move_the_slope() -> None:
    """A sample taken while something large was in flight is no growth."""
    points = [(float(x), 100.0) for x in range(20)]
    points[3] = (3.0, 400.0)
    points[17] = (17.0, 50.0)

    assert slope(points) == 0.0


def test_what_rises_only_while_warming_up_has_not_grown() -> None:
    """Buffers are made on first use."""
    points = [(float(x), min(x, 30) * 10.0) for x in range(100)]

    assert growth(points, warm_up=0.3) == 0.0


def test_a_steady_leak_is_growth_over_the_settled_part() -> None:
    """A tenth of a per cent for each of the seventy requests after the warm-up."""
    points = [(float(x), 1000.0 + x) for x in range(101)]

    assert growth(points, warm_up=0.3) == pytest.approx(70 / 1065)


def test_a_single_sample_has_no_slope() -> None:
    """Nothing is divided by nothing."""
    assert slope([(1.0, 5.0)]) == 0.0
