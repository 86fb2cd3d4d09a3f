"""Reading and comparing the public surface."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from tools.surface import differences

SECTIONS = "openapi protos scopes errors metrics settings files commands exit_codes scripts logs"


@pytest.mark.parametrize(
    ("now", "expected"),
    [({"/a": 1}, []), ({"/a": 2}, ["~ /a: 1 -> 2"]), ({"/b": None}, ["- /a: 1", "+ /b: null"])],
)
def test_each_difference_is_a_line(now: dict[str, object], expected: list[str]) -> None:
    """Entries are added, removed or changed; null is a value, not a missing entry."""
    assert differences({"/a": 1}, now) == expected


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Sequence[bytes]:
    """The files of two processes, in which sets have different orders."""
    folder = tmp_path_factory.mktemp("surface")
    for seed in ("1", "2"):
        command = [sys.executable, "-m", "tools.surface", "write", str(folder / seed)]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": seed})
    return [(folder / seed).read_bytes() for seed in ("1", "2")]


def test_every_section_is_read_with_its_prose_separate(written: Sequence[bytes]) -> None:
    """A section that is missing in both files would compare as equal."""
    parts = json.loads(written[0])
    sections = {name.split("/")[1] for name, value in parts["surface"].items() if value}
    assert sections == set(SECTIONS.split())
    assert "/settings/gateway/listen/schema/description" in parts["prose"].keys() - parts["surface"]


def test_the_surface_is_the_same_in_every_process(written: Sequence[bytes]) -> None:
    """Also the order of its lists: none is that of a set."""
    first, second = written
    assert first == second
