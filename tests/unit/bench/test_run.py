"""Running parts, resuming a run, and the command line."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.measurement import Measurement, Result
from bench.run import parse, run
from bench.stage import Part, Stage


class CountingPart:
    """A part with a known ratio that counts how often it is measured."""

    def __init__(self, ratio: float) -> None:
        self.times = 0
        self._ratio = ratio
        # the name of a real part, so that the report reads its record
        self.part = Part("unique", "Title", "Text.", self._measure, self._conclude)

    def _measure(self, stage: Stage) -> Iterator[Measurement]:
        self.times += 1
        yield Measurement("1 at once", 0, "corral", self._ratio)
        yield Measurement("1 at once", 0, "llama-server streams", 1.0)

    def _conclude(self, measurements: object) -> list[Result]:
        return []


def run_part(folder: Path, ratio: float) -> tuple[bool, CountingPart]:
    """Run the part once without peers."""
    options, _ = parse(["--no-peers", "--into", str(folder)])
    counting = CountingPart(ratio)
    return run(options, [counting.part]), counting


def test_a_measured_part_is_not_measured_again(tmp_path: Path) -> None:
    """A resumed run continues with the next part."""
    _, first = run_part(tmp_path, 1.1)
    _, second = run_part(tmp_path, 1.1)

    assert (first.times, second.times) == (1, 0)


@pytest.mark.parametrize(("ratio", "is_met"), [(1.1, True), (0.9, False)])
def test_a_run_returns_whether_its_targets_are_met(
    tmp_path: Path, ratio: float, is_met: bool
) -> None:
    """It decides the exit code with --strict."""
    met, _ = run_part(tmp_path, ratio)

    assert met is is_met


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The error lists the valid names."""
    with pytest.raises(SystemExit):
        parse(["--parts", "decode,nonsense"])

    assert "unknown part: nonsense; choose from decode" in capsys.readouterr().err


def test_another_checkout_needs_a_virtual_environment(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Its servers run with its own packages."""
    with pytest.raises(SystemExit):
        parse(["--against", str(tmp_path)])

    assert "it has no .venv/bin/python" in capsys.readouterr().err


def test_long_parts_run_only_if_named() -> None:
    """The soak takes longer than all other parts together."""
    _, default = parse([])
    _, named = parse(["--parts", "soak"])

    assert "soak" not in [part.name for part in default]
    assert [part.name for part in named] == ["soak"]
