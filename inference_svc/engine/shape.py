"""The shape of a decode call over KV streams.

Only consecutive ascending slots share one compute batch, and kernels work in blocks of rows. So a
hole between running slots splits the work, and some row counts cost more than larger ones. This
module decides which idle slots get a filler row (a token whose cell is removed afterwards) so that
the whole step is cheapest, by measured step times.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from inference_svc.engine.row_times import TRIAL_INTERVAL, RowTimes


class StepShape:
    """Chooses filler slots from a table of step time (any unit) by rows, as measured at warm-up.

    Row counts that were not measured are interpolated. Without measurements nothing is filled, nor
    where a filler's cell could not be removed (`can_fill`).
    """

    def __init__(
        self, step_times: Mapping[int, float], slots: int, *, can_fill: bool = True
    ) -> None:
        self._slots = slots
        self._cost = RowTimes(step_times, slots)
        self._can_fill = can_fill
        self._num_filled = 0
        # Bounded: with few slots all patterns fit, with many the common ones recur.
        self._shapes = lru_cache(maxsize=4096)(self._cheapest)

    def fillers(self, used: Sequence[int], fillable: Sequence[int]) -> tuple[int, ...]:
        """Idle slots to fill when `used` slots (ascending) have a row and `fillable` ones may take
        a filler; now and then none, whatever is believed of them."""
        if not self._cost or not used or not self._can_fill:
            return ()
        chosen = self._shapes(tuple(used), tuple(fillable))[1]
        self._num_filled += bool(chosen)
        return () if chosen and self._num_filled % TRIAL_INTERVAL == 0 else chosen

    def observe(self, rows: Sequence[int], seconds: float) -> None:
        """Learn from a step with one token in just these slots (ascending)."""
        if self._cost and self._cost.observe(_runs(rows), seconds):
            self._shapes.cache_clear()

    def cheapest_seconds(self, used: Sequence[int], fillable: Sequence[int]) -> float:
        """What a step takes then; 0 where nothing was measured."""
        if not self._can_fill:
            return self.seconds(used)
        return self._shapes(tuple(used), tuple(fillable))[0] if self._cost and used else 0.0

    def seconds(self, rows: Sequence[int]) -> float:
        """What a step takes with rows in just these slots (ascending); 0 where nothing was
        measured."""
        return sum(self._cost[run] for run in _runs(rows))

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


def _runs(rows: Sequence[int]) -> list[int]:
    """The lengths of the runs of neighbours."""
    lengths, run = [], 0
    for row, following in zip(rows, [*rows[1:], -1], strict=True):
        run += 1
        if following != row + 1:
            lengths.append(run)
            run = 0
    return lengths


NO_FILLERS = StepShape({}, 0)
"""Fills nothing."""
