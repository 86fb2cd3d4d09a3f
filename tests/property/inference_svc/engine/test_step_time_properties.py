"""Estimates of step times by number of rows."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle, islice, pairwise, permutations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_svc.engine.cost_model.step_time import DecodeTimes
from inference_svc.engine.cost_model.trials import RowCountTrials
from inference_svc.engine.defrag.batch_layout import BatchLayout

MAX_ROWS = 12

_counts = st.integers(1, MAX_ROWS)
_seconds = st.floats(0.01, 100)


@given(
    measured=st.dictionaries(_counts, _seconds, min_size=1),
    steps=st.lists(st.tuples(_counts, _seconds), max_size=20),
)
def test_observations_never_raise_an_estimate(
    measured: dict[int, float], steps: list[tuple[int, float]]
) -> None:
    """Neither the estimate of the observed count nor those of its neighbours."""
    times = DecodeTimes(measured, MAX_ROWS)
    for count, seconds in steps:
        before = [times[n] for n in range(1, MAX_ROWS + 1)]
        is_faster = times.observe(count, seconds)
        after = [times[n] for n in range(1, MAX_ROWS + 1)]

        assert times[count] <= seconds or not is_faster
        assert all(new <= old * (1 + 1e-9) for new, old in zip(after, before, strict=True))
        assert times[1] == min(after)


@given(
    measured=st.fixed_dictionaries({n: st.floats(1, 3) for n in range(1, 5)}),
    true=st.fixed_dictionaries({n: st.floats(1, 3) for n in range(1, 5)}),
    speeds=st.lists(st.floats(0.5, 2), min_size=1, max_size=10),
)
def test_successive_steps_show_which_count_is_faster(
    measured: dict[int, float], true: dict[int, float], speeds: list[float]
) -> None:
    """The initial measurements may be wrong, and the speed of the machine changes."""
    times = DecodeTimes(measured, 4)
    trials = RowCountTrials(times)
    speed = 1.0
    for rows, newest in islice(zip(cycle(true), cycle(speeds), strict=True), 200):
        for seconds in [true[rows] * speed] * 2 + [true[rows] * newest] * 6:
            trials.observe([rows], seconds)
        speed = newest

    for num, other in permutations(true, 2):
        assert (
            times.exact_seconds(num) < times.exact_seconds(other) or true[num] > 0.85 * true[other]
        )


@pytest.mark.parametrize("first_step", [1.0, 1.1], ids=["constant", "slow-first-step"])
@pytest.mark.parametrize("measured", [16, 2], ids=["all-counts", "two-counts"])
def test_layouts_stay_near_optimal_on_a_noisy_machine(first_step: float, measured: int) -> None:
    """Requests arrive and end, the speed of the machine drifts, some steps are delayed, and the
    first step with another number of rows may take longer."""
    rng = Random(7)
    true = {rows: _step_seconds(rows) for rows in range(1, 17)}
    layout = BatchLayout({rows: true[rows] for rows in (1, 16, *range(2, 16))[:measured]}, 16)
    running: set[int] = set()
    speed, previous, total_s, optimum_s = 1.0, 0, 0.0, 0.0
    for _ in range(10_000):
        if len(running) < 16 and rng.random() < 0.06:
            running.add(min(set(range(16)) - running))
        running -= {slot for slot in running if rng.random() < 0.006}
        if not running:
            continue
        speed = min(max(speed * math.exp(rng.gauss(0, 0.01)), 0.7), 1.4)
        used, free = sorted(running), sorted(set(range(16)) - running)
        rows = sorted((*used, *layout.fillers(used, free)))
        seconds = speed * _layout_seconds(rows, true) * math.exp(rng.gauss(0, 0.1))
        seconds *= first_step if len(rows) != previous else 1.0
        layout.observe(rows, seconds * (5 if rng.random() < 0.01 else 1))
        previous = len(rows)
        total_s += _layout_seconds(rows, true)
        optimum_s += min(
            _layout_seconds([*used, *free[:fillers]], true) for fillers in range(len(free) + 1)
        )

    assert total_s < 1.02 * optimum_s


def _step_seconds(rows: int) -> float:
    blocks, remainder = divmod(rows, 4)
    return 14 + 5.0 * blocks + 6.0 * remainder


def _layout_seconds(slots: Sequence[int], true: Mapping[int, float]) -> float:
    ordered = sorted(slots)
    starts = [slot for slot in ordered if slot - 1 not in ordered]
    lengths = [
        sum(start <= slot < end for slot in ordered) for start, end in pairwise([*starts, 99])
    ]
    return sum(true[length] for length in lengths)
