"""The layout of a decode call over KV streams: which slots get rows, and where padding pays.

Only consecutive ascending slots share a compute batch, and kernels work in blocks of rows, so holes
between slots and some row counts cost time.
"""

from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache

from inference_svc.engine.cost_model.step_time import BLOCK, TRIAL_INTERVAL, DecodeTimes
from inference_svc.engine.cost_model.trials import RowCountTrials

_WORTH_TRYING = 1.5
"""Fillers are tried where a step is believed to take at most so many times as long with them."""
_Choice = tuple[float, tuple[int, ...]]  # the cost of a step, and the slots that are filled


class BatchLayout:
    """Chooses filler slots from a table of step time, in seconds, by rows, as measured at warm-up.

    Row counts that were not measured are interpolated. Without measurements nothing is filled, nor
    where a filler's cell could not be removed (`can_fill`).
    """

    def __init__(
        self, step_times: Mapping[int, float], slots: int, *, can_fill: bool = True
    ) -> None:
        self._slots = slots
        self._times = DecodeTimes(step_times, slots, in_blocks=True)
        self._trials = RowCountTrials(self._times)
        self._can_fill = can_fill
        self._num_choices = 0  # since the last trial
        self._num_trials = 0
        # Bounded: with few slots all patterns fit, with many the common ones recur.
        self._shapes = lru_cache(maxsize=4096)(self._cheapest)
        self._whole_blocks = lru_cache(maxsize=4096)(self._in_whole_blocks)

    def fillers(self, used: Sequence[int], fillable: Sequence[int]) -> tuple[int, ...]:
        """Idle slots to fill when `used` slots (ascending) have a row and `fillable` ones may take
        a filler; now and then others than believed to be best."""
        if not self._times or not used or not self._can_fill:
            return ()
        chosen = self._shapes(tuple(used), tuple(fillable))[1]
        self._num_choices += 1
        if len(used) == 1 or self._num_choices < TRIAL_INTERVAL:
            return chosen
        others = [other for other in self._others(used, fillable) if other != chosen]
        if not others:
            return chosen
        self._num_choices = 0
        self._num_trials += 1
        return others[self._num_trials % len(others)]

    def _others(self, used: Sequence[int], fillable: Sequence[int]) -> list[tuple[int, ...]]:
        """What may be tried: no fillers, and those that make whole blocks unless they surely do not
        pay; only where all runs are as long, for others teach nothing."""
        whole_blocks = self._whole_blocks(tuple(used), tuple(fillable))
        options = {(): list(used), whole_blocks: sorted((*used, *whole_blocks))}
        most = _WORTH_TRYING * self.seconds(used)
        return [
            fillers
            for fillers, rows in options.items()
            if len(set(_runs(rows))) == 1 and (not fillers or self.seconds(rows) <= most)
        ]

    def observe(self, rows: Sequence[int], seconds: float, kind: Hashable = None) -> None:
        """Learn from a step with one token in just these slots (ascending). Only steps of the same
        kind are compared."""
        if self._times and self._trials.observe(_runs(rows), seconds, kind):
            self._shapes.cache_clear()

    def cheapest_seconds(self, used: Sequence[int], fillable: Sequence[int]) -> float:
        """What a step takes then; 0 where nothing was measured."""
        if not self._can_fill:
            return self.seconds(used)
        if not self._times or not used:
            return 0.0
        return self._scale * self._shapes(tuple(used), tuple(fillable))[0]

    def seconds(self, rows: Sequence[int]) -> float:
        """What a step takes with rows in just these slots (ascending); 0 where nothing was
        measured."""
        return self._scale * sum(self._times[run] for run in _runs(rows))

    @property
    def _scale(self) -> float:
        """The machine may have been busier at the warm-up. Where steps take longer than then, their
        texts are longer, which no layout changes."""
        return min(self._trials.slowdown, 1.0)

    def _cheapest(self, used: tuple[int, ...], fillable: tuple[int, ...]) -> _Choice:
        return _fill(used, fillable, [self._times[run] for run in range(self._slots + 1)])

    def _in_whole_blocks(self, used: tuple[int, ...], fillable: tuple[int, ...]) -> tuple[int, ...]:
        costs = [-(-run // BLOCK) + (run % BLOCK > 0) / 2 for run in range(self._slots + 1)]
        return _fill(used, fillable, costs)[1]


def _fill(used: tuple[int, ...], fillable: tuple[int, ...], costs: Sequence[float]) -> _Choice:
    """The cheapest step, by what runs of neighbours cost: dynamic programming over the slots; the
    state is the length of the run that is open."""
    busy, free = frozenset(used), frozenset(fillable)
    best: dict[int, _Choice] = {0: (0.0, ())}
    for slot in range(len(costs) - 1):
        following: dict[int, _Choice] = {}
        for run, (cost, filled) in best.items():
            if slot in busy:
                _update(following, run + 1, cost, filled)
                continue
            _update(following, 0, cost + costs[run], filled)
            if slot in free:
                _update(following, run + 1, cost, (*filled, slot))
        best = following
    return min((cost + costs[run], filled) for run, (cost, filled) in best.items())


def _update(table: dict[int, _Choice], run: int, cost: float, filled: tuple[int, ...]) -> None:
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


NO_FILLERS = BatchLayout({}, 0)
"""Fills nothing."""
