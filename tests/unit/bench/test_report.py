"""Records, the page rendered from them, and its plots."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import report
from bench.measurement import Measurement, Result
from bench.paths import REPOSITORY
from bench.plots import ratio_chart, speed_chart
from bench.records import Record, read_all, without_paths

MACHINE = {
    "date": "2026-01-01 00:00 UTC",
    "commit": "abc",
    "cores": 2,
    "processor": "X",
    "llama_cpp_python": "0",
    "load_before": 0.0,
}


def make_record(speeds: Sequence[tuple[float, ...]], *, is_quick: bool = False) -> Record:
    """Build a record of unique prompts with the speeds of Corral and the peer in each round."""
    measurements = [
        Measurement("1 at once", number, system, speed)
        for number, pair in enumerate(speeds)
        for system, speed in zip(("corral", "llama-server streams"), pair, strict=False)
    ]
    return Record("unique", MACHINE, "m.gguf", 2, is_quick, {"peer": ("run",)}, (*measurements,))


GOOD = make_record([(110.0, 100.0), (105.0, 100.0), (120.0, 100.0)])
BAD = make_record([(90.0, 100.0), (95.0, 100.0), (80.0, 100.0)])
UNIQUE = next(part for part in report.REPORTED if part.name == "unique")


def test_the_page_shows_ratio_range_target_and_verdict() -> None:
    page = report.render(report.CPU, {"unique": GOOD})

    assert "1.10 (1.05 to 1.20) | at least 1.00 | met" in page
    assert "llama-server streams: 100 tokens/s" in page
    assert "run" in page.partition("## What ran")[2]


def test_missed_targets_are_listed_at_the_top() -> None:
    head = report.render(report.CPU, {"unique": BAD}).partition("## ")[0]

    assert "**0 of 1 targets are met.** Not met:" in head
    assert "1 at once, 0.90 where the target is at least 1.00" in head


def test_parts_without_measurements_are_listed() -> None:
    """A missing part differs from one without targets."""
    assert "Not measured: Decoding" in report.render(report.CPU, {"unique": GOOD})


def test_without_a_peer_there_are_no_verdicts() -> None:
    """A run of Corral alone only has speeds."""
    page = report.render(report.CPU, {"unique": make_record([(110.0,)])})

    assert "0 of 0 targets" in page
    assert "not measured |" in page


def test_a_run_on_a_gpu_has_a_page_of_its_own() -> None:
    """It names the GPU, and not the parts for which a GPU makes no difference."""
    record = replace(GOOD, machine=GOOD.machine | {"gpus": ["NVIDIA H100"]})
    page = report.render(report.GPU, {"unique": record})
    assert page.startswith("# Benchmarks on a GPU")
    assert "and NVIDIA H100, llama-cpp-python" in page
    assert "(benchmarks-gpu/unique-ratios.svg)" in page
    assert "Not measured" not in page


def test_the_page_says_that_a_run_was_quick() -> None:
    """Its figures are not representative."""
    assert "quick run" in report.render(
        report.CPU, {"unique": make_record([(1.0, 1.0)], is_quick=True)}
    )


def test_a_record_is_read_as_written(tmp_path: Path) -> None:
    """So that runs can be resumed and reports rebuilt."""
    GOOD.write(tmp_path / "unique.json", UNIQUE)

    assert read_all(tmp_path, report.REPORTED) == {"unique": GOOD}


def test_command_lines_are_stored_without_local_paths() -> None:
    """Nor addresses of databases, since records are committed."""
    folder = tempfile.gettempdir()
    commands = (
        f"{REPOSITORY}/x --model {Path.home()}/.cache/m.gguf",
        f"--data {folder}/x",
        f"URL=postgresql://me@/a?host={folder}/pg --port 1",
    )
    lines = without_paths({"a": commands})

    expected = ("./x --model ~/.cache/m.gguf", "--data TMP/x", "URL=postgresql:// --port 1")
    assert lines == {"a": expected}


@pytest.mark.parametrize("chart", [ratio_chart, speed_chart])
def test_plots_are_well_formed_and_show_every_load(
    chart: Callable[[Sequence[Result]], str],
) -> None:
    """Names of loads are escaped."""
    results = [Result(name, (1.0, 2.0), 1.5, 10.0, 5.0, "peer") for name in ("a < b", "c & d")]

    parsed = ElementTree.fromstring(chart(results))  # noqa: S314  # our own text
    texts = [node.text for node in parsed.iter() if node.text]

    assert {"a < b", "c & d"} <= set(texts)


def test_only_parts_with_ratios_have_plots() -> None:
    """A part measured without peers has none."""
    assert report.plots({"unique": GOOD}).keys() == {"unique-ratios.svg", "unique-speeds.svg"}
    assert report.plots({"unique": make_record([(110.0,)])}) == {}
