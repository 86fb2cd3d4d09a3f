"""Predicts step time from the number of rows, or of tokens a row: the table of the warm-up,
corrected by measured steps.

A machine that is busy while a model loads makes some counts look slower than they are, so counts
that are never chosen are corrected too.
"""

from collections.abc import Mapping
from typing import Final

from inference_svc.engine.batch import NativeLimits

_SIGNIFICANT_RATIO: Final = 0.95
# Less is noise, and each correction makes plans anew.

BLOCK: Final = 4
"""Kernels compute so many rows together, and what is left over one by one."""
_ODD_COST: Final = 1.01
# Of a count that was never measured, beside that of the block which it could be filled up to.

TRIAL_INTERVAL: Final = 64
"""Of so many steps that go by a belief, one goes against it: a count that never runs could not show
that it is better than its measurement."""


class DecodeTimes:
    """Seconds of a step by rows that are neighbours (or by the tokens of one row), up to `most`; 0
    where nothing was measured. A count that was not measured itself lies between its neighbours;
    `in_blocks` it takes no less than the block which it could be filled up to."""

    def __init__(
        self, measured: Mapping[int, float], most: int, *, in_blocks: bool = False
    ) -> None:
        self._known = dict(measured)
        self._most = most
        self._in_blocks = in_blocks
        self._seconds: list[float] = []
        self._interpolate()

    def __bool__(self) -> bool:
        return bool(self._seconds)

    def __getitem__(self, rows: int) -> float:
        """Seconds with so many rows; more than `most` take as long as these."""
        return self._seconds[min(rows, len(self._seconds) - 1)] if self._seconds else 0.0

    def observe(self, rows: int, seconds: float) -> bool:
        """Update from a step of so many rows; return whether it was faster than predicted."""
        if not 0 < seconds < self[rows] * _SIGNIFICANT_RATIO:
            return False
        self.set_seconds(rows, seconds)
        return True

    def set_seconds(self, rows: int, seconds: float) -> None:
        """Take over what so many rows take."""
        self._known[rows] = seconds
        self._interpolate()

    def exact_seconds(self, rows: int) -> float:
        """What so many rows take; of one row too, which `[]` takes for the fastest count."""
        return self._known.get(rows, self[rows])

    def is_known(self, rows: int) -> bool:
        """Whether so many rows were measured or observed."""
        return rows in self._known

    def _interpolate(self) -> None:
        # What was never measured follows its neighbours.
        self._seconds = _interpolated(self._known, self._most)
        if self._in_blocks:
            self._fill_blocks()
        # No number of rows is faster than one; and who runs alone always gets the same shape.
        if self._seconds:
            self._seconds[1] = min(self._seconds[1:])

    def _fill_blocks(self) -> None:
        for rows in range(1, len(self._seconds)):
            block = -(-rows // BLOCK) * BLOCK
            if rows not in self._known and rows < block < len(self._seconds):
                self._seconds[rows] = max(self._seconds[rows], _ODD_COST * self._seconds[block])


def _interpolated(step_times: Mapping[int, float], most: int) -> list[float]:
    """Cost of 0 to `most` rows; empty where nothing was measured. Beyond the last measurement it
    grows linearly."""
    if not step_times:
        return []
    known = sorted(step_times)
    costs = [0.0]
    for rows in range(1, most + 1):
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


_NEWEST_SHARE = 0.25
# Steps with fewer prompt tokens say more about the rest of the step.
_MIN_SIGNIFICANT_TOKENS = 16


class StepTimeModel:
    """Seconds of a step by decoding rows and prompt tokens; 0 where nothing is known yet.
    `token_times` are seconds by the tokens of a row alone."""

    def __init__(
        self,
        step_times: Mapping[int, float],
        limits: NativeLimits,
        token_times: Mapping[int, float] | None = None,
    ) -> None:
        self._rows = DecodeTimes(step_times, limits.slots)
        self._tokens = DecodeTimes(token_times or {}, limits.output_rows)
        # One-token rows of many slots are the dearest way to compute as many prompt tokens.
        self._token_s = self._rows[limits.slots] / limits.slots

    def observe_decode(self, *, rows: int, drafted: int, seconds: float) -> bool:
        """Learn from a step without prompts, with `drafted` tokens behind the one of each row; tell
        whether it was faster than believed."""
        is_faster = self._rows.observe(rows, seconds)
        if drafted:
            is_faster |= self._tokens.observe(rows * (1 + drafted), seconds)
        return is_faster

    def observe_prefill(self, *, num_decoding: int, prompt_tokens: int, seconds: float) -> None:
        """Learn from a step with prompts."""
        if prompt_tokens < _MIN_SIGNIFICANT_TOKENS or seconds <= 0:
            return
        token_s = max(seconds - self._rows[num_decoding], 0.0) / prompt_tokens
        known = self._token_s or token_s
        self._token_s = known + _NEWEST_SHARE * (token_s - known)

    def prefill_s(self, tokens: int) -> float:
        """Seconds to compute so many prompt tokens."""
        return tokens * self._token_s

    def prompt_tokens_within(self, seconds: float, *, num_decoding: int) -> int | None:
        """The prompt tokens that fit into a step of `seconds` beside decoding rows; None where
        that is not known."""
        if not self._token_s:
            return None
        return max(int((seconds - self._rows[num_decoding]) / self._token_s), 0)

    def slowdown(self, rows: int, tokens: int) -> float:
        """How many times as long a step of decoding rows takes with `tokens` in each of them; 1
        where that was not measured."""
        single = self._rows[rows]
        if not single or not self._tokens:
            return 1.0
        return max(self._tokens[rows * tokens] / single, 1.0)
