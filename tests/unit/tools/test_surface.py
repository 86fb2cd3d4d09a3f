"""Reading and comparing the public surface."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.surface import differences, read_parts

SECTIONS = "openapi protos scopes errors metrics settings files commands exit_codes scripts logs"


@pytest.mark.parametrize(
    ("now", "expected"),
    [({"/a": 1}, []), ({"/a": 2}, ["~ /a: 1 -> 2"]), ({"/b": None}, ["- /a: 1", "+ /b: null"])],
)
def test_each_difference_is_a_line(now: dict[str, object], expected: list[str]) -> None:
    """Entries are added, removed or changed; null is a value, not a missing entry."""
    assert differences({"/a": 1}, now) == expected


def test_every_section_is_read_with_its_prose_separate() -> None:
    """A section that is missing in both files would compare as equal."""
    parts = read_parts()
    sections = {name.split("/")[1] for name, value in parts["surface"].items() if value}
    assert sections == set(SECTIONS.split())
    assert "/settings/gateway/listen/schema/description" in parts["prose"].keys() - parts["surface"]


def test_the_surface_is_the_same_in_every_process(tmp_path: Path) -> None:
    """Also the order of its lists: none is that of a set."""
    for seed in ("1", "2"):
        command = [sys.executable, "-m", "tools.surface", "write", str(tmp_path / seed)]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": seed})
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
