"""Changes the rate of samples with a windowed-sinc low-pass filter.

A block of outputs is a product of a block of inputs and a matrix, because all blocks have the same
phases.
"""

from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

_ZERO_CROSSINGS: Final = 32
"""Of the filter, on each side."""
_ROLLOFF: Final = 0.92
"""The cutoff, as a part of the lower Nyquist frequency: the transition of the window follows."""
_KAISER_BETA: Final = 9.0
_MAX_TERM: Final = 1000
"""Of the ratio of rates. Unusual ratios are rounded, by less than a thousandth."""
_BLOCK_OUTPUTS: Final = 64
_BATCH_VALUES: Final = 1 << 22


def resample(samples: npt.NDArray[np.float32], rate: int, target: int) -> npt.NDArray[np.float32]:
    """Return the samples at `target` in a second; frequencies that it cannot hold are removed."""
    ratio = _round_ratio(target, rate)
    up, down = ratio.numerator, ratio.denominator
    if up == down:
        return samples
    repeat = max(1, _BLOCK_OUTPUTS // up)
    outputs, step = up * repeat, down * repeat
    matrix, half = _filter_matrix(up, down, outputs, step)
    length = num_resampled(len(samples), rate, target)
    blocks = -(-length // outputs)
    padded = np.zeros(blocks * step + 2 * half, np.float32)
    padded[half : half + len(samples)] = samples[: len(padded) - half]
    windows = np.lib.stride_tricks.sliding_window_view(padded, len(matrix))[::step]
    result = np.empty((blocks, outputs), np.float32)
    batch = max(1, _BATCH_VALUES // len(matrix))
    for first in range(0, blocks, batch):
        rows = np.ascontiguousarray(windows[first : first + batch])
        np.matmul(rows, matrix, out=result[first : first + batch])
    return np.clip(result.ravel()[:length], -1.0, 1.0)


def num_resampled(count: int, rate: int, target: int) -> int:
    """How many samples become of `count`."""
    return -int(-count * _round_ratio(target, rate) // 1)


def _round_ratio(target: int, rate: int) -> Fraction:
    ratio = Fraction(target, rate)
    if ratio > 1:
        return 1 / (1 / ratio).limit_denominator(_MAX_TERM)
    return ratio.limit_denominator(_MAX_TERM)


def _filter_matrix(
    up: int, down: int, outputs: int, step: int
) -> tuple[npt.NDArray[np.float32], int]:
    """The weights of a block of inputs (rows) in a block of outputs (columns), and by how many
    inputs a block begins before its first output."""
    cutoff = min(1.0, up / down)
    half = int(np.ceil(_ZERO_CROSSINGS / cutoff))
    centers = half + np.arange(outputs) * down / up
    offsets = np.arange(step + 2 * half)[:, None] - centers
    window = np.kaiser(2 * 8192 + 1, _KAISER_BETA)[8192:]
    places = np.minimum(np.abs(offsets) / half, 1.0)
    weights = np.sinc(offsets * cutoff * _ROLLOFF) * np.interp(
        places * 8192, np.arange(8193), window
    )
    weights[np.abs(offsets) >= half] = 0.0
    return (weights / weights.sum(axis=0)).astype(np.float32), half
