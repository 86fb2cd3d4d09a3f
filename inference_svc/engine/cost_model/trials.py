"""Compares two row counts by consecutive steps, and remembers which is faster.

The warm-up has no time for every count of a large model, and estimates of one count decide how
others run.
"""

import math
from collections import deque
from collections.abc import Hashable, Sequence
from functools import lru_cache
from statistics import median
from typing import Final

from inference_svc.engine.cost_model.step_time import DecodeTimes

_MEMORY_STEPS: Final = 5
"""Of so many steps one or two may have been held up by something else."""
_NEWEST_SHARE: Final = 0.25
_MIN_CORRECTION: Final = 0.01
"""A smaller correction is noise, and each makes plans anew."""
_MAX_RATIO_PER_STEP: Final = 1.5
"""One step shows a count to be so many times as fast or slow at most: it may have been held up."""
_MAX_KINDS: Final = 8  # that are remembered, those that ran last
_Steps = deque[tuple[int, float]]  # rows and seconds


def _no_steps(_kind: Hashable) -> _Steps:
    return deque(maxlen=_MEMORY_STEPS)


class RowCountTrials:
    """Corrects the estimates of `times` for row counts relative to one another; the scale of the
    warm-up stays.

    Consecutive steps are compared, because the fastest step of a count is a matter of luck on a
    shared machine. Kernels compute rows in blocks, so 15 rows may take longer than 16: with
    corrections 15 sequences decode 164 to 172 tokens/s instead of 129 to 131.
    """

    def __init__(self, times: DecodeTimes) -> None:
        self._times = times
        self._steps_of = lru_cache(maxsize=_MAX_KINDS)(_no_steps)
        self._newest = _no_steps(None)

    def observe(self, runs: Sequence[int], seconds: float, kind: Hashable = None) -> bool:
        """Learn from a step of runs of neighbours; tell whether a belief has changed. Runs of
        several lengths do not tell which of them took how long; nor are steps compared that differ
        in `kind`, whatever else makes them longer or shorter."""
        rows = runs[0]
        if len(set(runs)) != 1 or seconds <= 0 or not self._times.exact_seconds(rows):
            return False
        self._newest = self._steps_of(kind)
        each = seconds / len(runs)
        is_new = bool(self._newest) and self._compare(self._newest[-1][0], rows, each)
        self._newest.append((rows, each))
        return is_new

    @property
    def slowdown(self) -> float:
        """How many times as long as believed the newest steps took; 1 before there were any."""
        if not self._newest:
            return 1.0
        return median(seconds / self._times.exact_seconds(rows) for rows, seconds in self._newest)

    def _compare(self, last: int, rows: int, seconds: float) -> bool:
        """What takes longer or shorter since the count changed, does so for its sake. Half of that
        is told of the count before: else what every change costs would add up without end."""
        if rows == last:
            return False
        times = self._times
        factor = seconds / self.slowdown / times.exact_seconds(rows)
        factor = min(max(factor, 1 / _MAX_RATIO_PER_STEP), _MAX_RATIO_PER_STEP)
        if not times.is_known(rows):
            times.set_seconds(rows, factor * times.exact_seconds(rows))
            return True
        factor **= _NEWEST_SHARE
        if abs(factor - 1) < _MIN_CORRECTION:
            return False
        mine, other = times.exact_seconds(rows), times.exact_seconds(last)
        times.set_seconds(rows, mine * math.sqrt(factor))
        times.set_seconds(last, other / math.sqrt(factor))
        return True
