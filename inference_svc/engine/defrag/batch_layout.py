"""The layout of a decode call over KV streams: which idle slots get filler rows.

Only consecutive slots share a micro-batch, and kernels compute rows in blocks, so holes between
slots and incomplete blocks cost time. Filler rows (padding) in idle slots avoid both.
"""

from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache

from inference_svc.engine.cost_model.step_time import BLOCK, TRIAL_INTERVAL, DecodeTimes
from inference_svc.engine.cost_model.trials import RowCountTrials

_MAX_TRIAL_SLOWDOWN = 1.5
"""Fillers are tried only if the step is predicted to take at most this multiple of the time."""
_Choice = tuple[float, tuple[int, ...]]  # the cost of a step, and its filler slots
_Fillers = tuple[tuple[int, ...], tuple[int, ...]]  # of these used slots


class BatchLayout:
    """Chooses filler slots by the `step_times` of the warm-up (seconds by rows), later corrected.

    There are no fillers without measurements, or if the backend cannot remove the cell of a filler
    afterwards (`can_fill`).
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
        self._last: _Fillers = (), ()
        # With few slots all layouts fit into the cache; with many, few of them are common.
        self._layouts = lru_cache(maxsize=4096)(self._cheapest)
        self._whole_blocks = lru_cache(maxsize=4096)(self._in_whole_blocks)

    def has_choice(self, rows: int) -> bool:
        """Whether a step of so many rows may get fillers. A single row never does."""
        return bool(self._times) and self._can_fill and 1 < rows < self._slots

    def repeated(self, used: tuple[int, ...]) -> tuple[int, ...] | None:
        """The fillers of the last step if it had the same rows; None if they must be chosen."""
        if used != self._last[0] or self._num_choices >= TRIAL_INTERVAL:
            return None
        self._num_choices += 1
        return self._last[1]

    def fillers(self, used: Sequence[int], fillable: Sequence[int]) -> tuple[int, ...]:
        """The idle slots to fill, of the `fillable` ones, if `used` slots (ascending) have a row.

        Every `TRIAL_INTERVAL` steps the choice is another one than the predicted best.
        """
        if not self.has_choice(len(used)):
            return ()
        chosen = self._layouts(tuple(used), tuple(fillable))[1]
        self._last = tuple(used), chosen
        self._num_choices += 1
        if self._num_choices < TRIAL_INTERVAL:
            return chosen
        self._num_choices = 0
        trials = [trial for trial in self._trial_options(used, fillable) if trial != chosen]
        if not trials:
            return chosen
        self._num_trials += 1
        return trials[self._num_trials % len(trials)]

    def _trial_options(self, used: Sequence[int], fillable: Sequence[int]) -> list[tuple[int, ...]]:
        """The choices that may be tried: no fillers, and those that complete blocks, unless they
        are predicted to be far too slow. All runs must have equal lengths, or the measurement would
        be ignored."""
        whole_blocks = self._whole_blocks(tuple(used), tuple(fillable))
        options = {(): list(used), whole_blocks: sorted((*used, *whole_blocks))}
        limit = _MAX_TRIAL_SLOWDOWN * self.seconds(used)
        return [
            fillers
            for fillers, rows in options.items()
            if len(set(_runs(rows))) == 1 and (not fillers or self.seconds(rows) <= limit)
        ]

    def observe(self, rows: Sequence[int], seconds: float, kind: Hashable = None) -> None:
        """Update from a step with one token in each of these slots (ascending). Only steps of the
        same `kind` are compared."""
        if self._times and self._trials.observe(_runs(rows), seconds, kind):
            self._layouts.cache_clear()
            self._last = (), ()

    def cheapest_seconds(self, used: Sequence[int], fillable: Sequence[int]) -> float:
        """Predicted seconds of a step with the best fillers; 0 if nothing is measured."""
        if not self._can_fill:
            return self.seconds(used)
        if not self._times or not used:
            return 0.0
        return self._scale * self._layouts(tuple(used), tuple(fillable))[0]

    def seconds(self, rows: Sequence[int]) -> float:
        """Predicted seconds of a step with rows in exactly these slots (ascending); 0 if nothing is
        measured."""
        return self._scale * sum(self._times[run] for run in _runs(rows))

    @property
    def _scale(self) -> float:
        """Factor for steps faster than at the warm-up, when the machine may have been busy.

        Slower steps are not scaled: they take longer because of their context lengths, whatever the
        layout.
        """
        return min(self._trials.slowdown, 1.0)

    def _cheapest(self, used: tuple[int, ...], fillable: tuple[int, ...]) -> _Choice:
        return _fill(used, fillable, [self._times[run] for run in range(self._slots + 1)])

    def _in_whole_blocks(self, used: tuple[int, ...], fillable: tuple[int, ...]) -> tuple[int, ...]:
        costs = [-(-run // BLOCK) + (run % BLOCK > 0) / 2 for run in range(self._slots + 1)]
        return _fill(used, fillable, costs)[1]


def _fill(used: tuple[int, ...], fillable: tuple[int, ...], costs: Sequence[float]) -> _Choice:
    """The cheapest step by the `costs` of runs of consecutive slots.

    Dynamic programming over the slots; the state is the length of the current run.
    """
    busy, free = frozenset(used), frozenset(fillable)
    best: dict[int, _Choice] = {0: (0.0, ())}
    for slot in range(len(costs) - 1):
        updated: dict[int, _Choice] = {}
        for run, (cost, filled) in best.items():
            if slot in busy:
                _update(updated, run + 1, cost, filled)
                continue
            _update(updated, 0, cost + costs[run], filled)
            if slot in free:
                _update(updated, run + 1, cost, (*filled, slot))
        best = updated
    return min((cost + costs[run], filled) for run, (cost, filled) in best.items())


def _update(table: dict[int, _Choice], run: int, cost: float, filled: tuple[int, ...]) -> None:
    best = table.get(run)
    if best is None or (cost, len(filled)) < (best[0], len(best[1])):
        table[run] = (cost, filled)


def _runs(rows: Sequence[int]) -> list[int]:
    """The lengths of the runs of consecutive slots."""
    if len(rows) == rows[-1] - rows[0] + 1:
        return [len(rows)]
    lengths, run = [], 0
    for row, next_row in zip(rows, [*rows[1:], -1], strict=True):
        run += 1
        if next_row != row + 1:
            lengths.append(run)
            run = 0
    return lengths


NO_FILLERS = BatchLayout({}, 0)
"""A layout without filler rows."""
