"""Which number of rows is the faster, told by steps that follow each other.

What is believed of one count decides how all others run, so it has to be right beside them. The
warm-up has no time for every count of a large model, and a machine that is shared is faster at one
moment than at another: the fastest step of each count would compare moments. Between a step and
the next, only the number of rows has changed.
"""

import math
from collections import deque
from collections.abc import Hashable, Sequence
from statistics import median
from typing import Final

from inference_svc.engine.row_times import RowTimes

_MEMORY_STEPS: Final = 5
"""Of so many steps one or two may have been held up by something else."""
_NEWEST_SHARE: Final = 0.25
_TELLING_SHARE: Final = 0.01
"""Less is noise, and each correction makes plans anew."""
_MOST_TOLD: Final = 1.5
"""How many times as fast or as slow one step may show a count to be: something else may have run."""


class RowContest:
    """Corrects what `times` believe of row counts, each beside the others: they keep the scale of
    the warm-up."""

    def __init__(self, times: RowTimes) -> None:
        self._times = times
        self._last_rows = 0
        self._kind: Hashable = None
        # Of the newest steps, how many times as long as believed they took, as logarithms.
        self._slowdowns: deque[float] = deque(maxlen=_MEMORY_STEPS)

    def observe(self, runs: Sequence[int], seconds: float, kind: Hashable = None) -> bool:
        """Learn from a step of runs of neighbours; tell whether a belief has changed. Runs of
        several lengths do not tell which of them took how long; nor are steps compared that differ
        in `kind`, whatever else makes them longer or shorter."""
        if len(set(runs)) != 1 or seconds <= 0:
            return False
        if kind != self._kind:
            self._kind = kind
            self._slowdowns.clear()
        rows, each = runs[0], seconds / len(runs)
        is_new = rows != self._last_rows and self._compare(rows, each)
        self._last_rows = rows
        self._slowdowns.append(math.log(each / self._times[rows]))
        return is_new

    @property
    def slowdown(self) -> float:
        """How many times as long as believed the newest steps took; 1 before there were any."""
        return math.exp(median(self._slowdowns)) if self._slowdowns else 1.0

    def _compare(self, rows: int, each: float) -> bool:
        """What takes longer or shorter since the count changed, does so for its sake."""
        if not self._slowdowns:
            return False
        usual = each / self.slowdown
        if not self._times.is_known(rows):
            self._times.believe(rows, usual)
            return True
        factor = usual / self._times[rows]
        factor = min(max(factor, 1 / _MOST_TOLD), _MOST_TOLD) ** _NEWEST_SHARE
        if abs(factor - 1) < _TELLING_SHARE:
            return False
        self._times.believe(rows, self._times[rows] * factor)
        return True
