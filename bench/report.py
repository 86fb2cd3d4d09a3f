"""Renders records as the benchmark page and as text.

python -m bench.report [--check]      renders docs/understand/benchmarks.md from bench/results,
                                      and benchmarks-gpu.md from its folder `gpu`
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench.measurement import Result
from bench.parts import LONG, PARTS
from bench.paths import REPOSITORY
from bench.plots import ratio_chart, speed_chart
from bench.records import Record, read_all
from bench.stage import Part

REPORTED = (*PARTS, *LONG)
PAGES: Final = REPOSITORY / "docs/understand"


class Page(NamedTuple):
    """A page of results. `name` is that of its file and of the folder of its plots."""

    name: str
    title: str
    results: Path


CPU: Final = Page("benchmarks", "Benchmarks", REPOSITORY / "bench/results")
GPU: Final = Page("benchmarks-gpu", "Benchmarks on a GPU", CPU.results / "gpu")

Concluded = Sequence[tuple[Part, Record, Sequence[Result]]]


def conclude(records: Mapping[str, Record]) -> Concluded:
    """Return each measured part with its record and results."""
    measured = [(part, records[part.name]) for part in REPORTED if part.name in records]
    return [(part, record, part.conclude(record.measurements)) for part, record in measured]


def summary(records: Mapping[str, Record]) -> str:
    """Return all results as plain text."""
    lines: list[str] = []
    for part, _, results in conclude(records):
        lines += ["", part.title]
        for result in results:
            ratio = f"{result.ratio:.2f}" if result.ratios else "-"
            lines.append(f"  {result.load:48} {ratio:>6}  {_target(result):15} {_verdict(result)}")
    return "\n".join(lines[1:])


def render(page: Page, records: Mapping[str, Record]) -> str:
    """Return the page as Markdown. Parts without results are named, but not those for a GPU."""
    concluded = conclude(records)
    missing = [part.title for part in REPORTED if part.name not in records and page is not GPU]
    sections = [_head(page, concluded)]
    sections += [f"Not measured: {'; '.join(missing)}."] if missing else []
    sections += [_section(page, *one) for one in concluded]
    sections.append(_commands([record for _, record, _ in concluded]))
    return "\n\n".join(sections) + "\n"


def plots(records: Mapping[str, Record]) -> dict[str, str]:
    """Return the plots by file name."""
    charts = {}
    for part, record, results in conclude(records):
        for name, chart in part.draw(record.measurements).items():
            charts[f"{part.name}-{name}.svg"] = chart
        compared = [result for result in results if result.is_met is not None]
        if compared:
            charts[f"{part.name}-ratios.svg"] = ratio_chart(compared)
        if speeds := [result for result in compared if result.unit == "tokens/s"]:
            charts[f"{part.name}-speeds.svg"] = speed_chart(speeds)
    return charts


def _head(page: Page, concluded: Concluded) -> str:
    results = [
        (part, one) for part, _, results in concluded for one in results if one.is_met is not None
    ]
    missed = [(part, one) for part, one in results if not one.is_met]
    lines = [
        f"# {page.title}",
        "",
        f"Made by `make bench ARGS=--publish` from `{page.results.relative_to(REPOSITORY)}/`; do"
        " not edit. How it is measured and what makes it fair:"
        " [bench/README.md](../../bench/README.md).",
        "",
        f"**{len(results) - len(missed)} of {len(results)} targets are met.**"
        + (" Not met:" if missed else ""),
    ]
    lines += [
        f"- {part.title}: {one.load}, {one.ratio:.2f} where the target is {_target(one)}"
        for part, one in missed
    ]
    if any(record.is_quick for _, record, _ in concluded):
        lines += ["", "This was a quick run: small loads, one round. It shows that things work."]
    return "\n".join(lines)


def _section(page: Page, part: Part, record: Record, results: Sequence[Result]) -> str:
    rounds = max(len(result.ratios) for result in results)
    machine = record.machine
    processors = [f"{machine['cores']} x {machine['processor']}", *machine.get("gpus", [])]
    lines = [
        f"## {part.title}",
        "",
        part.text,
        "",
        f"Rounds: {rounds}, at {machine['date']}, commit {machine['commit']}, on"
        f" {' and '.join(processors)}, llama-cpp-python"
        f" {machine['llama_cpp_python']}, model `{record.model}`, {record.threads} compute threads"
        f" for every engine. Load of the machine before: {machine['load_before']}.",
        "",
        "| load | Corral | beside | ratio (lowest to highest) | target | |",
        "|---|---:|---|---:|---|---|",
        *map(_row, results),
    ]
    for name in plots({part.name: record}):
        kind = name.rpartition("-")[2].removesuffix(".svg")
        lines += ["", f"![{part.title}, {kind}]({page.name}/{name})"]
    return "\n".join(lines)


def _row(result: Result) -> str:
    peer = f"{result.peer_name}: {_figure(result.peer, result.unit)}" if result.ratios else "-"
    ratio = "-"
    if result.ratios:
        low, high = min(result.ratios), max(result.ratios)
        ratio = f"{result.ratio:.2f} ({low:.2f} to {high:.2f})"
    own = _figure(result.own, result.unit)
    return f"| {result.load} | {own} | {peer} | {ratio} | {_target(result)} | {_verdict(result)} |"


def _figure(value: float, unit: str) -> str:
    digits = 0 if value >= 100 or value == int(value) else 1
    return f"{value:,.{digits}f} {unit}"


def _target(result: Result) -> str:
    return f"{result.bound} {result.target:.2f}" if result.target is not None else "-"


def _verdict(result: Result) -> str:
    if result.is_met is None:
        return "no target" if result.ratios else "not measured"
    return "met" if result.is_met else "**not met**"


def _commands(records: Sequence[Record]) -> str:
    lines = []
    for record in records:
        for name, commands in record.commands.items():
            lines += [f"# {record.part}: {name}", *commands, ""]
    text = "\n".join(lines).rstrip()
    return (
        "## What ran\n\nTemperature, top_k, top_p, min_p and every other sampling field travel "
        f"with each request, see `bench/workload.py`.\n\n```\n{text}\n```"
    )


def render_files() -> dict[Path, str]:
    """Render the pages and their plots from the committed results, by path. A page without results
    is left out."""
    files = {}
    for page in (CPU, GPU):
        if records := read_all(page.results, REPORTED):
            files[PAGES / f"{page.name}.md"] = render(page, records)
            for name, content in plots(records).items():
                files[PAGES / page.name / name] = content
    return files


def publish() -> None:
    """Write the pages and their plots, and delete plots that no longer exist."""
    contents = render_files()
    for old in set(PAGES.glob(f"{CPU.name}*/*.svg")) - contents.keys():
        old.unlink()
    for path, content in contents.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)


def main() -> int:
    """Render the pages, or check that they match the results."""
    parser = argparse.ArgumentParser(description="Render the benchmark pages from bench/results.")
    parser.add_argument("--check", action="store_true", help="change nothing")
    if not parser.parse_args().check:
        publish()
        return 0
    stale = [
        path
        for path, text in render_files().items()
        if not path.exists() or path.read_text() != text
    ]
    for path in stale:
        print(
            f"{path.relative_to(REPOSITORY)} is out of date; run python -m bench.report",
            file=sys.stderr,
        )
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
