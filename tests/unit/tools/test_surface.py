"""The comparison of what clients and operators depend on."""

import pytest

from tools.surface import differences, surface


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 1}}, []),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, ["/a/b: 1 -> 2"]),
        ({"a": 1}, {"b": 1}, ["/a: 1 -> None", "/b: None -> 1"]),
        ({"a": ["x"]}, {"a": ["y"]}, ["/a: only before ['x'], only now ['y']"]),
    ],
)
def test_each_difference_is_a_line(old: object, new: object, expected: list[str]) -> None:
    """With the place where it is."""
    assert list(differences(old, new)) == expected


def test_every_part_of_the_surface_is_there() -> None:
    """An empty part would compare as equal."""
    assert {name for name, part in surface().items() if not part} == set()
