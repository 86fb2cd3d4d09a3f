"""What is believed of step times falls with every step that was faster, and never rises."""

from hypothesis import given
from hypothesis import strategies as st

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
