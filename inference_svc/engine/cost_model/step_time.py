"""Predicts step time from the number of rows or of tokens per row.

Starts with the measurements of the warm-up and corrects them by measured steps. If the machine was
busy during the warm-up, some row counts look too slow and would never be chosen, so they are tried
now and then.
"""

from collections.abc import Mapping
from typing import Final

from inference_svc.engine.batch import NativeLimits

_SIGNIFICANT_RATIO: Final = 0.95
"""Smaller improvements are noise, and each correction invalidates cached plans."""

BLOCK: Final = 4
"""Rows that kernels compute together; the rest is computed one by one."""
_INCOMPLETE_BLOCK_FACTOR: Final = 1.01
"""Minimum time of an unmeasured row count, relative to that of the next whole block."""

TRIAL_INTERVAL: Final = 64
"""One in this many steps uses another choice than the predicted best: a row count that never runs
could not be corrected."""


class DecodeTimes:
    """Seconds of a step by the number of consecutive rows (or of tokens of one row).

    `measured` are the measurements; other counts up to `max_rows` are interpolated. Without any
    measurement all times are 0. With `in_blocks`, unmeasured counts take no less time than the next
    whole block of rows.
    """

    def __init__(
        self, measured: Mapping[int, float], max_rows: int, *, in_blocks: bool = False
    ) -> None:
        self._measured = dict(measured)
        self._max_rows = max_rows
        self._in_blocks = in_blocks
        self._seconds: list[float] = []
        self._interpolate()

    def __bool__(self) -> bool:
        return bool(self._seconds)

    def __getitem__(self, rows: int) -> float:
        """Seconds of a step of `rows`; more than `max_rows` take as long as `max_rows`."""
        return self._seconds[min(rows, len(self._seconds) - 1)] if self._seconds else 0.0

    def observe(self, rows: int, seconds: float) -> bool:
        """Update from a step. Returns whether it was faster than predicted."""
        if not 0 < seconds < self[rows] * _SIGNIFICANT_RATIO:
            return False
        self.set_seconds(rows, seconds)
        return True

    def set_seconds(self, rows: int, seconds: float) -> None:
        """Set the time of a step of `rows`."""
        self._measured[rows] = seconds
        self._interpolate()

    def exact_seconds(self, rows: int) -> float:
        """Seconds of a step of `rows`. For one row, `[]` returns the minimum of all counts."""
        return self._measured.get(rows, self[rows])

    def is_measured(self, rows: int) -> bool:
        """Whether a step of `rows` was measured, at the warm-up or later."""
        return rows in self._measured

    def _interpolate(self) -> None:
        self._seconds = _interpolated(self._measured, self._max_rows)
        if self._in_blocks:
            self._raise_incomplete_blocks()
        # No row count is faster than one row, so a single sequence never gets filler rows.
        if self._seconds:
            self._seconds[1] = min(self._seconds[1:])

    def _raise_incomplete_blocks(self) -> None:
        for rows in range(1, len(self._seconds)):
            block = -(-rows // BLOCK) * BLOCK
            if rows not in self._measured and rows < block < len(self._seconds):
                minimum = _INCOMPLETE_BLOCK_FACTOR * self._seconds[block]
                self._seconds[rows] = max(self._seconds[rows], minimum)


def _interpolated(step_times: Mapping[int, float], max_rows: int) -> list[float]:
    """Times of 0 to `max_rows` rows, linear beyond the last measurement; empty without any."""
    if not step_times:
        return []
    measured = sorted(step_times)
    costs = [0.0]
    for rows in range(1, max_rows + 1):
        below = max((count for count in measured if count <= rows), default=measured[0])
        above = min((count for count in measured if count >= rows), default=None)
        if above is None:
            costs.append(step_times[below] * rows / below)
        elif above == below:
            costs.append(step_times[rows] if rows in step_times else step_times[below])
        else:
            share = (rows - below) / (above - below)
            costs.append(step_times[below] + share * (step_times[above] - step_times[below]))
    return costs


_NEWEST_SHARE = 0.25
"""Weight of the newest step in averages."""
_MIN_SIGNIFICANT_TOKENS = 16
"""With fewer prompt tokens the rest of the step dominates its time."""
_MIN_SLOPE: Final = 0.1
"""Minimum time of another block, as a share of the average time of a block."""
_KEPT_SLOPE: Final = 0.995
"""What is left of the slope after another call, if nothing else was measured."""


class VectorTimes:
    """Predicts the seconds of a call of vectors, in blocks of `BLOCK`, by a line through recent
    calls.

    It does not go through zero, since each call reads all weights. It is fitted by least squares
    with exponentially falling weights; the last slope counts as one call, so that calls of one size
    only shift the line. It falls with each call, so that a larger one is tried now and then: those
    before may have been slow for another reason.
    """

    def __init__(self) -> None:
        self._slope = 0.0
        self._weight = self._blocks = self._seconds = 0.0  # weighted sums
        self._squares = self._products = 0.0

    def observe(self, blocks: int, seconds: float) -> None:
        """Update from a call of `blocks`."""
        if not self._weight:
            self._slope = _MIN_SLOPE * seconds / blocks  # so that a larger call is tried
        kept = 1 - _NEWEST_SHARE
        self._weight = kept * self._weight + 1
        self._blocks = kept * self._blocks + blocks
        self._seconds = kept * self._seconds + seconds
        self._squares = kept * self._squares + blocks * blocks
        self._products = kept * self._products + blocks * seconds
        mean = self._blocks / self._weight
        spread = self._squares - mean * self._blocks
        last = _KEPT_SLOPE * self._slope
        slope = (self._products - mean * self._seconds + last) / (spread + 1)
        average = self._seconds / self._blocks
        self._slope = min(max(slope, _MIN_SLOPE * average), average)

    def blocks_within(self, seconds: float) -> int | None:
        """The largest call that takes at most `seconds`, not much larger than the recent ones; None
        if nothing is measured."""
        if not self._weight:
            return None
        mean = self._blocks / self._weight
        more = (seconds - self._seconds / self._weight) / self._slope
        return int(mean + min(more, mean + 1))


class StepTimeModel:
    """Predicted seconds of a step by decoding rows and prompt tokens; 0 if nothing is measured.

    `step_times` are measured seconds by decoding rows, `token_times` by the tokens of a single row.
    """

    def __init__(
        self,
        step_times: Mapping[int, float],
        limits: NativeLimits,
        token_times: Mapping[int, float] | None = None,
    ) -> None:
        self._rows = DecodeTimes(step_times, limits.slots)
        self._tokens = DecodeTimes(token_times or {}, limits.output_rows)
        # An upper bound: one-token rows of many slots are slower than a prompt of as many tokens.
        self._token_s = self._rows[limits.slots] / limits.slots
        self._slowness = 1.0  # of recent steps, relative to the fastest ones
        self._vectors = VectorTimes()

    def observe_decode(self, *, rows: int, drafted: int, seconds: float) -> bool:
        """Update from a step without prompts, with `drafted` draft tokens in each row.

        Returns whether it was faster than predicted.
        """
        predicted = self._rows[rows]
        if predicted and seconds > 0 and not drafted:  # there are no drafts beside prompts
            self._slowness += _NEWEST_SHARE * (seconds / predicted - self._slowness)
        is_faster = self._rows.observe(rows, seconds)
        if drafted:
            is_faster |= self._tokens.observe(rows * (1 + drafted), seconds)
        return is_faster

    def observe_prefill(self, *, num_decoding: int, prompt_tokens: int, seconds: float) -> None:
        if prompt_tokens < _MIN_SIGNIFICANT_TOKENS or seconds <= 0:
            return
        token_s = max(seconds - self._rows[num_decoding], 0.0) / prompt_tokens
        average = self._token_s or token_s
        self._token_s = average + _NEWEST_SHARE * (token_s - average)

    def observe_vectors(self, count: int, seconds: float) -> None:
        if seconds > 0:
            self._vectors.observe(-(-count // BLOCK), seconds)

    def vectors_within(self, seconds: float, *, num_decoding: int) -> int | None:
        """The vectors that fit into a step of `seconds` beside the decoding rows, in whole blocks
        of rows and at least one; None if nothing is measured."""
        left_s = seconds - self.decode_s(num_decoding)
        blocks = self._vectors.blocks_within(left_s)
        if blocks is None and self._token_s:
            blocks = int(left_s / self._token_s) // BLOCK
        return max(blocks, 1) * BLOCK if blocks is not None else None

    def decode_s(self, rows: int) -> float:
        """Seconds of a decode call of `rows`, as slow as recent ones; 0 if nothing is measured."""
        return self._rows[rows] * self._slowness

    def step_s(self, rows: int) -> float:
        """Seconds of the fastest decode call of `rows`; 0 if nothing is measured."""
        return self._rows[rows]

    def prefill_s(self, tokens: int) -> float:
        """Seconds to compute `tokens` prompt tokens."""
        return tokens * self._token_s

    def prompt_tokens_within(self, seconds: float, *, num_decoding: int) -> int | None:
        """The prompt tokens that fit into a step of `seconds` beside the decoding rows; None if
        nothing is measured."""
        if not self._token_s:
            return None
        return max(int((seconds - self._rows[num_decoding]) / self._token_s), 0)

    def slowdown(self, rows: int, tokens: int) -> float:
        """The time of a step with `tokens` in each row, as a multiple of that with one; 1 if
        nothing is measured."""
        single = self._rows[rows]
        if not single or not self._tokens:
            return 1.0
        return max(self._tokens[rows * tokens] / single, 1.0)
