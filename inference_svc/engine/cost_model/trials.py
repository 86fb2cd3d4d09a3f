"""Corrects step times by comparing consecutive steps of different row counts.

The warm-up measures only some row counts of a large model, and the estimate of one count affects
the layout of others.
"""

import math
from collections import deque
from collections.abc import Hashable, Sequence
from functools import lru_cache
from statistics import median
from typing import Final

from inference_svc.engine.cost_model.step_time import DecodeTimes

_MEMORY_STEPS: Final = 5
"""Steps in the median, of which one or two may have been delayed by other processes."""
_NEWEST_SHARE: Final = 0.25
"""Exponent of a correction: how much a single comparison changes an estimate."""
_MIN_CORRECTION: Final = 0.01
"""A smaller correction is noise, and each one invalidates cached plans."""
_MAX_RATIO_PER_STEP: Final = 1.5
"""Limit of the correction by a single step, which may have been delayed."""
_MAX_KINDS: Final = 8  # least recently used ones are dropped
_Steps = deque[tuple[int, float]]  # rows and seconds


def _no_steps(_kind: Hashable) -> _Steps:
    return deque(maxlen=_MEMORY_STEPS)


class RowCountTrials:
    """Corrects the estimates in `times` relative to each other; the scale of the warm-up stays.

    Compares consecutive steps, because the fastest step of a row count is random on a shared
    machine. Kernels compute rows in blocks, so 15 rows may take longer than 16: with corrections 15
    sequences decode 164 to 172 tokens/s instead of 129 to 131.
    """

    def __init__(self, times: DecodeTimes) -> None:
        self._times = times
        self._steps_by_kind = lru_cache(maxsize=_MAX_KINDS)(_no_steps)
        self._newest = _no_steps(None)

    def observe(self, runs: Sequence[int], seconds: float, kind: Hashable = None) -> bool:
        """Update from a step. Returns whether an estimate has changed.

        `runs` are the lengths of its runs of consecutive slots. Steps with runs of different
        lengths are ignored, since the time of each run is unknown. Only steps of the same `kind`
        are compared.
        """
        rows = runs[0]
        if len(set(runs)) != 1 or seconds <= 0 or not self._times.exact_seconds(rows):
            return False
        self._newest = self._steps_by_kind(kind)
        each = seconds / len(runs)
        has_changed = bool(self._newest) and self._compare(self._newest[-1][0], rows, each)
        self._newest.append((rows, each))
        return has_changed

    @property
    def slowdown(self) -> float:
        """Median ratio of measured to predicted time of the newest steps; 1 before the first."""
        if not self._newest:
            return 1.0
        return median(seconds / self._times.exact_seconds(rows) for rows, seconds in self._newest)

    def _compare(self, last: int, rows: int, seconds: float) -> bool:
        """Attribute a change of step time to the change of the row count since the `last` step.

        The correction is split between both counts: if it went to the new one only, a constant cost
        of changing the count would accumulate.
        """
        if rows == last:
            return False
        times = self._times
        factor = seconds / self.slowdown / times.exact_seconds(rows)
        factor = min(max(factor, 1 / _MAX_RATIO_PER_STEP), _MAX_RATIO_PER_STEP)
        if not times.is_measured(rows):
            times.set_seconds(rows, factor * times.exact_seconds(rows))
            return True
        factor **= _NEWEST_SHARE
        if abs(factor - 1) < _MIN_CORRECTION:
            return False
        times.set_seconds(rows, times.exact_seconds(rows) * math.sqrt(factor))
        times.set_seconds(last, times.exact_seconds(last) / math.sqrt(factor))
        return True
