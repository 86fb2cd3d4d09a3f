"""What is believed of step times: of each count by itself it falls with every step that was faster
and never rises; beside each other counts are as successive steps showed them."""

from itertools import cycle, islice, permutations

from hypothesis import given
from hypothesis import strategies as st

from inference_svc.engine.row_contest import RowContest
from inference_svc.engine.row_times import RowTimes

MOST = 12

_counts = st.integers(1, MOST)
_seconds = st.floats(0.01, 100)


@given(
    measured=st.dictionaries(_counts, _seconds, min_size=1),
    steps=st.lists(st.tuples(_counts, _seconds), max_size=20),
)
def test_no_belief_ever_rises(measured: dict[int, float], steps: list[tuple[int, float]]) -> None:
    """Neither that of the count which was observed nor those of its neighbours."""
    times = RowTimes(measured, MOST)
    for count, seconds in steps:
        before = [times[n] for n in range(1, MOST + 1)]
        is_faster = times.observe([count], seconds)
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
    times = RowTimes(measured, 4)
    contest = RowContest(times)
    speed = 1.0
    for rows, newest in islice(zip(cycle(true), cycle(speeds), strict=True), 200):
        for seconds in [true[rows] * speed] * 2 + [true[rows] * newest] * 6:
            contest.observe([rows], seconds)
        speed = newest

    for one, other in permutations(true, 2):
        assert times.of_itself(one) < times.of_itself(other) or true[one] > 0.85 * true[other]
