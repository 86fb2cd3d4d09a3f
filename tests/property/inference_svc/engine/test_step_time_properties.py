"""What is believed of step times: of each count by itself it falls with every step that was faster
and never rises; beside each other counts are as successive steps showed them."""

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

MOST = 12

_counts = st.integers(1, MOST)
_seconds = st.floats(0.01, 100)


@given(
    measured=st.dictionaries(_counts, _seconds, min_size=1),
    steps=st.lists(st.tuples(_counts, _seconds), max_size=20),
)
def test_no_belief_ever_rises(measured: dict[int, float], steps: list[tuple[int, float]]) -> None:
    """Neither that of the count which was observed nor those of its neighbours."""
    times = DecodeTimes(measured, MOST)
    for count, seconds in steps:
        before = [times[n] for n in range(1, MOST + 1)]
        is_faster = times.observe(count, seconds)
        after = [times[n] for n in range(1, MOST + 1)]

        assert times[count] <= seconds or not is_faster
        assert all(new <= old * (1 + 1e-9) for new, old in zip(after, before, strict=True))
        assert times[1] == min(after)


@given(
    measured=st.fixed_dictionaries({n: st.floats(1, 3) for n in range(1, 5)}),
    true=st.fixed_dictionaries({n: st.floats(1, 3) for n in range(1, 5)}),
    speeds=st.lists(st.floats(0.5, 2), min_size=1, max_size=10),
)
def test_successive_steps_tell_which_count_is_faster(
    measured: dict[int, float], true: dict[int, float], speeds: list[float]
) -> None:
    """Whatever was measured, and however fast the machine is from one time to another."""
    times = DecodeTimes(measured, 4)
    contest = RowCountTrials(times)
    speed = 1.0
    for rows, newest in islice(zip(cycle(true), cycle(speeds), strict=True), 200):
        for seconds in [true[rows] * speed] * 2 + [true[rows] * newest] * 6:
            contest.observe([rows], seconds)
        speed = newest

    for one, other in permutations(true, 2):
        assert (
            times.exact_seconds(one) < times.exact_seconds(other) or true[one] > 0.85 * true[other]
        )


@pytest.mark.parametrize("first_step", [1.0, 1.1], ids=["even", "dear changes"])
@pytest.mark.parametrize("measured", [16, 2], ids=["whole table", "two counts"])
def test_a_long_life_on_a_noisy_machine_keeps_beliefs_sane(
    first_step: float, measured: int
) -> None:
    """Requests come and end, the machine's speed drifts, steps are held up, and the first step of
    another count may always take longer: shapes stay nearly as good as the best."""
    chance = Random(7)
    true = {rows: _in_blocks_of_four(rows) for rows in range(1, 17)}
    layout = BatchLayout({rows: true[rows] for rows in (1, 16, *range(2, 16))[:measured]}, 16)
    running: set[int] = set()
    speed, last, taken, least = 1.0, 0, 0.0, 0.0
    for _ in range(30_000):
        if len(running) < 16 and chance.random() < 0.06:
            running.add(min(set(range(16)) - running))
        running -= {slot for slot in running if chance.random() < 0.006}
        if not running:
            continue
        speed = min(max(speed * math.exp(chance.gauss(0, 0.01)), 0.7), 1.4)
        used, free = sorted(running), sorted(set(range(16)) - running)
        rows = sorted((*used, *layout.fillers(used, free)))
        seconds = speed * _seconds_of(rows, true) * math.exp(chance.gauss(0, 0.1))
        seconds *= first_step if len(rows) != last else 1.0
        layout.observe(rows, seconds * (5 if chance.random() < 0.01 else 1))
        last = len(rows)
        taken += _seconds_of(rows, true)
        least += min(_seconds_of([*used, *free[:more]], true) for more in range(len(free) + 1))

    assert taken < 1.02 * least


def _in_blocks_of_four(rows: int) -> float:
    whole, left = divmod(rows, 4)
    return 14 + 5.0 * whole + 6.0 * left


def _seconds_of(slots: Sequence[int], true: Mapping[int, float]) -> float:
    ordered = sorted(slots)
    starts = [slot for slot in ordered if slot - 1 not in ordered]
    lengths = [
        sum(start <= slot < end for slot in ordered) for start, end in pairwise([*starts, 99])
    ]
    return sum(true[length] for length in lengths)
