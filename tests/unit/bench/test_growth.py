"""Growth is estimated from a trend, not from outliers."""

import pytest

from bench.growth import growth, slope


def test_the_slope_of_a_line_is_exact() -> None:
    """Two per step."""
    assert slope([(float(x), 2.0 * x + 7.0) for x in range(5)]) == pytest.approx(2.0)


def test_outliers_do_not_change_the_slope() -> None:
    """A sample taken during a large request is not growth."""
    points = [(float(x), 100.0) for x in range(20)]
    points[3] = (3.0, 400.0)
    points[17] = (17.0, 50.0)

    assert slope(points) == 0.0


def test_a_rise_during_the_warm_up_is_not_growth() -> None:
    """Buffers are allocated on first use."""
    points = [(float(x), min(x, 30) * 10.0) for x in range(100)]

    assert growth(points, warm_up=0.3) == 0.0


def test_a_steady_leak_is_growth_over_the_settled_part() -> None:
    """70 units over a median level of 1065."""
    points = [(float(x), 1000.0 + x) for x in range(101)]

    assert growth(points, warm_up=0.3) == pytest.approx(70 / 1065)


def test_a_single_sample_has_no_slope() -> None:
    """There is no division by zero."""
    assert slope([(1.0, 5.0)]) == 0.0
