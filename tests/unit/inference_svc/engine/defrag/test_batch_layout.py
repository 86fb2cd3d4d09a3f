"""Choice of filler rows."""

from collections import Counter

from inference_svc.engine.cost_model.step_time import TRIAL_INTERVAL
from inference_svc.engine.defrag.batch_layout import BatchLayout


def test_nothing_is_filled_without_measurements() -> None:
    """No layout is known to be faster."""
    assert BatchLayout({}, 8).fillers([0, 2], [1, 3]) == ()


def test_a_hole_is_filled_where_one_batch_is_cheaper_than_two() -> None:
    """Rows cost little more together: slot 1 joins 0 and 2."""
    layout = BatchLayout({1: 10.0, 2: 11.0, 3: 12.0, 4: 13.0}, 4)

    assert layout.fillers([0, 2], [1, 3]) == (1,)


def test_a_hole_stays_where_filling_costs_more() -> None:
    """With cost proportional to rows, fillers never pay."""
    layout = BatchLayout({1: 10.0, 2: 20.0, 3: 30.0, 4: 40.0}, 4)

    assert layout.fillers([0, 2], [1, 3]) == ()


def test_rows_are_padded_to_a_cheaper_count() -> None:
    """Seven rows that cost more than eight get an eighth."""
    layout = BatchLayout({6: 90.0, 7: 106.0, 8: 69.0}, 8)

    assert layout.fillers([0, 1, 2, 3, 4, 5, 6], [7]) == (7,)


def test_the_same_rows_keep_their_fillers_until_a_trial_is_due() -> None:
    layout = BatchLayout({1: 10.0, 2: 11.0, 3: 12.0, 4: 13.0}, 4)
    assert layout.fillers([0, 2], [1, 3]) == (1,)

    assert layout.repeated((0, 3)) is None
    assert [layout.repeated((0, 2)) for _ in range(TRIAL_INTERVAL)] == [
        *[(1,)] * (TRIAL_INTERVAL - 1),
        None,
    ]


def test_fillers_are_chosen_again_when_the_times_have_changed() -> None:
    layout = BatchLayout({1: 10.0, 2: 20.0, 3: 28.0, 4: 30.0}, 4)
    assert layout.fillers([0, 1, 2], [3]) == ()
    layout.observe([0, 1, 2], 28.0)

    layout.observe([0, 1, 2, 3], 20.0)

    assert layout.repeated((0, 1, 2)) is None


def test_a_slot_that_cannot_take_a_filler_keeps_the_hole() -> None:
    """The idle slot is full."""
    layout = BatchLayout({1: 10.0, 2: 11.0, 3: 12.0}, 3)

    assert layout.fillers([0, 2], []) == ()


def test_rows_beyond_the_measured_ones_are_extrapolated() -> None:
    """A table up to 2 rows still decides for 4 slots."""
    layout = BatchLayout({1: 10.0, 2: 10.0}, 4)

    assert layout.fillers([0, 3], [1, 2]) == ()


def test_a_single_sequence_is_never_padded() -> None:
    """Even if it was measured on a busy machine: its tokens depend on the layout."""
    layout = BatchLayout({1: 50.0, 2: 12.0, 4: 13.0}, 4)

    assert {layout.fillers([0], [1, 2, 3]) for _ in range(2 * TRIAL_INTERVAL)} == {()}


def test_a_wrong_measurement_is_corrected_by_a_trial() -> None:
    """Two rows were measured as slower than four."""
    layout = BatchLayout({1: 10.0, 2: 22.0, 3: 30.0, 4: 20.0}, 4)
    for _ in range(TRIAL_INTERVAL - 1):
        assert layout.fillers([0, 1], [2, 3]) == (2, 3)
        layout.observe([0, 1, 2, 3], 20.0)

    assert layout.fillers([0, 1], [2, 3]) == ()
    layout.observe([0, 1], 12.0)

    assert layout.fillers([0, 1], [2, 3]) == ()
    assert layout.seconds([0, 1]) < 20.0


def test_unmeasured_incomplete_blocks_are_filled() -> None:
    """The warm-up of a large model measures few row counts; incomplete blocks are slow."""
    layout = BatchLayout({1: 14.0, 12: 85.0, 16: 90.0}, 16)

    assert layout.fillers(range(15), [15]) == (15,)


def test_fillers_that_are_predicted_to_be_slower_are_tried() -> None:
    """Four rows were measured as slower than three."""
    layout = BatchLayout({1: 10.0, 2: 20.0, 3: 28.0, 4: 30.0}, 4)
    for _ in range(TRIAL_INTERVAL - 1):
        assert layout.fillers([0, 1, 2], [3]) == ()
        layout.observe([0, 1, 2], 28.0)

    assert layout.fillers([0, 1, 2], [3]) == (3,)
    layout.observe([0, 1, 2, 3], 20.0)
    layout.observe([0, 1, 2], 28.0)

    assert layout.fillers([0, 1, 2], [3]) == (3,)


def test_runs_of_different_lengths_are_not_tried() -> None:
    """Their measurement would be ignored."""
    layout = BatchLayout({1: 10.0, 2: 11.0, 3: 12.0, 4: 12.0}, 4)

    assert {layout.fillers([0, 2, 3], [1]) for _ in range(2 * TRIAL_INTERVAL)} == {(1,)}


def test_other_fillers_are_tried_as_well_as_none() -> None:
    """Ten rows are filled up to eleven; ten and twelve are tried in turn."""
    layout = BatchLayout({1: 20.0, 10: 45.0, 11: 40.0, 12: 42.0}, 12)
    filled = [layout.fillers(range(10), [10, 11]) for _ in range(2 * TRIAL_INTERVAL)]

    assert Counter(filled) == {(10,): 2 * TRIAL_INTERVAL - 2, (10, 11): 1, (): 1}


def test_fillers_that_double_the_step_time_are_not_tried() -> None:
    """The trial would cost more than it can gain."""
    layout = BatchLayout({1: 10.0, 2: 20.0, 3: 30.0, 4: 60.0}, 4)

    assert {layout.fillers([0, 1, 2], [3]) for _ in range(2 * TRIAL_INTERVAL)} == {()}


def test_a_correct_measurement_is_unchanged_by_trials() -> None:
    """The steps without fillers are as slow as predicted."""
    layout = BatchLayout({1: 10.0, 2: 40.0, 3: 40.0, 4: 20.0}, 4)
    for _ in range(3 * TRIAL_INTERVAL):
        rows = sorted((0, 1, *layout.fillers([0, 1], [2, 3])))
        layout.observe(rows, 40.0 if len(rows) == 2 else 20.0)

    assert layout.seconds([0, 1]) == 40.0
    assert layout.fillers([0, 1], [2, 3]) == (2, 3)


def test_only_runs_of_equal_length_are_measured() -> None:
    """Each of two equal runs takes half of the time."""
    layout = BatchLayout({1: 10.0, 2: 20.0, 3: 30.0}, 6)
    layout.observe([0, 2, 3], 15.0)
    assert layout.seconds([0]) == 10.0
    assert layout.seconds([0, 1]) == 20.0

    layout.observe([0, 1, 3, 4], 30.0)
    assert layout.seconds([0, 1]) == 15.0
