"""The step times of a real engine, from the committed results of the benchmark."""

from collections.abc import Sequence
from pathlib import Path
from statistics import linear_regression
from typing import Final

from bench.measurement import CORRAL, Measurement, median
from bench.parts import decode, unique
from bench.records import read_all
from bench.step_times import StepTimes

_PROMPT_TOKENS, _OUTPUT_TOKENS, _ROWS = 128, 64, 16
"""Of a request of the part `unique`, and how many are computed at once."""
_DIGITS: Final = 6


def measured(results: Path) -> StepTimes:
    """The step times behind the results in a folder: of the calls of decoding rows by least squares
    over 1, 4 and 16 greedy sequences, and of prompts by what new ones add to them."""
    records = read_all(results, (decode.PART, unique.PART))
    speeds = {
        rows: _speed(records["decode"].measurements, f"greedy, {rows} at once")
        for rows in (1, 4, _ROWS)
    }
    row_s, call_s = linear_regression([*speeds], [rows / speed for rows, speed in speeds.items()])
    request_s = _OUTPUT_TOKENS / _speed(records["unique"].measurements, f"{_ROWS} at once")
    token_s = (request_s - _OUTPUT_TOKENS / speeds[_ROWS]) / _PROMPT_TOKENS
    return StepTimes(*(round(each, _DIGITS) for each in (call_s, row_s, token_s)))


def _speed(measurements: Sequence[Measurement], load: str) -> float:
    """The median tokens per second of Corral."""
    return median([m.value for m in measurements if (m.load, m.system) == (load, CORRAL)])
