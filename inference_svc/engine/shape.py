"""The shape of a decode call over KV streams.

Only consecutive ascending slots share one compute batch, and kernels work in blocks of rows. So a
hole between running slots splits the work, and some row counts cost more than larger ones. This
module decides which idle slots get a filler row (a token whose cell is removed afterwards) so that
the whole step is cheapest, by measured step times.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache


class StepShape:
    """Chooses filler slots from a table of step time (any unit) by rows, as measured at warm-up.

    Row counts that were not measured are interpolated. Without measurements nothing is filled, nor
    where a filler's cell could not be removed (`can_fill`).
    """

    def __init__(
        self, step_times: Mapping[int, float], slots: int, *, can_fill: bool = True
    ) -> None:
        self._slots = slots
        self._cost = interpolate(step_times, slots)
        self._can_fill = can_fill
        # Bounded: with few slots all patterns fit, with many the common ones recur.
        self._shapes = lru_cache(maxsize=4096)(self._cheapest)

    def fillers(self, used: Sequence[int], fillable: Sequence[int]) -> tuple[int, ...]:
        """Idle slots to fill when `used` slots (ascending) have a row and `fillable` ones may take
        a filler."""
        if not self._cost or not used or not self._can_fill:
            return ()
        return self._shapes(tuple(used), tuple(fillable))[1]

    def cheapest_seconds(self, used: Sequence[int], fillable: Sequence[int]) -> float:
        """What a step takes then; 0 where nothing was measured."""
        if not self._can_fill:
            return self.seconds(used)
        return self._shapes(tuple(used), tuple(fillable))[0] if self._cost and used else 0.0

    def seconds(self, rows: Sequence[int]) -> float:
        """What a step takes with rows in just these slots (ascending); 0 where nothing was
        measured."""
        if not self._cost:
            return 0.0
        total, run = 0.0, 0
        for row, following in zip(rows, [*rows[1:], -1], strict=True):
            run += 1
            if following != row + 1:
                total, run = total + self._cost[run], 0
        return total

    def _cheapest(
        self, used: tuple[int, ...], fillable: tuple[int, ...]
    ) -> tuple[float, tuple[int, ...]]:
        """Dynamic programming over the slots; the state is the length of the run that is open."""
        busy, free = frozenset(used), frozenset(fillable)
        best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
        for slot in range(self._slots):
            following: dict[int, tuple[float, tuple[int, ...]]] = {}
            for run, (cost, filled) in best.items():
                if slot in busy:
                    _keep(following, run + 1, cost, filled)
                    continue
                _keep(following, 0, cost + self._cost[run], filled)
                if slot in free:
                    _keep(following, run + 1, cost, (*filled, slot))
            best = following
        return min((cost + self._cost[run], filled) for run, (cost, filled) in best.items())


def _keep(
    table: dict[int, tuple[float, tuple[int, ...]]], run: int, cost: float, filled: tuple[int, ...]
) -> None:
    known = table.get(run)
    if known is None or (cost, len(filled)) < (known[0], len(known[1])):
        table[run] = (cost, filled)


def interpolate(step_times: Mapping[int, float], slots: int) -> list[float]:
    """Cost of 0 to `slots` rows; empty where nothing was measured. Beyond the last measurement it
    grows linearly."""
    if not step_times:
        return []
    known = sorted(step_times)
    costs = [0.0]
    for rows in range(1, slots + 1):
        below = max((k for k in known if k <= rows), default=known[0])
        above = min((k for k in known if k >= rows), default=None)
        if above is None:
            costs.append(step_times[below] * rows / below)
        elif above == below:
            costs.append(step_times[rows] if rows in step_times else step_times[below])
        else:
            share = (rows - below) / (above - below)
            costs.append(step_times[below] + share * (step_times[above] - step_times[below]))
    return costs


NO_FILLERS = StepShape({}, 0)
"""Fills nothing."""
