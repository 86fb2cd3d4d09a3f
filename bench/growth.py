"""Estimates growth from noisy samples."""

import statistics
from collections.abc import Sequence
from itertools import combinations


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the Theil-Sen slope: the median slope over all pairs of points, robust to outliers.

    0 for fewer than two points.
    """
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2) if x1 != x2]
    return statistics.median(slopes) if slopes else 0.0


def growth(points: Sequence[tuple[float, float]], warm_up: float) -> float:
    """Return the relative growth from the end of the warm-up to the last point.

    `warm_up` is a share of the whole range, between 0 and 1.
    """
    first, last = points[0][0], points[-1][0]
    settled = [(x, y) for x, y in points if x >= first + warm_up * (last - first)]
    level = statistics.median(y for _, y in settled)
    return slope(settled) * (last - settled[0][0]) / level
