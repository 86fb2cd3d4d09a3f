"""The comparison of what clients, operators and scripts depend on."""

import pytest

from tools.surface import differences, parts

SECTIONS = "openapi protos scopes errors metrics settings files commands exit_codes scripts logs"


@pytest.mark.parametrize(
    ("now", "expected"),
    [({"/a": 1}, []), ({"/a": 2}, ["~ /a: 1 -> 2"]), ({"/b": None}, ["- /a: 1", "+ /b: null"])],
)
def test_each_difference_is_a_line(now: dict[str, object], expected: list[str]) -> None:
    """Added, removed or changed; null is a value, and not the absence of one."""
    assert differences({"/a": 1}, now) == expected


def test_every_section_is_written_with_its_prose_apart() -> None:
    """A section that is missing or empty would compare as equal."""
    found = parts()
    sections = {name.split("/")[1] for name, value in found["surface"].items() if value}
    assert sections == set(SECTIONS.split())
    assert "/settings/gateway/listen/schema/description" in found["prose"].keys() - found["surface"]
