"""Histograms of step times by rows, kept in the engine because the frontend does not see all
steps."""

from bisect import bisect_left

from inference_svc.engine.events import StepHistogram

BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5),
)
"""Upper bounds of the buckets in seconds; the last bucket is unbounded."""


class StepTimes:
    """Histograms of step time since the engine started."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, bool], list[int]] = {}
        self._sums: dict[tuple[int, bool], float] = {}

    def observe(self, *, rows: int, has_prompt: bool, seconds: float) -> None:
        """Count a step in the histogram of its power of two of rows."""
        kind = 1 << (rows - 1).bit_length(), has_prompt
        counts = self._counts.setdefault(kind, [0] * (len(BOUNDS_S) + 1))
        counts[bisect_left(BOUNDS_S, seconds)] += 1
        self._sums[kind] = self._sums.get(kind, 0.0) + seconds

    def histograms(self) -> tuple[StepHistogram, ...]:
        """All non-empty histograms, ordered by rows."""
        return tuple(
            StepHistogram(*kind, tuple(counts), self._sums[kind])
            for kind, counts in sorted(self._counts.items())
        )
