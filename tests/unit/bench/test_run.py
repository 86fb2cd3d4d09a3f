"""A run writes each part when it is done, and goes on where it was interrupted."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.measurement import Measurement, Part, Result
from bench.run import parse, run
from bench.stage import Stage


class Counted:
    """A part whose ratio is known, and that counts how often it was measured."""

    def __init__(self, ratio: float) -> None:
        self.times = 0
        self._ratio = ratio
        # named as a real part, so that the report finds its record
        self.part = Part("unique", "Title", "Text.", self._measure, self._conclude)

    def _measure(self, stage: Stage) -> Iterator[Measurement]:
        self.times += 1
        yield Measurement("1 at once", 0, "corral", self._ratio)
        yield Measurement("1 at once", 0, "llama-server streams", 1.0)

    def _conclude(self, measurements: object) -> list[Result]:
        return []


def a_run(folder: Path, ratio: float) -> tuple[bool, Counted]:
    """One run of the part into the folder, without peers."""
    options, _ = parse(["--no-peers", "--into", str(folder)])
    counted = Counted(ratio)
    return run(options, [counted.part]), counted


def test_what_the_folder_holds_is_not_measured_again(tmp_path: Path) -> None:
    """An interrupted run has lost at most one part."""
    _, first = a_run(tmp_path, 1.1)
    _, second = a_run(tmp_path, 1.1)

    assert (first.times, second.times) == (1, 0)


@pytest.mark.parametrize(("ratio", "is_met"), [(1.1, True), (0.9, False)])
def test_a_run_tells_whether_its_targets_are_met(
    tmp_path: Path, ratio: float, is_met: bool
) -> None:
    """With --strict that is its exit code."""
    met, _ = a_run(tmp_path, ratio)

    assert met is is_met


def test_a_part_that_nobody_knows_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A typing error must not look like a run of nothing."""
    with pytest.raises(SystemExit):
        parse(["--parts", "decode,nonsense"])

    assert "no part is called nonsense" in capsys.readouterr().err


def test_long_parts_are_measured_only_where_they_are_named() -> None:
    """The soak takes longer than all others together."""
    _, default = parse([])
    _, named = parse(["--parts", "soak"])

    assert "soak" not in [part.name for part in default]
    assert [part.name for part in named] == ["soak"]
