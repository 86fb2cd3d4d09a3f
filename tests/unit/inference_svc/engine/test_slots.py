"""Common prefixes."""

from array import array

from inference_svc.engine.slots import common_prefix


def test_common_prefix_stops_at_the_first_difference() -> None:
    """The binary search finds the exact position."""
    left = array("i", [1, 2, 3, 4, 5, 9, 7])

    assert common_prefix(left, array("i", [1, 2, 3, 4, 5, 6, 7]), limit=7) == 5
    assert common_prefix(left, left, limit=4) == 4
    assert common_prefix(left, array("i", [2]), limit=7) == 0
